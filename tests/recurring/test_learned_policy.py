"""The default policy: when a new size is tried, and how runs are shared among known ones."""

from __future__ import annotations

import numpy as np

from energy_lightning.recurring import learned
from energy_lightning.recurring.runs import Outcome, View

ARMS = [8, 16, 32, 64, 128]


def runs_of(costs: dict[int, list[float]]) -> list[Outcome]:
    return [Outcome(arm=ARMS.index(size), cost=cost, reached=True) for size, own in costs.items() for cost in own]


def drawn(known: list[Outcome], **prior: float) -> list[int]:
    """What is run next by 200 generators when no new size is worth a try, however dear the runs were so far."""
    view = View(batch_sizes=tuple(ARMS), default=2, outcomes=known)
    chosen = learned.Prior(horizon=1.0, **{"allowance": 100.0, **prior})
    return [ARMS[learned.suggest(view, np.random.default_rng(seed), chosen)] for seed in range(200)]


def test_a_size_is_tried_while_it_may_pay_and_no_longer() -> None:
    """Known neighbours: falling costs draw the walk on, rising ones end it; a short horizon explores nothing."""

    def next_arm(costs: list[float], horizon: float) -> int:
        known = [Outcome(arm=arm, cost=cost, reached=True) for arm, cost in enumerate(costs) for _ in range(3)]
        view = View(batch_sizes=tuple(ARMS), default=2, outcomes=known)
        prior = learned.Prior(horizon=horizon, rounds=0.0, boldness=0.0, settled=0.0)
        return learned.suggest(view, np.random.default_rng(0), prior)

    assert next_arm([400.0, 200.0, 100.0], 60.0) == 3
    assert next_arm([100.0, 200.0, 400.0], 60.0) == 0
    assert next_arm([104.0, 100.0, 102.0], 1.0) == 1


def test_one_unlucky_run_of_a_size_does_not_decide_for_ever() -> None:
    """64 cost as much in its only run: it is run again in some recurrences, but 128, far dearer, in none."""
    sizes = drawn(runs_of({16: [190.0], 32: [100.0, 101.0, 102.0] * 6, 64: [100.0], 128: [190.0]}))
    assert 10 < sizes.count(64) < 120
    assert sizes.count(32) + sizes.count(64) == 200


def test_the_more_often_a_size_has_run_the_closer_its_draws_keep_to_what_is_believed() -> None:
    """64 costs 1% more than 32: a run or two tell little of it, so it is drawn by more than `settled` says."""

    def share(runs: int, **prior: float) -> float:
        known = runs_of({16: [190.0], 32: [95.0, 109.0] * 10, 64: [96.0, 110.0] * runs, 128: [190.0]})
        return drawn(known, **prior).count(64) / 200

    assert share(1, rounds=0.0) > 2.0 * share(1, rounds=0.0, boldness=0.0)
    assert share(4, rounds=0.0, settled=1.0) > 3.0 * share(4, rounds=0.0)
    assert share(10, rounds=0.0, boldness=0.0) == share(10, rounds=0.0) > 3.0 * share(10, rounds=0.0, settled=0.0)
    assert share(1, rounds=0.0, boldness=0.0, settled=0.0) == 0.0


def test_too_little_spent_on_other_sizes_widens_the_draws() -> None:
    """The same beliefs, but for how many dear runs were made, and for how long the cheapest has run."""

    def share(dear_runs: int, usual_runs: int, **prior: float) -> float:
        dear = {size: [190.0] * dear_runs for size in (16, 128)}
        sizes = drawn(runs_of({32: [100.0, 101.0, 102.0] * usual_runs, 64: [100.0], **dear}), **prior)
        return sizes.count(64) / len(sizes)

    settled = {"boldness": 0.0, "settled": 0.0}
    assert share(1, 6, **settled) > 0.05
    assert share(5, 6, **settled) == 0.0
    assert share(2, 1, **settled) == 0.0 < share(2, 60, **settled)


def test_a_size_that_never_reaches_the_target_widens_no_draws() -> None:
    """8 is out of memory once: nothing is to be spent on it any more."""
    known = runs_of({16: [190.0] * 2, 32: [100.0, 101.0, 102.0] * 30, 64: [100.0], 128: [190.0] * 2})
    missed = Outcome(arm=0, cost=1.0, reached=False)
    assert drawn([*known, missed], boldness=0.0, settled=0.0) == [32] * 200


def test_what_a_window_forgets_is_not_worth_learning() -> None:
    """A size beyond a dearer one may yet be cheaper: worth a try for sixty runs to come, not for six."""
    known = runs_of({16: [125.0, 125.6], 32: [100.0, 100.5], 64: [125.0, 125.6]})
    views = [View(batch_sizes=tuple(ARMS), default=2, outcomes=known, window=window) for window in (None, 60, 6)]
    always, long, short = (learned.suggest(view, np.random.default_rng(0)) for view in views)
    assert always == long
    assert long in (0, 4)
    assert short == 2


def test_runs_that_cost_more_than_the_default_together_end_in_surely_cheap_ones() -> None:
    """64 may cost as much as the default 32, as two runs tell little: drawn only while runs may cost more together."""

    def share(*known: dict[int, list[float]], **prior: float) -> float:
        runs = [run for part in known for run in runs_of(part)]
        return drawn(runs, **{"allowance": 0.02, "settled": 1.0, **prior}).count(64) / 200

    usual, dear = {32: [95.0, 109.0] * 10, 64: [86.0, 95.0]}, {16: [190.0] * 5, 128: [190.0] * 4}
    assert share(dear, usual) > 0.1  # the first two runs for each size are without blame
    assert share(usual, dear) == 0.0 < share(usual, dear, allowance=100.0)
    assert share(usual, dear, allowance=0.5) > 0.1
    assert share(usual, dear, caution=0.0) == 1.0
    walk, once = {8: [400.0], 16: [190.0], 128: [190.0]}, {64: [100.0]}
    assert share(walk, {32: [95.0, 109.0] * 2}, once) > 0.1  # fewer than two runs for each size
    assert share(walk, {32: [95.0, 109.0] * 4}, once) == 0.0  # what was saved since allows no second run of 64
    assert share(walk, {32: [95.0, 109.0] * 8}, once) > 0.1


def test_a_size_surely_cheaper_than_the_default_is_kept_to() -> None:
    known = runs_of({16: [80.0, 81.0] * 3, 32: [100.0, 101.0] * 2, 64: [190.0], 8: [400.0] * 9})
    assert set(drawn(known, allowance=0.02)) == {16}


def test_a_default_that_misses_the_target_is_no_measure_for_others() -> None:
    missed = [Outcome(arm=2, cost=60.0, reached=False)] * 9
    known = runs_of({64: [95.0, 109.0] * 3, 128: [190.0], 16: [190.0]})
    assert set(drawn([*known, *missed], allowance=0.02)) == {64}


def test_new_sizes_are_tried_whatever_the_runs_cost_together() -> None:
    """Many jobs at once fill a window with the default: that keeps nobody from finding that 16 costs half."""
    outcomes = runs_of({32: [100.0, 101.0] * 10})
    view = View(batch_sizes=tuple(ARMS), default=2, outcomes=outcomes, window=12)
    assert learned.suggest(view, np.random.default_rng(0)) in (1, 3)
