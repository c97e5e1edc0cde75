"""PartitionProfiler: after warm-up, between steps, measures what FrontierOptimizer asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from energy_lightning.callbacks.blocking import learn_blocking_power
from energy_lightning.callbacks.frontier_optimizer import FrontierOptimizerMixin
from energy_lightning.callbacks.job import (
    FAILURES,
    JobStrategy,
    degrading,
    find_callback,
    gather_rows,
    job_of,
    report,
    say,
)
from energy_lightning.callbacks.progress import ProfilingProgress
from energy_lightning.callbacks.ranks import merge_ranks, row_of, why_not
from energy_lightning.device import has_emulated_figures
from energy_lightning.measure import (
    ControlLostError,
    EmulatedRunner,
    EnergyMeter,
    EnergyTotal,
    PartitionMeter,
    PeerFailedError,
    Request,
    WindowSettings,
)
from energy_lightning.types import DeviceError, EnergyLightningError, Measurement, MeasurementError

REAL_TIME_PER_STEP_S = 60.0
LEAST_EMULATED_PER_STEP = 64
ALL_THE_REST = 1_000_000  # more than any search asks for


class PartitionProfilerMixin:
    """Measures partitions between training steps, a bounded amount a step, never during validation or sanity checks.

    All ranks measure the same configurations at the same time, each on its own GPU; rank 0 keeps the results.

    Args:
        warmup_steps: optimizer steps before the first measurement.
        measurements_per_step: configurations measured after one optimizer step; "auto": about a minute's worth on a
            real GPU; on an emulated one, where windows take no real time, as many as it takes to finish in time.
        max_fraction: share of the training's steps that profiling may extend over; then training goes on with the
            best plan so far.
        window_s, cool_down_s: length of a measuring window and of the rest after it.
        precision: a window ends early (from 2 s on, its cool-down in proportion) once time and energy are known to
            this fraction, e.g. 0.01; None: never.
        seed: order of measurements.
    """

    def __init__(
        self,
        *,
        warmup_steps: int = 3,
        measurements_per_step: int | Literal["auto"] = "auto",
        max_fraction: float = 0.25,
        window_s: float = 5.0,
        cool_down_s: float = 5.0,
        precision: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if warmup_steps < 0 or not 0.0 < max_fraction <= 1.0:
            raise EnergyLightningError(
                f"need warmup_steps >= 0 and max_fraction from 0 (exclusive) to 1, got {warmup_steps}, {max_fraction}"
            )
        if measurements_per_step != "auto" and not (
            isinstance(measurements_per_step, int) and measurements_per_step >= 1
        ):
            raise EnergyLightningError(f"measurements_per_step must be 'auto' or >= 1, got {measurements_per_step!r}")
        self._warmup_steps, self._per_step, self._max_fraction = warmup_steps, measurements_per_step, max_fraction
        self._windows = WindowSettings(window_s=window_s, cool_down_s=cool_down_s, precision=precision)
        self._rng = np.random.default_rng(seed)
        self._meter: PartitionMeter | None = None
        self._progress: ProfilingProgress | None = None
        self._active = self._begun = False
        self._num_steps = self._last_global_step = self._last_step = 0
        self.num_measured = 0
        self.spent = EnergyTotal()
        """Time and energy of this GPU that went into profiling, on the device's clock."""

    # Lightning's hooks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find out whether there is anything to profile, and until which step."""
        job, optimizer = job_of(trainer), find_callback(trainer, FrontierOptimizerMixin)
        self._begun, self._num_steps, self._last_global_step = False, 0, trainer.global_step
        self._active = job is not None and optimizer is not None and job.plan is None
        if not self._active:
            return
        total = trainer.estimated_stepping_batches - trainer.global_step
        share = self._max_fraction * (total - self._warmup_steps)
        self._last_step = self._warmup_steps + max(1, int(share)) if math.isfinite(total) else 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After an optimizer step: measure a little."""
        if not self._active or trainer.global_step == self._last_global_step:
            return
        self._last_global_step = trainer.global_step
        if any(getattr(callback, "sweeping", False) for callback in trainer.callbacks):
            return  # a power limit is being chosen, under which partitions are profiled then
        self._num_steps += 1
        job, optimizer = job_of(trainer), find_callback(trainer, FrontierOptimizerMixin)
        if job is None or optimizer is None:
            return
        with degrading(lambda line: self._give_up(trainer, line), raising=(MeasurementError,)):
            if self._num_steps == 1 and self._fault(trainer, job) is None and optimizer.recall(trainer, job):
                say(trainer, "the plan found earlier for this job is used; nothing is measured again")
                self._finish()
            elif self._num_steps > self._warmup_steps and not self._begun:
                self._begin(trainer, job, optimizer)
        if self._active and self._begun:
            with degrading(lambda line: self._give_up(trainer, line)):
                self._profile(trainer, job, optimizer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training was shorter than profiling: keep what was found."""
        job, optimizer = job_of(trainer), find_callback(trainer, FrontierOptimizerMixin)
        if not self._active or job is None or optimizer is None:
            return
        if not self._begun:
            say(
                trainer, f"training ended before profiling began ({self._warmup_steps} warm-up steps); no plan was made"
            )
        else:
            with degrading(lambda line: self._give_up(trainer, line)):
                say(trainer, "training ended before profiling did; the plan holds the best so far")
                optimizer.decide(trainer, job, early=True)
        self._finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take the progress bar away."""
        self._finish()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take the progress bar away."""
        self._finish()

    # the work of one step, on every rank

    def _begin(self, trainer: Any, job: JobStrategy, optimizer: FrontierOptimizerMixin) -> None:
        """The warm-up is over: open everything that profiling needs, or find that it is not needed."""
        fault = self._fault(trainer, job)
        if fault is not None:
            report(trainer, f"nothing is profiled: {fault}")
            self._finish()
            return
        device: Any = job.device
        learn_blocking_power(trainer, device, self.spent)
        optimizer.begin(trainer, job)
        self._progress = ProfilingProgress(trainer, f"Profiling on {device.name}")
        self._begun = True

    def _fault(self, trainer: Any, job: JobStrategy) -> str | None:
        """Why nothing can be profiled, on this rank or on another one; None where it can. Collective."""
        fault = why_not(job)
        faulty = [rank for rank, row in enumerate(gather_rows(trainer, [float(fault is not None)])) if row[0]]
        return fault or (f"rank {faulty[0]} cannot; its log says why" if faulty else None)

    def _open_meter(self, trainer: Any, job: JobStrategy, *, lock_clock: bool) -> PartitionMeter:
        def agree(own: bool) -> bool:
            return all(row[0] for row in gather_rows(trainer, [float(own)]))

        def longest(own_s: float) -> float:
            return max(row[0] for row in gather_rows(trainer, [own_s]))

        device: Any = job.device
        runner = EmulatedRunner(device) if device.emulated else getattr(job, "partition_runner")  # noqa: B009
        refresh_s = device.counter_refresh_s if device.energy_source == "counter" else 0.0
        windows = replace(self._windows, lock_clock=lock_clock)
        if device.emulated and self._windows.precision is None:  # no rank waits for another
            return PartitionMeter(device, runner, windows, refresh_s=refresh_s)
        return PartitionMeter(device, runner, windows, refresh_s=refresh_s, agree=agree, longest=longest)

    def _profile(self, trainer: Any, job: JobStrategy, optimizer: FrontierOptimizerMixin) -> None:
        try:
            self._profile_some(trainer, job, optimizer)
        except ControlLostError:
            say(trainer, "clocks may not be set any more: partitions are profiled at the running clock from here on")
            self._close_meter()
            optimizer.begin(trainer, job)

    def _profile_some(self, trainer: Any, job: JobStrategy, optimizer: FrontierOptimizerMixin) -> None:
        num_before = self.num_measured

        def limit(num_remaining: int) -> int:
            num_now = self.num_measured - num_before
            return self._limit(job, num_remaining + num_now) - num_now

        while True:
            requests = optimizer.requests(trainer, limit)
            if not requests:
                break
            optimizer.report(trainer, requests, self._measure(trainer, job, requests, optimizer.clock_controlled))
            self._show(optimizer)
        if requests is not None:
            self._say_cost(trainer, job, optimizer.conditions)
            optimizer.decide(trainer, job)
            self._finish()
        elif self._last_step and self._num_steps >= self._last_step:
            self._stop_early(trainer, job, optimizer)

    def _limit(self, job: JobStrategy, num_to_come: int) -> int:
        """How many configurations to measure after this step, of those still to come when it ended."""
        if self._per_step != "auto":
            return self._per_step
        assert job.device is not None
        if job.device.emulated:
            steps_left = self._last_step - self._num_steps + 1 if self._last_step else math.inf
            even_share = math.ceil(num_to_come / max(1, steps_left))
            return ALL_THE_REST if steps_left <= 1 else max(LEAST_EMULATED_PER_STEP, even_share)
        return max(1, int(REAL_TIME_PER_STEP_S / (self._windows.window_s + self._windows.cool_down_s)))

    def _measure(
        self, trainer: Any, job: JobStrategy, requests: Sequence[Request], lock_clock: bool
    ) -> list[Measurement]:
        """Measure on this rank's GPU and merge over ranks. A failure on one rank is said there and raised on all."""
        assert job.device is not None
        own, fault = list[Measurement](), ""
        spent = EnergyMeter(job.device)
        spent.start()
        try:
            self._meter = self._meter or self._open_meter(trainer, job, lock_clock=lock_clock)
            own = self._meter.measure_all(requests, self._rng)
        except PeerFailedError:
            pass  # that rank tells
        except FAILURES as error:
            fault = str(error) if isinstance(error, DeviceError) else f"{type(error).__name__}: {error}"
            if not trainer.is_global_zero:  # who hears of it from `say` otherwise
                report(trainer, f"measuring failed: {fault}")
        self.spent.add(spent.lap())
        spent.close()
        self.num_measured += len(requests)
        values = [value for measurement in own for value in row_of(measurement)] or [math.nan] * (3 * len(requests))
        lost = lock_clock and not job.device.can_lock_frequency
        rows = gather_rows(trainer, [float(bool(fault)), float(lost), *values])
        failed = [rank for rank, row in enumerate(rows) if row[0]]
        if any(row[1] for row in rows):
            raise ControlLostError("the permission to set clocks was lost on some rank")
        if failed:
            raise DeviceError(fault or f"measuring failed on rank {failed[0]}; its log says why")
        return merge_ranks(own, [row[2:] for row in rows])

    def _say_cost(self, trainer: Any, job: JobStrategy, conditions: str) -> None:
        if self.num_measured:
            device: Any = job.device
            label = "EMULATED " if has_emulated_figures(device) else ""
            line = f"{self.num_measured} configurations measured in {label}{self.spent.time_s:.0f} s of {device.name}"
            say(trainer, ", ".join(filter(None, (line, conditions))))

    def _show(self, optimizer: FrontierOptimizerMixin) -> None:
        if self._progress is not None:
            self._progress.update(self.num_measured, optimizer.num_remaining)

    def _stop_early(self, trainer: Any, job: JobStrategy, optimizer: FrontierOptimizerMixin) -> None:
        say(
            trainer,
            f"profiling would take longer than {self._max_fraction:.0%} of the training's steps; "
            f"training goes on with the best plan of {self.num_measured} measurements",
        )
        optimizer.decide(trainer, job, early=True)
        self._finish()

    def _give_up(self, trainer: Any, line: str) -> None:
        say(trainer, f"profiling stopped, training goes on as it is: {line}")
        self._finish()

    def _finish(self) -> None:
        self._active = self._begun = False
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        self._close_meter()

    def _close_meter(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None
