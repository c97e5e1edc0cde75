"""Where clocks may not be set: at the start, in the middle of profiling, in the middle of training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_trainer import FakeStrategy, FakeTrainer, RefusingDevice, all_callbacks

from energy_lightning.measure import load_plan
from energy_lightning.types import Plan


def run_refusing(folder: Path, num_permitted: int, plan: Plan | None = None) -> FakeTrainer:
    strategy = FakeStrategy(folder)
    strategy.device = RefusingDevice(num_permitted)
    if plan is not None:
        strategy.plan = strategy.applied_plan = plan
    trainer = FakeTrainer(strategy, all_callbacks())
    trainer.fit()
    return trainer


def lines_of(trainer: FakeTrainer, word: str) -> list[str]:
    return [line for line in trainer.lightning_module.lines if word in line]


@pytest.mark.parametrize("num_permitted", [0, 25, 60])
def test_schedules_are_optimised_at_the_running_clock(tmp_path: Path, num_permitted: int) -> None:
    trainer = run_refusing(tmp_path, num_permitted)
    optimizer = trainer.callbacks[2]
    plan = load_plan(tmp_path / "plan.yaml")
    assert plan == optimizer.plan == trainer.strategy.applied_plan
    assert plan.forward.frequency_mhz is plan.backward.frequency_mhz is None
    assert plan.energy_j == min(point.energy_j for point in optimizer.references.values())
    rows = [json.loads(line) for line in (tmp_path / "measurements.jsonl").read_text().splitlines()]
    running = [row for row in rows if row["key"] == rows[-1]["key"]]
    assert {row["config"]["frequency_mhz"] for row in running} == {1410}
    assert len({row["config"].get("sm_count") for row in running}) > 5
    assert trainer.global_step == 20
    assert len(lines_of(trainer, "may not be set any more")) == (num_permitted > 0)
    assert "clock: running" in (tmp_path / "plan.yaml").read_text()
    assert not lines_of(trainer, "profiling stopped") + lines_of(trainer, "drifted")


def test_what_was_measured_at_locked_clocks_is_kept_apart_from_the_running_clock(tmp_path: Path) -> None:
    first, second, third = (run_refusing(tmp_path, num_permitted) for num_permitted in (10**6, 0, 0))
    assert first.callbacks[1].num_measured > second.callbacks[1].num_measured > 0
    assert third.callbacks[1].num_measured == 0
    assert third.callbacks[2].plan == second.callbacks[2].plan
    assert first.callbacks[2].plan.forward.frequency_mhz is not None


def test_a_permission_lost_while_training_leaves_the_schedules_in_force(tmp_path: Path) -> None:
    trainer = run_refusing(tmp_path, 3, Plan.sequential(1200).with_prediction(1e-3, 1.0, emulated=True))
    assert trainer.forward_mhz == [1200] * 20  # one lock; the clock asked for never changes
    trainer = run_refusing(tmp_path, 1, _two_clocks())
    assert trainer.global_step == 20
    assert trainer.callbacks[3].plan == trainer.strategy.applied_plan
    assert trainer.callbacks[3].drift is None
    assert not lines_of(trainer, "drifted") + lines_of(trainer, "given up")


def _two_clocks() -> Plan:
    plan, other = Plan.sequential(1200), Plan.sequential(1410)
    return Plan.single_stage(plan.forward, other.backward).with_prediction(1e-3, 1.0, emulated=True)
