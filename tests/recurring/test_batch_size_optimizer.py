"""The batch-size optimizer: what it suggests, when it stops a run, what it refuses."""

from __future__ import annotations

import sqlite3
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from energy_lightning.recurring import (
    POLICIES,
    BatchSizeOptimizer,
    RecurringError,
    StoreError,
    TargetNeverReachedError,
    TargetNeverReachedWarning,
    rows,
)
from energy_lightning.recurring import learned as learned_policy
from energy_lightning.recurring.runs import Outcome, View

ARMS = [8, 16, 32, 64, 128]
COST_J = {8: 240.0, 16: 130.0, 32: 100.0, 64: 150.0, 128: 260.0}


def optimizer(path: Path, **settings: object) -> BatchSizeOptimizer:
    arguments = {"default": 64, "max_power_w": 100.0, "eta": 1.0, "store": path / "job.sqlite"} | settings
    return BatchSizeOptimizer(ARMS, **arguments)  # type: ignore[arg-type]


def run(chosen: BatchSizeOptimizer, rounds: int, cost_j: dict[int, float], noise: float = 0.0) -> list[int]:
    """Suggest and observe; energy is the cost as eta is 1. Stopped past beta like a real job."""
    rng, sizes = np.random.default_rng(3), []
    for _ in range(rounds):
        size = chosen.suggest()
        energy_j = cost_j[size] * float(np.exp(noise * rng.normal()))
        stopped = chosen.should_stop(energy_j=energy_j, time_s=1.0)
        chosen.observe(size, energy_j=energy_j, time_s=1.0, reached_target=not stopped)
        sizes.append(size)
    return sizes


@pytest.mark.parametrize("policy", POLICIES)
def test_settles_on_the_cheapest_size(policy: str, tmp_path: Path) -> None:
    chosen = optimizer(tmp_path, policy=policy)
    sizes = run(chosen, 60, COST_J, noise=0.05)
    assert sizes[0] == 64
    assert chosen.best() == 32
    assert Counter(sizes[-20:])[32] >= 16


def test_published_pruning_walks_down_then_up_twice(tmp_path: Path) -> None:
    """64, down to 8 (stopped: 240 > 2 x 100), then up to 128 (stopped); again from the cheapest, without the two."""
    sizes = run(optimizer(tmp_path, policy="published"), 8, COST_J)
    assert sizes == [64, 32, 16, 8, 128, 32, 16, 64]


def test_learned_policy_explores_no_more_than_the_published(tmp_path: Path) -> None:
    spent = {}
    for policy in POLICIES:
        folder = tmp_path / policy
        folder.mkdir()
        spent[policy] = sum(COST_J[size] for size in run(optimizer(folder, policy=policy), 10, COST_J))
    assert spent["learned"] < spent["published"]


@pytest.mark.parametrize("policy", POLICIES)
def test_same_seed_and_runs_give_the_same_suggestions(policy: str, tmp_path: Path) -> None:
    sizes = []
    for name in "ab":
        (tmp_path / name).mkdir()
        sizes.append(run(optimizer(tmp_path / name, policy=policy, seed=5), 25, COST_J, noise=0.1))
    assert sizes[0] == sizes[1]


def test_stops_past_beta_times_the_least_cost(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path, eta=0.5, beta=1.5)
    assert not chosen.should_stop(energy_j=1e9, time_s=1e9)  # nothing to compare with yet
    chosen.observe(64, energy_j=100.0, time_s=1.0, reached_target=True)  # 0.5 x 100 + 0.5 x 100 x 1 = 100
    chosen.observe(32, energy_j=1.0, time_s=0.01, reached_target=False)  # cheap, but did not reach the target
    assert not chosen.should_stop(energy_j=150.0, time_s=1.5)
    assert chosen.should_stop(energy_j=150.1, time_s=1.5)


@pytest.mark.parametrize(("window", "seed"), [(None, 0), (None, 1), (5, 0), (5, 1), (8, 2)])
def test_the_least_cost_needs_no_look_at_every_run(
    window: int | None, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is stopped just past beta x the least cost of recent runs of its sizes that reached the target."""
    rng, wide = np.random.default_rng(seed), optimizer(tmp_path, eta=0.5)
    costs = []
    for _ in range(30):
        size, energy_j, time_s = int(rng.choice(ARMS)), float(rng.uniform(1.0, 9.0)), float(rng.uniform(0.01, 0.1))
        reached = bool(rng.random() < 0.7)
        wide.observe(size, energy_j=energy_j if reached else None, time_s=time_s, reached_target=reached)
        if size != 128:
            costs.append((reached, 0.5 * energy_j + 0.5 * 100.0 * time_s))
    wide.suggest()  # one that runs
    least = min(cost for reached, cost in costs[-window if window else 0 :] if reached)
    narrow = BatchSizeOptimizer(
        ARMS[:-1], default=64, max_power_w=100.0, eta=0.5, beta=2.0, window=window, store=tmp_path / "job.sqlite"
    )
    monkeypatch.delattr(rows, "read")
    assert not narrow.should_stop(energy_j=4.0 * least - 1.0, time_s=(1.0 - 1e-6) / 100.0)
    assert narrow.should_stop(energy_j=4.0 * least - 1.0, time_s=(1.0 + 1e-6) / 100.0)


@pytest.mark.parametrize("value", ["'a word'", "-1.0", "9e999", "x'01'"])
@pytest.mark.parametrize("column", ["energy_j", "time_s"])
def test_a_damaged_figure_is_named_and_is_no_least_cost(column: str, value: str, tmp_path: Path) -> None:
    chosen = optimizer(tmp_path)
    chosen.observe(64, energy_j=5.0, time_s=1.0, reached_target=True)
    with sqlite3.connect(tmp_path / "job.sqlite") as connection:
        connection.execute(f"UPDATE runs SET {column} = {value}")
    with pytest.raises(StoreError, match="run 1 in the store holds"):
        chosen.should_stop(energy_j=1e9, time_s=1.0)


def test_jobs_that_start_together_try_different_new_sizes(tmp_path: Path) -> None:
    first = optimizer(tmp_path)
    first.observe(64, energy_j=150.0, time_s=1.0, reached_target=True)
    together = [optimizer(tmp_path, seed=seed).suggest() for seed in range(12)]
    new = [size for size in together if size != 64]
    assert new
    assert len(new) == len(set(new))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_target_never_reached_keeps_the_default_and_says_so(policy: str, tmp_path: Path) -> None:
    chosen = optimizer(tmp_path, policy=policy)
    for size in ARMS:
        chosen.observe(size, energy_j=100.0, time_s=1.0, reached_target=False)
    with pytest.warns(TargetNeverReachedWarning, match=r"none of the batch sizes \[8, 16, 32, 64, 128\].*64 is kept"):
        assert chosen.suggest() == 64
    with pytest.raises(TargetNeverReachedError, match="Ease the target"):
        chosen.best()
    chosen.observe(16, energy_j=100.0, time_s=1.0, reached_target=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen.best() == 16


def test_a_default_that_misses_the_target_is_left(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path)
    for _ in range(12):
        size = chosen.suggest()
        chosen.observe(size, energy_j=100.0 + size, time_s=1.0, reached_target=size <= 16)
    assert chosen.best() in (8, 16)


def test_window_follows_a_job_that_grows_dearer(tmp_path: Path) -> None:
    """Costs beyond beta x the least of old: every run would be stopped for ever. The cheapest size changes as well."""
    later = {8: 300.0, 16: 330.0, 32: 570.0, 64: 900.0, 128: 1500.0}
    for window in (None, 15):
        (tmp_path / str(window)).mkdir()
        chosen = optimizer(tmp_path / str(window), window=window)
        run(chosen, 40, COST_J, noise=0.02)
        sizes = run(chosen, 50, later, noise=0.02)
        reached = [report.reached_target for report in chosen.runs()[-10:]]
        assert any(reached) == (window is not None)
    assert sum(size in (8, 16) for size in sizes[-15:]) >= 12  # what left the window is tried again
    assert chosen.best() in (8, 16)


def test_runs_under_another_power_limit_are_a_prior() -> None:
    """Other limits shape the curve (32 is cheapest) and leave the level and the spread wider than own runs do."""
    sizes = tuple(ARMS)
    other = [Outcome(arm=arm, cost=COST_J[size], reached=True, power_limit_w=150.0) for arm, size in enumerate(sizes)]
    beliefs = {
        limit: learned_policy.means(View(batch_sizes=sizes, default=3, outcomes=other * 3, power_limit_w=limit))
        for limit in (150.0, 250.0)
    }
    assert int(np.argmin(beliefs[250.0][0])) == 2
    assert (beliefs[250.0][1] / beliefs[250.0][0] > 2 * beliefs[150.0][1] / beliefs[150.0][0]).all()


def test_beliefs_count_runs(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path)
    chosen.observe(32, energy_j=100.0, time_s=1.0, reached_target=True)
    chosen.observe(8, energy_j=210.0, time_s=1.0, reached_target=False)
    size = chosen.suggest()
    counts = {row.batch_size: (row.num_runs, row.num_reached, row.num_running) for row in chosen.beliefs()}
    expected = {arm: (0, 0, int(arm == size)) for arm in ARMS} | {
        8: (1, 0, int(size == 8)),
        32: (1, 1, int(size == 32)),
    }
    assert counts == expected


def test_concurrent_runs_of_one_size_are_all_counted_as_running(tmp_path: Path) -> None:
    """They were one, however many: who looks at three jobs at night saw one of them."""
    chosen = optimizer(tmp_path)
    sizes = [chosen.suggest() for _ in range(len(ARMS) + 3)]
    assert [row.num_running for row in chosen.beliefs()] == [sizes.count(size) for size in ARMS]


@pytest.mark.parametrize(
    ("sizes", "default", "message"),
    [
        ([32], 32, "two or more"),
        ([8, 8], 8, "different"),
        ([8, 0], 8, "whole number, 1 to"),
        ([8, 16], 12, "default 12 is none"),
    ],
)
def test_wrong_arms_are_refused(sizes: list[int], default: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecurringError, match=message):
        BatchSizeOptimizer(sizes, default=default, max_power_w=100.0, store=tmp_path / "job.sqlite")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "settings",
    [{"eta": 1.1}, {"beta": 1.0}, {"max_power_w": 0.0}, {"policy": "best"}, {"window": 4}, {"lease_s": float("nan")}],
)
def test_wrong_settings_are_refused(settings: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(RecurringError, match=next(iter(settings))):
        optimizer(tmp_path, **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("size", "energy_j", "time_s"), [(12, 1.0, 1.0), (32, -1.0, 1.0), (32, 1.0, 0.0), (32, float("nan"), 1.0)]
)
def test_impossible_reports_change_nothing(size: int, energy_j: float, time_s: float, tmp_path: Path) -> None:
    chosen = optimizer(tmp_path)
    with pytest.raises(RecurringError):
        chosen.observe(size, energy_j=energy_j, time_s=time_s, reached_target=True)
    assert chosen.runs() == []
