"""The clock: on change only, with a dwell, and always given back."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_trainer import WORKLOAD, FakeStrategy, FakeTrainer, FrequencyController

from energy_lightning.callbacks.drift import DriftWatch
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import DeviceError, EnergyLightningError, PhasePlan, Plan


class Scripted(ScriptedDevice):
    """Phases of a fixed length."""

    def __init__(self, *, phase_s: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self._phase_s = phase_s

    def run_phase(self, phase_plan: PhasePlan) -> None:
        self.work(self._phase_s)

    def run_iteration_end(self, phase_plan: PhasePlan) -> None:
        self.work(0.1)


def run_with(plan: Plan | None, tmp_path: Path, device: Scripted, **options: Any) -> FakeTrainer:
    strategy = FakeStrategy(tmp_path, workload=WORKLOAD)
    strategy.device, strategy.plan = device, plan
    if plan is not None:
        strategy.applied_plan = plan
    return FakeTrainer(strategy, [FrequencyController(**options)], max_steps=3)


TWO_CLOCKS = Plan.single_stage(PhasePlan("forward", 1200), PhasePlan("backward", 900))


def locks(device: Scripted) -> list[float]:
    return [value for name, value in device.calls if name == "lock"]


def test_each_phase_runs_at_its_own_clock(tmp_path: Path) -> None:
    trainer = run_with(TWO_CLOCKS, tmp_path, Scripted())
    trainer.fit()
    assert trainer.forward_mhz == [1200, 1200, 1200]
    assert trainer.backward_mhz == [900, 900, 900]


def test_one_clock_for_both_phases_is_set_once(tmp_path: Path) -> None:
    device = Scripted()
    trainer = run_with(Plan.sequential(1200), tmp_path, device)
    trainer.fit()
    assert locks(device) == [1200]
    assert device.calls[-1] == ("reset", 0)


def test_phases_shorter_than_the_dwell_do_not_switch(tmp_path: Path) -> None:
    device = Scripted(phase_s=0.001)
    trainer = run_with(TWO_CLOCKS, tmp_path, device, min_dwell_s=10.0)
    trainer.fit()
    trainer.call("on_train_epoch_end")
    assert locks(device) == [1200]
    assert trainer.callbacks[0].num_skipped == 3
    (line,) = [line for line in trainer.lightning_module.lines if "min_dwell_s" in line]
    assert "3 changes of the clock that the plan asks for were left out, 1 made" in line


def test_the_clock_is_free_in_validation_and_locked_again_after(tmp_path: Path) -> None:
    device = Scripted()
    trainer = run_with(Plan.sequential(900), tmp_path, device)
    trainer.call("on_train_start")
    trainer.batch(0, steps=True)
    trainer.call("on_validation_start")
    assert device.frequency_mhz() == 1410
    trainer.call("on_validation_end")
    trainer.batch(0, steps=True)
    assert device.frequency_mhz() == 900


@pytest.mark.parametrize("hook", ["on_exception", "teardown", "on_train_end"])
def test_the_clock_comes_back_on_every_exit_and_once(tmp_path: Path, hook: str) -> None:
    device = Scripted()
    trainer = run_with(Plan.sequential(900), tmp_path, device)
    trainer.call("on_train_start")
    trainer.batch(0, steps=True)
    arguments = {"on_exception": [KeyboardInterrupt()], "teardown": ["fit"]}.get(hook, [])
    trainer.call(hook, *arguments)
    trainer.call(hook, *arguments)
    assert device.frequency_mhz() == 1410
    assert device.calls.count(("reset", 0)) == 1


def test_a_clock_that_was_never_locked_is_not_touched(tmp_path: Path) -> None:
    device = Scripted()
    run_with(None, tmp_path, device).fit()
    assert not device.calls


def test_a_plan_without_clocks_leaves_them_alone(tmp_path: Path) -> None:
    device = Scripted()
    run_with(Plan.sequential(), tmp_path, device).fit()
    assert not device.calls


def test_without_permission_plans_run_without_clocks_and_one_line_says_so(tmp_path: Path) -> None:
    device = Scripted()
    device.can_lock_frequency = False
    trainer = run_with(TWO_CLOCKS, tmp_path, device)
    trainer.fit()
    assert not device.calls
    assert len([line for line in trainer.lightning_module.lines if "no permission" in line]) == 1


def test_a_plan_that_was_given_is_named_with_its_prediction(tmp_path: Path) -> None:
    plan = Plan.single_stage(PhasePlan("forward", 900, True), PhasePlan("backward"), label="kareus")
    trainer = run_with(plan.with_prediction(0.5, 100.0, emulated=True), tmp_path, Scripted())
    trainer.fit()
    (line,) = [line for line in trainer.lightning_module.lines if "given" in line and "up" not in line]
    assert "kareus; forward 900 MHz, two nanobatches; backward at the running clock, sequential" in line
    assert "EMULATED, for the job it was made for: 0.5 s, 100 J" in line


def test_a_clock_that_cannot_be_set_ends_control_in_one_line(tmp_path: Path) -> None:
    device = Scripted(frequencies_mhz=(900, 1410))
    trainer = run_with(Plan.single_stage(PhasePlan("forward", 900), PhasePlan("backward", 1200)), tmp_path, device)
    trainer.fit()
    assert trainer.global_step == 3
    assert device.frequency_mhz() == 1410
    (line,) = [line for line in trainer.lightning_module.lines if "given up" in line]
    assert "1200 MHz" in line
    with pytest.raises(DeviceError):
        device.lock_frequency(1200)


def test_steps_far_from_the_prediction_are_reported_once(tmp_path: Path) -> None:
    plan = Plan.sequential(1200).with_prediction(0.5, 100.0, emulated=False)
    trainer = run_with(plan, tmp_path, Scripted(), drift_steps=2)
    trainer.estimated_stepping_batches = 10
    trainer.fit()
    (line,) = [line for line in trainer.lightning_module.lines if "drifted" in line]
    assert "time 1.1 s" in line
    assert "+120.0%" in line


@pytest.mark.parametrize("refresh_s", [0.0, 0.5], ids=["each step is read", "slow counter"])
def test_changes_of_the_clock_for_a_new_plan_and_after_validation_are_no_drift(
    tmp_path: Path, refresh_s: float
) -> None:
    class SlowToSwitch(Scripted):
        def lock_frequency(self, frequency_mhz: int) -> None:
            self.work(2.0)
            super().lock_frequency(frequency_mhz)

    plan = Plan.sequential(1200).with_prediction(1.1, 242.0, emulated=False)
    trainer = run_with(plan, tmp_path, SlowToSwitch(refresh_s=refresh_s), drift_steps=2, min_dwell_s=1.5)
    trainer.fit(num_steps=24, validate_every=12)
    assert not [line for line in trainer.lightning_module.lines if "drifted" in line]
    assert trainer.forward_mhz == [1200] * 24
    assert trainer.callbacks[0].drift.ratios == {"time": pytest.approx(1.0), "energy": pytest.approx(1.0, abs=0.1)}


def test_steps_of_another_number_of_microbatches_are_not_held_against_the_plan(tmp_path: Path) -> None:
    plan = Plan.sequential(1200).with_prediction(1.1, 242.0, emulated=False)
    trainer = run_with(plan, tmp_path, Scripted(), drift_steps=2)
    trainer.accumulate_grad_batches = WORKLOAD.num_microbatches + 1
    trainer.fit()
    assert trainer.callbacks[0].drift is None
    assert trainer.callbacks[0].plan == plan


def test_steps_under_limits_that_are_being_tried_are_no_drift(tmp_path: Path) -> None:
    plan = Plan.sequential(1200).with_prediction(0.5, 100.0, emulated=False)
    trainer = run_with(plan, tmp_path, Scripted(), drift_steps=2)
    sweep = SimpleNamespace(sweeping=True)
    trainer.callbacks.append(sweep)
    trainer.call("on_train_start")
    for sweep.sweeping, num_lines in ((True, 0), (False, 1)):
        for _ in range(5):
            trainer.batch(0, steps=True)
        assert len([line for line in trainer.lightning_module.lines if "drifted" in line]) == num_lines


@pytest.mark.parametrize(
    ("times_s", "speaks_at"),
    [([1.0] * 9, None), ([1.3] * 9, 2), ([1.0, 1.0, 1.3, 1.3, 1.3], 3), ([1.09] * 9, None), ([0.8] * 4, 2)],
)
def test_drift_is_the_mean_of_recent_steps_leaving_the_tolerance(times_s: list[float], speaks_at: int | None) -> None:
    watch = DriftWatch(1.0, None, tolerance=0.15, num_steps=3)
    lines = [watch.add(time_s, None) for time_s in times_s]
    said = [i for i, line in enumerate(lines) if line is not None]
    assert said == ([] if speaks_at is None else [speaks_at])


def test_clocks_that_were_not_had_are_one_line_an_epoch_with_the_reason(tmp_path: Path) -> None:
    device = Scripted(clock_cap_mhz=1000)
    trainer = run_with(TWO_CLOCKS, tmp_path, device)
    trainer.fit(num_steps=5)
    (line,) = [line for line in trainer.lightning_module.lines if "not had" in line]
    assert "asked 1200 MHz, seen 1000 MHz 5 times (sw_power_cap)" in line
    assert "900" not in line
    trainer.lightning_module.lines.clear()
    device = Scripted()
    trainer = run_with(TWO_CLOCKS, tmp_path, device)
    trainer.fit()
    assert not [line for line in trainer.lightning_module.lines if "not had" in line]


def test_drift_of_energy_is_judged_over_stretches_that_a_slow_counter_can_tell(tmp_path: Path) -> None:
    device = Scripted(power_w=lambda _: 200.0, refresh_s=3.3)  # a single step of 1.1 s reads 0 J or three steps' worth
    plan = Plan.sequential(1200).with_prediction(1.1, 220.0, emulated=False)
    trainer = run_with(plan, tmp_path, device, drift_steps=20)
    trainer.fit(num_steps=200)
    assert not [line for line in trainer.lightning_module.lines if "drifted" in line]
    assert trainer.callbacks[0].drift.ratios["energy"] == pytest.approx(1.0, abs=0.1)
    trainer = run_with(plan, tmp_path, Scripted(power_w=lambda _: 300.0, refresh_s=3.3), drift_steps=20)
    trainer.fit(num_steps=200)
    (line,) = [line for line in trainer.lightning_module.lines if "drifted" in line]
    assert "energy 3" in line


def test_a_pause_between_steps_is_not_part_of_them(tmp_path: Path) -> None:
    device = Scripted(power_w=lambda _: 200.0, refresh_s=0.5)
    plan = Plan.sequential(1200).with_prediction(1.1, 220.0, emulated=False)
    trainer = run_with(plan, tmp_path, device, drift_steps=5)
    trainer.call("on_train_start")
    for step in range(100):
        trainer.batch(0, steps=True)
        if step % 25 == 24:
            device.work(1000.0)  # data that came late
    assert not [line for line in trainer.lightning_module.lines if "drifted" in line]
    assert trainer.callbacks[0].drift.ratios == {"time": pytest.approx(1.0), "energy": pytest.approx(1.0, abs=0.1)}


@pytest.mark.parametrize("bad", [{"min_dwell_s": -1.0}, {"drift_tolerance": 0.0}, {"drift_steps": 0}])
def test_impossible_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(EnergyLightningError, match="need"):
        FrequencyController(**bad)
