"""Beliefs from runs that tell their number of evaluations: the cost of one, how many, and the chance of a miss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_lightning.recurring import learned
from energy_lightning.recurring.counts import CountPrior, beliefs, counted, runs_told
from energy_lightning.recurring.runs import Outcome, View

ARMS = (8, 16, 32, 64, 128)
ONE_J = (30.0, 17.0, 10.0, 7.0, 6.0)


def view(outcomes: Sequence[Outcome], power_limit_w: float | None = None) -> View:
    return View(batch_sizes=ARMS, default=2, outcomes=outcomes, power_limit_w=power_limit_w)


def runs(arm: int, numbers: Sequence[int], *, told: bool = True, **options: float) -> list[Outcome]:
    return [
        Outcome(arm=arm, cost=ONE_J[arm] * number, reached=True, num_evaluations=number if told else None, **options)
        for number in numbers
    ]


def test_cost_is_that_of_one_evaluation_times_how_many() -> None:
    known = runs(1, [9, 9, 10]) + runs(2, [10, 11, 10]) + runs(3, [12, 13, 12])
    found = beliefs(view(known), CountPrior())
    assert np.exp(found.expected[1:4]) == pytest.approx([17 * 9.3, 10 * 10.3, 7 * 12.3], rel=0.04)


def test_what_one_evaluation_costs_is_known_after_one_run() -> None:
    """Two sizes always take four; one evaluation costs 3% less at one of them. Costs alone leave that open."""
    four = [Outcome(arm=arm, cost=4.0 * one, reached=True, num_evaluations=4) for arm, one in ((1, 97.0), (2, 100.0))]
    blind = [Outcome(arm=run.arm, cost=run.cost, reached=True) for run in four]

    def apart(known: list[Outcome]) -> float:
        found = learned._beliefs(view(known * 3), learned.Prior())
        spread = found.covariance[1, 1] + found.covariance[2, 2] - 2.0 * found.covariance[1, 2]
        return float((found.expected[2] - found.expected[1]) / np.sqrt(spread))

    assert apart(four) > 1.2 * apart(blind) > 0.0


def test_runs_under_another_power_limit_tell_how_many_and_not_what_one_costs() -> None:
    other = [run for arm in range(5) for run in runs(arm, [9 + arm] * 6, power_limit_w=150.0)]
    nothing = beliefs(view(other, 150.0), CountPrior()), beliefs(view(other, 250.0), CountPrior())
    assert np.sqrt(nothing[1].covariance[2, 2]) > 4.0 * np.sqrt(nothing[0].covariance[2, 2])
    once = [Outcome(arm=2, cost=13.0 * 11, reached=True, power_limit_w=250.0, num_evaluations=11)]
    found = beliefs(view(other + once, 250.0), CountPrior())
    assert np.exp(found.expected[3]) == pytest.approx(1.3 * 7.0 * 12.0, rel=0.06)


def test_a_run_without_a_number_tells_what_it_cost() -> None:
    known = runs(1, [9]) + runs(2, [10]) + runs(3, [12])
    assert counted(view(known + runs(1, [10], told=False)))
    assert not counted(view(runs(1, [9], told=False)))
    few, more = (beliefs(view(known + runs(1, [10] * times, told=False)), CountPrior()) for times in (1, 40))
    assert 17.0 * 9.0 < np.exp(few.expected[1]) < np.exp(more.expected[1])
    assert np.exp(more.expected[1]) == pytest.approx(170.0, rel=0.02)
    assert more.covariance[1, 1] < 0.5 * few.covariance[1, 1]


def test_a_store_of_runs_without_numbers_stays_known_when_the_first_one_comes() -> None:
    """It says nothing of what one evaluation costs with other sizes, whose runs' costs are known all the same."""
    untold = [run for arm in (1, 2, 3) for run in runs(arm, [9, 10, 11] * 6, told=False)]
    found = beliefs(view(untold + runs(2, [10])), CountPrior())
    assert np.exp(found.expected[1:4]) == pytest.approx([170.0, 100.0, 70.0], rel=0.03)
    assert (np.sqrt(np.diag(found.covariance))[1:4] < 0.04).all()


def test_runs_without_numbers_under_another_limit_shift_all_sizes_alike() -> None:
    """By hand: three sizes cost a third more there, and the limit asked for is known of one of them only."""
    there = [
        Outcome(arm=arm, cost=one * 10 / 0.75, reached=True, power_limit_w=250.0)
        for arm, one in ((1, 17.0), (2, 10.0), (3, 7.0))
        for _ in range(30)
    ]
    here = runs(2, [10] * 10, power_limit_w=150.0)
    found = beliefs(view(there + here, 150.0), CountPrior())
    assert np.exp(found.expected[1:4]) == pytest.approx([170.0, 100.0, 70.0], rel=0.06)
    assert np.sqrt(found.covariance[3, 3]) < 0.12


@pytest.mark.parametrize("finer", [0.1, 0.5, 2.0, 10.0])
def test_numbers_from_before_evaluations_were_made_rarer_or_finer_do_not_count(finer: float) -> None:
    def told(arm: int, number: int, finer: float) -> Outcome:
        run = runs(arm, [number])[0]
        return Outcome(arm=arm, cost=run.cost, reached=True, num_evaluations=int(np.ceil(finer * number)))

    before = [told(arm, number, 1.0) for number in (90, 100, 110) for arm in (1, 2, 3)]
    after = [told(2, 100, finer), told(3, 90, finer)]
    shown = view(before + after)
    assert runs_told(shown) == [9, 10]
    found = beliefs(shown, CountPrior())
    assert np.exp(found.expected[1:4]) == pytest.approx([1700.0, 1000.0, 700.0], rel=0.06)
    assert (np.sqrt(np.diag(found.covariance))[1:4] < 0.12).all()


def test_numbers_count_where_costs_go_with_them_or_an_evaluation_has_become_dearer() -> None:
    """A size that needs one or two, misses, and a job whose evaluations cost three times as much since."""
    known = [*runs(2, [1, 2, 1]), Outcome(arm=2, cost=55.0, reached=False, num_evaluations=1)]
    known += [Outcome(arm=2, cost=30.0 * number, reached=True, num_evaluations=number) for number in (1, 2)]
    assert runs_told(view(known)) == list(range(6))


def test_a_run_that_broke_off_before_its_first_evaluation_says_nothing_of_how_many() -> None:
    known = runs(2, [1] * 5)
    broken = [Outcome(arm=3, cost=0.1, reached=False)] * 3 + [Outcome(arm=3, cost=1e3, reached=True)]
    one, no_info = (beliefs(view(known + more), CountPrior()) for more in (broken, broken[-1:]))
    assert one.expected[3] - no_info.expected[3] == pytest.approx(2.0 * 3.0 / 6.0)


def test_what_is_believed_is_the_mean_cost_also_where_evaluations_vary() -> None:
    rng = np.random.default_rng(0)
    costs = 20.0 * 10 * np.exp(0.4 * rng.normal(size=3000))
    known = [Outcome(arm=2, cost=float(cost), reached=True, num_evaluations=20) for cost in costs]
    cost_j, _ = learned.means(view(known))
    assert cost_j[2] == pytest.approx(costs.mean(), rel=0.02)


def test_a_run_that_cost_nothing_has_beliefs_with_any_number() -> None:
    """Least cost over most evaluations is no float."""
    known = [Outcome(arm=2, cost=0.0, reached=True, num_evaluations=2**53)] * 2
    assert np.isfinite(beliefs(view(known), CountPrior()).expected).all()


def test_a_size_that_misses_costs_the_run_that_must_follow_too() -> None:
    missed = Outcome(arm=3, cost=2.0 * 7.0 * 12, reached=False, num_evaluations=24)
    chances = []
    for misses in (0, 2, 5):
        known = runs(2, [10] * 10) + runs(3, [12] * 10) + [missed] * misses
        chances.append(float(np.exp(beliefs(view(known), CountPrior()).expected[3])))
    assert chances[0] == pytest.approx(84.0, rel=0.05)
    assert chances[1] > 1.2 * chances[0]
    assert chances[2] > 1.3 * chances[1]


@pytest.mark.parametrize("told", [True, False])
def test_a_size_that_runs_out_of_memory_is_not_tried_for_ever(told: bool) -> None:
    """Larger is cheaper, and the largest break off in their first step: each of them is tried once."""
    rng = np.random.default_rng(0)
    known: list[Outcome] = []
    for _ in range(30):
        arm = learned.suggest(view(known), rng)
        number = int(np.ceil((9, 9, 9, 10, 12)[arm] * np.exp(0.05 * rng.normal())))
        broke = arm >= 3
        known.append(
            Outcome(
                arm=arm,
                cost=1e-3 if broke else ONE_J[arm] * number,
                reached=not broke,
                num_evaluations=number if told and not broke else None,
            )
        )
    arms = [outcome.arm for outcome in known]
    assert arms.count(3) == 1
    assert arms.count(4) == 0
    assert arms[-20:].count(2) >= 18


def test_one_run_off_the_curve_is_not_taken_for_a_freak_for_ever() -> None:
    """A size in the middle needs fewer evaluations than both its neighbours: it cost less, and is run again."""
    known = [*runs(3, [6]), *runs(2, [3]), *runs(1, [4])]
    same = [
        Outcome(arm=run.arm, cost=10.0 * (run.num_evaluations or 0), reached=True, num_evaluations=run.num_evaluations)
        for run in known
    ]
    rng = np.random.default_rng(0)
    for _ in range(12):
        arm = learned.suggest(view(same), rng)
        number = {0: 9, 1: 4, 2: 3, 3: 6, 4: 9}[arm]
        same.append(Outcome(arm=arm, cost=10.0 * number, reached=True, num_evaluations=number))
    assert [run.arm for run in same].count(2) > 6


def test_sizes_beyond_one_that_never_reached_the_target_are_unknown() -> None:
    """What lies beyond is not extrapolated from a run that broke off; sizes on the other side are."""
    missed = Outcome(arm=3, cost=300.0, reached=False)
    cost, error = learned.means(view([*runs(2, [10, 11]), *runs(1, [9]), missed]))
    assert np.isnan(cost).tolist() == [False, False, False, False, True]
    assert np.isnan(error).tolist() == np.isnan(cost).tolist()
    assert not np.isnan(learned.means(view([missed]))[0]).any()


outcomes = st.lists(
    st.builds(
        Outcome,
        arm=st.integers(0, 4),
        cost=st.floats(0.0, 1e100),
        reached=st.booleans(),
        power_limit_w=st.sampled_from([None, 150.0, 250.0]),
        num_evaluations=st.one_of(st.none(), st.integers(1, 40), st.integers(1, 2**53)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(known=outcomes, limit_w=st.sampled_from([None, 150.0]))
def test_whatever_the_reports_say_beliefs_are_finite_and_a_size_is_suggested(
    known: list[Outcome], limit_w: float | None
) -> None:
    shown = view(known, limit_w)
    found = learned._beliefs(shown, learned.Prior())
    assert np.isfinite(found.expected).all()
    assert (found.noise >= 0.0).all()
    assert np.linalg.eigvalsh(found.covariance).min() > -1e-6 * max(1.0, np.abs(found.covariance).max())
    assert 0 <= learned.suggest(shown, np.random.default_rng(0)) < 5
