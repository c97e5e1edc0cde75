"""What a normal step of training costs in the callbacks: calls, readings, waiting; and that nothing is missed."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from fake_trainer import WORKLOAD, EnergyMonitor, FakeStrategy, FakeTrainer, FrequencyController, FrontierOptimizer

from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import DeviceError, PhasePlan, Plan

PREDICTED = {"time_s": 1.1, "energy_j": 250.0}
ONE_CLOCK = Plan.sequential(1200)
TWO_CLOCKS = Plan.single_stage(PhasePlan("forward", 1200), PhasePlan("backward", 900), **PREDICTED)


class Board(ScriptedDevice):
    """Steps of 1.1 s; its clock is changed by the switcher's thread, as a real GPU's is."""

    virtual_clock = False

    def run_phase(self, phase_plan: PhasePlan) -> None:
        self.work(0.5)

    def run_iteration_end(self, phase_plan: PhasePlan) -> None:
        self.work(0.1)


def trainer_of(folder: Path, device: Board, plan: Plan | None, *others: Any, **options: Any) -> FakeTrainer:
    strategy = FakeStrategy(folder, workload=WORKLOAD.with_sizes(num_microbatches=options.get("accumulate", 1)))
    strategy.device, strategy.plan = device, plan
    controller = FrequencyController(min_dwell_s=0.0, drift_steps=2)
    return FakeTrainer(strategy, [EnergyMonitor(), *others, controller], **options)


def calls_of(trainer: FakeTrainer, hook: str, *arguments: Any) -> Counter[str]:
    """Python functions called in this thread while the callbacks' methods of this name run, by name."""
    methods = [method for callback in trainer.callbacks if (method := getattr(callback, hook, None)) is not None]
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1

    before = sys.getprofile()
    for method in methods:
        sys.setprofile(note)
        try:
            method(trainer, trainer.lightning_module, *arguments)
        finally:
            sys.setprofile(before)
    return calls


@pytest.mark.parametrize(
    ("plan", "most"),
    [(TWO_CLOCKS, 17), (Plan.sequential(**PREDICTED), 11), (Plan.sequential(), 5)],
    ids=["two clocks", "no clocks", "no prediction"],
)
def test_a_step_between_readings_takes_few_calls_and_asks_nothing_of_the_driver(
    tmp_path: Path, plan: Plan, most: int
) -> None:
    trainer = trainer_of(tmp_path, Board(refresh_s=1000.0), plan)
    device, calls = trainer.strategy.device, Counter[str]()
    trainer.call("on_train_start")
    for _ in range(3):
        trainer.batch(0, steps=True)
        device.work(0.5)  # data that comes late
    calls += calls_of(trainer, "on_train_batch_start", None, 0)
    device.work(0.5)
    calls += calls_of(trainer, "on_before_backward", None)
    device.work(0.6)
    trainer.global_step += 1
    calls += calls_of(trainer, "on_train_batch_end", None, None, 0)
    trainer.call("teardown", "fit")
    readings = {"energy_j", "power_w", "temperature_c", "frequency_mhz", "synchronize", "lock_frequency", "log_dict"}
    assert not readings & calls.keys()
    assert 4 <= calls.total() <= most, calls


@pytest.mark.parametrize(
    ("refresh_s", "pause_s", "seen"), [(1.0, 0.0, True), (1.0, 0.01, True), (1.0, 0.1, False), (0.0, 0.1, True)]
)
def test_energy_of_steps_that_wait_for_their_data_is_not_held_against_the_plan(
    tmp_path: Path, refresh_s: float, pause_s: float, seen: bool
) -> None:
    trainer = trainer_of(tmp_path, Board(power_w=lambda _: 200.0, refresh_s=refresh_s), TWO_CLOCKS)
    trainer.call("on_train_start")
    for _ in range(60):
        trainer.batch(0, steps=True)
        trainer.strategy.device.work(pause_s)
    trainer.call("teardown", "fit")
    ratios = trainer.callbacks[-1].drift.ratios
    assert ratios["time"] == pytest.approx(1.0)
    assert ("energy" in ratios) == seen
    assert ratios.get("energy", 0.88) == pytest.approx(0.88, rel=0.1)  # 220 of 250 J


def test_a_plan_found_while_training_is_timed_from_whole_steps(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Board(), None, FrontierOptimizer(), accumulate=2)
    trainer.call("on_train_start")
    for step in range(8):
        if step == 3:
            trainer.callbacks[1].outcome = SimpleNamespace(plan=TWO_CLOCKS.with_prediction(2.1, 400.0, emulated=False))
        for microbatch in range(2):
            trainer.batch(microbatch, steps=microbatch == 1)
            assert trainer.callbacks[2].drift is None or trainer.callbacks[2].drift.ratios.get("time", 1.0) == (
                pytest.approx(1.0)
            )
    trainer.call("teardown", "fit")
    assert trainer.callbacks[2].plan is trainer.strategy.applied_plan is not None
    assert trainer.callbacks[2].drift.ratios["time"] == pytest.approx(1.0)


def test_a_clock_that_fails_after_it_was_asked_for_is_noticed_though_no_other_is_asked_for(tmp_path: Path) -> None:
    class Failing(Board):
        def lock_frequency(self, frequency_mhz: int) -> None:
            raise DeviceError("the GPU fell off the bus")

    trainer = trainer_of(tmp_path, Failing(), ONE_CLOCK)
    trainer.call("on_train_start")
    until_s = time.perf_counter() + 5.0
    while not (told := [line for line in trainer.lightning_module.lines if "given up" in line]):
        assert time.perf_counter() < until_s, "nobody noticed"
        trainer.batch(0, steps=True)
        time.sleep(0.001)
    trainer.call("teardown", "fit")
    assert len(told) == 1
    assert "the GPU fell off the bus" in told[0]
