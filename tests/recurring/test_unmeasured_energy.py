"""Runs whose energy was not measured: none is made up, and their time still counts where it may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from energy_lightning.recurring import BatchSizeOptimizer, CostRule, JointOptimizer, RecurringError, Run, savings

REACHED = Run(run_id=1, batch_size=8, state="done", reached_target=True, energy_j=4.0, time_s=1.0)
LOST = replace(REACHED, reached_target=False, energy_j=None)


def optimizer(folder: Path, **options: float) -> BatchSizeOptimizer:
    given = {"max_power_w": 100.0, **options}
    return JointOptimizer([8, 16], default=8, store=folder / "job.sqlite", **given)  # type: ignore[arg-type]


def test_by_time_alone_no_energy_is_needed(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path, eta=0.0)
    chosen.observe(8, energy_j=None, time_s=10.0, reached_target=True)
    assert [run.energy_j for run in chosen.runs()] == [None]
    assert not chosen.should_stop(energy_j=None, time_s=20.0)
    assert chosen.should_stop(energy_j=None, time_s=20.1)
    assert chosen.beliefs()[0].cost_j > 0.0
    assert chosen.best() == 8


def test_where_energy_counts_a_run_that_reached_its_target_must_have_it(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path)
    with pytest.raises(RecurringError, match="energy_j must be a number, got None"):
        chosen.observe(8, energy_j=None, time_s=10.0, reached_target=True)
    assert chosen.runs() == []
    chosen.observe(8, energy_j=None, time_s=10.0, reached_target=False)
    assert (chosen.runs()[0].energy_j, chosen.beliefs()[0].num_runs) == (None, 1)


def test_runs_by_time_say_nothing_once_energy_counts(tmp_path: Path) -> None:
    """The least cost is that of the run whose energy is known: 0.5 x 4000 + 0.5 x 100 x 10."""
    optimizer(tmp_path, eta=0.0).observe(8, energy_j=None, time_s=1.0, reached_target=True)
    chosen = optimizer(tmp_path, eta=0.5)
    assert not chosen.should_stop(energy_j=1e6, time_s=1e6)
    assert chosen.beliefs()[0].num_runs == 0
    chosen.observe(8, energy_j=4000.0, time_s=10.0, reached_target=True)
    assert not chosen.should_stop(energy_j=4999.0, time_s=50.0)
    assert chosen.should_stop(energy_j=5001.0, time_s=50.0)


def test_the_time_of_an_unmeasured_run_is_converted_to_the_best_limit(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path, eta=0.0)
    assert isinstance(chosen, JointOptimizer)
    chosen.profile(8, [(100.0, 3.0, 1.0), (200.0, 2.0, 2.0)])
    chosen.observe(8, energy_j=None, time_s=30.0, reached_target=True, power_limit_w=100.0)  # 20 s under 200 W
    assert not chosen.should_stop(energy_j=None, time_s=39.9)
    assert chosen.should_stop(energy_j=None, time_s=40.1)


def test_savings_know_which_energies_were_measured() -> None:
    """A run that missed the target for lack of memory says nothing of energy, one that reached it must."""
    saved = savings([LOST, REACHED], 8, CostRule(eta=0.5, max_power_w=2.0))
    assert saved is not None
    assert (saved.energy_j, saved.time_s, saved.cost_j) == (4.0, 2.0, 1.0 + 3.0)
    saved = savings([REACHED, replace(REACHED, energy_j=None)], 8, CostRule(eta=0.0, max_power_w=2.0))
    assert saved is not None
    assert (saved.energy_j, saved.num_recurrences, saved.cost_j) == (None, 2, 4.0)
    assert savings([], 8, CostRule(eta=0.5, max_power_w=2.0)) is None
