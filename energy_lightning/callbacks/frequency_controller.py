"""FrequencyController: puts the plan into force step by step, and gives the hardware back."""

from __future__ import annotations

from typing import Any

from energy_lightning.callbacks.drift import DriftWatch
from energy_lightning.callbacks.frontier_optimizer import FrontierOptimizerMixin
from energy_lightning.callbacks.job import JobStrategy, degrading, find_callback, job_of, say
from energy_lightning.device import Device
from energy_lightning.measure import EnergyMeter
from energy_lightning.types import EnergyLightningError, Phase, Plan, PlanError


class FrequencyControllerMixin:
    """Applies the plan: schedules to the engine, the forward's clock before forward, the backward's before backward.

    The clock is set on change only, never twice within the dwell, and given back in validation, on exceptions and at
    the end. Steps that drift from the plan's prediction are reported in one line.

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
        self._device: Device | None = None
        self._meter: EnergyMeter | None = None
        self._locked_mhz: int | None = None
        self._changed_at_s = float("-inf")
        self._active, self._step_open, self._last_global_step = False, False, 0
        self._settling = False  # the coming step holds a change of the clock that the plan does not predict
        self.drift: DriftWatch | None = None
        self.plan: Plan | None = None
        """The plan in force, None before there is one."""
        self.num_switches = self.num_skipped = 0

    # Lightning's hooks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the device."""
        job = job_of(trainer)
        self._device = None if job is None else job.device
        self._active, self.plan, self.drift = self._device is not None, None, None
        self._locked_mhz, self._step_open, self._last_global_step = None, False, trainer.global_step
        if self._device is not None and not self._device.can_lock_frequency:
            say(trainer, f"no permission to set the clock of {self._device.name}: plans run without it")
        if job is not None and job.plan is not None:
            say(trainer, f"follows the plan it was given: {_described(job.plan)}")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A new plan if there is one, then the forward's clock."""
        job = job_of(trainer)
        if not self._active or job is None:
            return
        with degrading(lambda line: self._give_up(trainer, line)):
            self._adopt(trainer, job)
            if self._active:
                self._open_step()
                self._enter("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The backward's clock."""
        if self._active:
            with degrading(lambda line: self._give_up(trainer, line)):
                self._enter("backward")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After an optimizer step: does it still match the prediction?"""
        if not self._step_open or self._meter is None or trainer.global_step == self._last_global_step:
            return
        self._last_global_step, self._step_open = trainer.global_step, False
        reading, settling, self._settling = self._meter.lap(), self._settling, False
        line = None if self.drift is None or settling else self.drift.add(reading.time_s, reading.energy_j)
        if line is not None:
            say(trainer, line)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation runs at the GPU's own clock; the next training step locks again."""
        self._release()
        self._settling, self._changed_at_s = True, float("-inf")  # no dwell: validation is one

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the clock back."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the clock back."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the clock back."""
        self._close()

    # what they do

    def _adopt(self, trainer: Any, job: JobStrategy) -> None:
        """Apply the optimizer's plan once it is there; a plan given to the strategy is in force from the start."""
        optimizer = find_callback(trainer, FrontierOptimizerMixin)
        wanted = job.plan if optimizer is None or optimizer.plan is None else optimizer.plan
        if wanted is None or wanted is self.plan:
            return
        if wanted is not job.applied_plan:
            try:
                job.apply_plan(wanted)
            except PlanError as error:  # a plan of ours: not the user's mistake
                self._give_up(trainer, str(error))
                return
        self.plan, self._settling = wanted, True
        num_microbatches = 1 if job.workload is None else job.workload.num_microbatches
        if trainer.accumulate_grad_batches == num_microbatches and self._device is not None:
            self.drift = DriftWatch(
                wanted.time_s, wanted.energy_j, tolerance=self._tolerance, num_steps=self._drift_steps
            )

    def _open_step(self) -> None:
        if self._step_open or self._device is None:
            return
        if self._meter is None:
            self._meter = EnergyMeter(self._device)
        self._meter.start()
        self._step_open = True

    def _enter(self, phase: Phase) -> None:
        device, plan = self._device, self.plan
        if device is None or plan is None or not device.can_lock_frequency:
            return
        frequency_mhz = next((found.frequency_mhz for found in plan.stages[0] if found.phase == phase), None)
        if frequency_mhz == self._locked_mhz:
            return
        if device.now_s() - self._changed_at_s < self._min_dwell_s:
            self.num_skipped += 1
            return
        if frequency_mhz is None:
            self._release()
            return
        device.lock_frequency(frequency_mhz)
        self._note_change(device, frequency_mhz)

    def _release(self) -> None:
        """Idempotent: only what we locked is given back."""
        if self._device is not None and self._locked_mhz is not None:
            self._device.reset_frequency()
            self._note_change(self._device, None)

    def _note_change(self, device: Device, frequency_mhz: int | None) -> None:
        self._locked_mhz, self._changed_at_s = frequency_mhz, device.now_s()
        self.num_switches += 1

    def _give_up(self, trainer: Any, line: str) -> None:
        say(trainer, f"the plan is given up, training goes on at the GPU's own clock: {line}")
        self._close()

    def _close(self) -> None:
        self._active = self._step_open = False
        self._release()
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
