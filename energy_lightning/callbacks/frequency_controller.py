"""FrequencyController: puts the plan into force step by step, and gives the hardware back."""

from __future__ import annotations

from typing import Any

from energy_lightning.callbacks.drift import DriftWatch
from energy_lightning.callbacks.energy_monitor import EnergyMonitorMixin
from energy_lightning.callbacks.frontier_optimizer import FrontierOptimizerMixin
from energy_lightning.callbacks.job import FAILURES, JobStrategy, fault_line, find_callback, job_of, report, say
from energy_lightning.callbacks.observed import ClockLog
from energy_lightning.callbacks.step_meter import StepMeter
from energy_lightning.device import Device, FrequencySwitcher
from energy_lightning.types import EnergyLightningError, Plan, PlanError

_NOT_LOOKED_AT = object()


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
        self._device: Device | None = None  # None: nothing to control, or no more
        self._outcome: object = _NOT_LOOKED_AT  # the optimizer's, at the last step
        self._switcher: FrequencySwitcher | None = None
        self._following: FrequencySwitcher | None = None  # the switcher where the plan's clocks are followed
        self._forward_mhz: int | None = None  # the plan's
        self._backward_mhz: int | None = None
        self._clock_log = ClockLog()
        self._fault: str | None = None  # the last one told
        self._told_of_dwell = False
        self._meter: StepMeter | None = None  # where the plan predicts what a step takes
        self._step_open, self._last_global_step = False, 0
        self._settling = False  # the coming step holds a change of the clock that the plan does not predict
        self._sweep: Any = None  # a callback that tries power limits, none of which the plan knows
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
        self._sweep = next((callback for callback in trainer.callbacks if hasattr(callback, "sweeping")), None)
        self._device = None if job is None else job.device
        self.plan = self.drift = self._switcher = self._following = self._fault = None
        self._outcome, self._clock_log, self._told_of_dwell = _NOT_LOOKED_AT, ClockLog(), False
        self._close_meter()
        if self._device is not None:
            self._switcher = FrequencySwitcher(self._device, min_dwell_s=self._min_dwell_s)
            told = not self._device.virtual_clock and find_callback(trainer, EnergyMonitorMixin) is not None
            if not self._device.can_lock_frequency and not told:
                say(trainer, f"no permission to set the clock of {self._device.name}: plans run without it")
        if job is not None and job.plan is not None:
            say(trainer, f"follows the plan it was given: {_described(job.plan)}")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A new plan if there is one, then the forward's clock."""
        device = self._device
        if device is None:
            return
        try:
            outcome = None if self._optimizer is None else self._optimizer.outcome
            if outcome is not self._outcome:
                self._outcome = outcome
                self._adopt(trainer, device)
            if self._meter is not None and not self._step_open:
                self._meter.begin()
                self._step_open = True
            switcher = self._following
            if switcher is not None and (
                switcher.requested_mhz != self._forward_mhz or switcher.refused or switcher.fault is not None
            ):
                self._request(trainer, switcher, self._forward_mhz)
        except FAILURES as error:
            self._give_up(trainer, fault_line(error))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The backward's clock."""
        switcher = self._following
        if switcher is not None and switcher.requested_mhz != self._backward_mhz:
            try:
                self._request(trainer, switcher, self._backward_mhz)
            except FAILURES as error:
                self._give_up(trainer, fault_line(error))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After an optimizer step: does it still match the prediction?"""
        if not self._step_open or self._meter is None:
            return
        global_step = trainer.global_step  # Lightning takes seven calls to tell
        if global_step == self._last_global_step:
            return
        self._last_global_step, self._step_open = global_step, False
        try:
            time_s, stretch = self._meter.end()
            if self._settling or (self._sweep is not None and self._sweep.sweeping):
                self._settling = False
                self._meter.drop()
            elif self.drift is not None:
                line = self.drift.add(time_s, stretch)
                if line is not None:
                    say(trainer, line)
        except FAILURES as error:
            self._give_up(trainer, fault_line(error))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation runs at the GPU's own clock; the next training step locks again."""
        if self._switcher is not None:
            self._switcher.release()
        self._settling = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Clocks that were asked for and not seen, in one line; once, that the dwell left most changes out."""
        if self._switcher is not None:
            self._clock_log.add(self._switcher.take_changes())
            line = self._clock_log.take_line()
            if line is not None:
                say(trainer, line)
            if not self._told_of_dwell and self.num_skipped > self.num_switches:
                self._told_of_dwell = True
                say(
                    trainer,
                    f"{self.num_skipped} changes of the clock that the plan asks for were left out, "
                    f"{self.num_switches} made: phases are shorter than min_dwell_s={self._min_dwell_s:g}",
                )

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

    def _adopt(self, trainer: Any, device: Device) -> None:
        """Apply the optimizer's plan once it is there; a plan given to the strategy is in force from the start."""
        assert self._job is not None, "it has the device"
        job, found = self._job, None if self._optimizer is None else self._optimizer.plan
        wanted = job.plan if found is None else found
        if wanted is None or wanted is self.plan:
            return
        if wanted is not job.applied_plan:
            try:
                job.apply_plan(wanted)
            except PlanError as error:  # a plan of ours: not the user's mistake
                self._give_up(trainer, str(error))
                return
        self.plan, self._settling, self._last_global_step = wanted, True, trainer.global_step
        clocks_mhz = {phase.phase: phase.frequency_mhz for phase in reversed(wanted.stages[0])}  # the first wins
        self._forward_mhz, self._backward_mhz = clocks_mhz.get("forward"), clocks_mhz.get("backward")
        self._following = self._switcher
        self._watch(trainer, job, device)
        if not device.can_lock_frequency:
            self._lose_clocks()

    def _watch(self, trainer: Any, job: JobStrategy, device: Device) -> None:
        """Time steps where the plan predicts what they take."""
        self._stop_watching()
        assert self.plan is not None, "it has just been adopted"
        time_s, energy_j = self.plan.time_s, self.plan.energy_j
        num_microbatches = 1 if job.workload is None else job.workload.num_microbatches
        if trainer.accumulate_grad_batches == num_microbatches and not (time_s is None and energy_j is None):
            self._meter = StepMeter(device)
            self.drift = DriftWatch(time_s, energy_j, tolerance=self._tolerance, num_steps=self._drift_steps)

    def _request(self, trainer: Any, switcher: FrequencySwitcher, clock_mhz: int | None) -> None:
        if not switcher.refused:
            switcher.request(clock_mhz)
        if switcher.fault is not None:
            self._give_up(trainer, switcher.fault)
        elif switcher.refused:
            self._lose_clocks()

    def _lose_clocks(self) -> None:
        """They may not be set (any more): what the plan predicts holds at its clocks only."""
        self._following = None
        if self._forward_mhz is not None or self._backward_mhz is not None:
            self._stop_watching()

    def _stop_watching(self) -> None:
        self.drift = None
        self._close_meter()

    def _give_up(self, trainer: Any, line: str) -> None:
        report(trainer, f"the plan is given up, training goes on at the GPU's own clock: {line}")
        self._fault = line
        self._close(trainer)

    def _close(self, trainer: Any) -> None:
        self._device = self._following = None
        if self._switcher is not None:
            self._switcher.close()
            if self._switcher.fault not in (None, self._fault):
                self._fault = self._switcher.fault
                report(trainer, f"the clock may not have been given back: {self._fault}")
        self._close_meter()

    def _close_meter(self) -> None:
        self._step_open = False
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
