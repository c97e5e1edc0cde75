"""FrequencyController: puts the plan into force step by step, and gives the hardware back."""

from __future__ import annotations

from typing import Any

from energy_lightning.callbacks.drift import DriftWatch
from energy_lightning.callbacks.energy_monitor import EnergyMonitorMixin
from energy_lightning.callbacks.frontier_optimizer import FrontierOptimizerMixin
from energy_lightning.callbacks.job import JobStrategy, degrading, find_callback, job_of, report, say
from energy_lightning.callbacks.observed import ClockLog
from energy_lightning.callbacks.step_meter import StepMeter
from energy_lightning.device import Device, FrequencySwitcher
from energy_lightning.types import EnergyLightningError, Phase, Plan, PlanError


class FrequencyControllerMixin:
    """Applies the plan: schedules to the engine, the forward's clock before forward, the backward's before backward.

    The clock is set on change only, never twice within the dwell, and given back in validation, on exceptions and at
    the end; on a real GPU by a thread of its own, so that training never waits for the driver (see FrequencySwitcher).
    Once an epoch one line tells of clocks that were asked for and not seen. Steps that drift from the plan's
    prediction are reported in one line. Where the permission to set clocks is lost in the middle of a run the device
    says so, the plan's schedules stay in force, and the clock is the GPU's own business from there on.

    Args:
        min_dwell_s: least time between two changes of the clock (a change itself takes several milliseconds).
        drift_tolerance: relative deviation of the mean step from the plan's prediction that is still normal.
        drift_steps: steps in that mean.
    """

    def __init__(self, *, min_dwell_s: float = 0.02, drift_tolerance: float = 0.1, drift_steps: int = 20) -> None:
        super().__init__()
        if not (min_dwell_s >= 0.0 and drift_tolerance > 0.0 and drift_steps >= 1):  # NaN fails too
            raise EnergyLightningError(
                "need min_dwell_s >= 0, drift_tolerance > 0 and drift_steps >= 1, got "
                f"{min_dwell_s}, {drift_tolerance}, {drift_steps}"
            )
        self._min_dwell_s, self._tolerance, self._drift_steps = min_dwell_s, drift_tolerance, drift_steps
        self._job: JobStrategy | None = None
        self._optimizer: FrontierOptimizerMixin | None = None
        self._device: Device | None = None
        self._meter: StepMeter | None = None
        self._switcher: FrequencySwitcher | None = None
        self._clocks_mhz: dict[Phase, int | None] = {}
        self._clock_log = ClockLog()
        self._fault: str | None = None  # the last one told
        self._active, self._step_open, self._last_global_step = False, False, 0
        self._settling = False  # the coming step holds a change of the clock that the plan does not predict
        self.drift: DriftWatch | None = None
        self.plan: Plan | None = None
        """The plan in force, None before there is one."""

    @property
    def num_switches(self) -> int:
        """Changes of the clock in this fit, giving back included."""
        return 0 if self._switcher is None else self._switcher.num_changes

    @property
    def num_skipped(self) -> int:
        """Changes that the dwell forbade."""
        return 0 if self._switcher is None else self._switcher.num_skipped

    # Lightning's hooks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the device."""
        self._job = job = job_of(trainer)
        self._optimizer = find_callback(trainer, FrontierOptimizerMixin)
        self._device = None if job is None else job.device
        self._active, self.plan, self.drift = self._device is not None, None, None
        self._step_open, self._last_global_step, self._clock_log = False, trainer.global_step, ClockLog()
        self._switcher = self._fault = None
        if self._device is not None:
            self._switcher = FrequencySwitcher(self._device, min_dwell_s=self._min_dwell_s)
            told = not self._device.virtual_clock and find_callback(trainer, EnergyMonitorMixin) is not None
            if not self._device.can_lock_frequency and not told:
                say(trainer, f"no permission to set the clock of {self._device.name}: plans run without it")
        if job is not None and job.plan is not None:
            say(trainer, f"follows the plan it was given: {_described(job.plan)}")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A new plan if there is one, then the forward's clock."""
        if not self._active or self._job is None:
            return
        with degrading(lambda line: self._give_up(trainer, line)):
            self._adopt(trainer, self._job)
            if self._active:
                self._open_step()
                self._enter(trainer, "forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The backward's clock."""
        if self._active:
            with degrading(lambda line: self._give_up(trainer, line)):
                self._enter(trainer, "backward")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After an optimizer step: does it still match the prediction?"""
        if not self._step_open or self._meter is None or trainer.global_step == self._last_global_step:
            return
        self._last_global_step, self._step_open = trainer.global_step, False
        reading = self._meter.end()
        if self._settling:
            self._settling = False
            self._meter.drop()
        elif self.drift is not None:
            line = self.drift.add(reading.time_s, reading.energy_j, num_energy_steps=reading.num_steps)
            if line is not None:
                say(trainer, line)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation runs at the GPU's own clock; the next training step locks again."""
        if self._switcher is not None:
            self._switcher.release()
        self._settling = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Clocks that were asked for and not seen, in one line."""
        if self._switcher is not None:
            self._clock_log.add(self._switcher.take_changes())
            line = self._clock_log.take_line()
            if line is not None:
                say(trainer, line)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the clock back."""
        self._close(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the clock back."""
        self._close(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the clock back."""
        self._close(trainer)

    # what they do

    def _adopt(self, trainer: Any, job: JobStrategy) -> None:
        """Apply the optimizer's plan once it is there; a plan given to the strategy is in force from the start."""
        found = None if self._optimizer is None else self._optimizer.plan
        wanted = job.plan if found is None else found
        if wanted is None or wanted is self.plan:
            return
        if wanted is not job.applied_plan:
            try:
                job.apply_plan(wanted)
            except PlanError as error:  # a plan of ours: not the user's mistake
                self._give_up(trainer, str(error))
                return
        self.plan, self._settling = wanted, True
        self._clocks_mhz = {phase.phase: phase.frequency_mhz for phase in reversed(wanted.stages[0])}  # the first wins
        num_microbatches = 1 if job.workload is None else job.workload.num_microbatches
        if trainer.accumulate_grad_batches == num_microbatches and self._device is not None:
            self.drift = DriftWatch(
                wanted.time_s, wanted.energy_j, tolerance=self._tolerance, num_steps=self._drift_steps
            )

    def _open_step(self) -> None:
        if self._step_open or self._device is None:
            return
        if self._meter is None:
            self._meter = StepMeter(self._device)
        self._meter.begin()
        self._step_open = True

    def _enter(self, trainer: Any, phase: Phase) -> None:
        switcher, device = self._switcher, self._device
        if switcher is None or device is None or self.plan is None:
            return
        clock_mhz = self._clocks_mhz.get(phase)
        if device.can_lock_frequency:
            switcher.request(clock_mhz)
        elif clock_mhz is not None:
            self.drift = None  # what the plan predicts holds at its clocks only
        if switcher.fault is not None:
            self._give_up(trainer, switcher.fault)

    def _give_up(self, trainer: Any, line: str) -> None:
        report(trainer, f"the plan is given up, training goes on at the GPU's own clock: {line}")
        self._fault = line
        self._close(trainer)

    def _close(self, trainer: Any) -> None:
        self._active = self._step_open = False
        if self._switcher is not None:
            self._switcher.close()
            if self._switcher.fault not in (None, self._fault):
                self._fault = self._switcher.fault
                report(trainer, f"the clock may not have been given back: {self._fault}")
        if self._meter is not None:
            self._meter.close()
            self._meter = None


def _described(plan: Plan) -> str:
    """Name, clocks, modes and prediction of a plan in one line."""
    phases = [
        f"{phase.phase} {'at the running clock' if phase.frequency_mhz is None else f'{phase.frequency_mhz} MHz'}, "
        f"{'two nanobatches' if phase.nanobatched else 'sequential'}"
        for phase in (plan.forward, plan.backward)
    ]
    text = "; ".join(([plan.label] if plan.label else []) + phases)
    if plan.time_s is None or plan.energy_j is None:
        return text
    source = "EMULATED, " if plan.emulated else ""
    return f"{text} ({source}for the job it was made for: {plan.time_s:.4g} s, {plan.energy_j:.4g} J a step and GPU)"
