import math

import pytest

from energy_lightning.frontier import FrontierError, FrontierPoint, choose
from energy_lightning.types import Budget, BudgetError

POINTS = [FrontierPoint(10.0, 100.0, "baseline"), FrontierPoint(10.4, 80.0, "b"), FrontierPoint(11.2, 70.0, "c")]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("max_slowdown=0", "baseline"),
        ("max_slowdown=0.05", "b"),
        ("max_slowdown=0.2", "c"),
        ("deadline=10.4", "b"),
        ("energy_budget=80", "b"),
        ("energy_budget=1000", "baseline"),
        ("max_throughput", "baseline"),
        ("min_energy", "c"),
    ],
)
def test_each_budget_takes_its_point(budget: str, expected: str) -> None:
    assert choose(POINTS, Budget.parse(budget), baseline_time_s=10.0).choice == expected


def test_an_unreachable_budget_names_what_is_reachable() -> None:
    with pytest.raises(BudgetError, match="fastest takes 10 s"):
        choose(POINTS, Budget("deadline", 9.0))
    with pytest.raises(BudgetError, match="least is 70 J"):
        choose(POINTS, Budget("energy_budget", 60.0))
    with pytest.raises(BudgetError, match=r"slow-down of 25\.00%"):
        choose(POINTS, Budget("max_slowdown", 0.1), baseline_time_s=8.0)


def test_no_points_and_bad_baseline() -> None:
    with pytest.raises(BudgetError, match="no plans"):
        choose([], Budget())
    with pytest.raises(BudgetError, match="baseline_time_s"):
        choose(POINTS, Budget(), baseline_time_s=math.nan)


def test_equal_times_are_decided_by_energy() -> None:
    points = [FrontierPoint(1.0, 9.0, "dear"), FrontierPoint(1.0, 8.0, "cheap"), FrontierPoint(2.0, 8.0, "slow")]
    assert choose(points, Budget("max_throughput")).choice == "cheap"
    assert choose(points, Budget("min_energy")).choice == "cheap"


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_point_needs_possible_values(bad: float) -> None:
    with pytest.raises(FrontierError, match="time_s > 0"):
        FrontierPoint(bad, 1.0)
