import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_lightning.frontier import FrontierError, hypervolume, pareto_front

coordinates = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12)


def dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a != b


@given(coordinates)
def test_front_is_non_dominated_and_complete(points: list[tuple[int, int]]) -> None:
    front = [points[i] for i in pareto_front([p[0] for p in points], [p[1] for p in points])]
    expected = {p for p in points if not any(dominates(q, p) for q in points)}
    assert front == sorted(expected)


@given(coordinates)
def test_hypervolume_equals_the_number_of_dominated_unit_cells(points: list[tuple[int, int]]) -> None:
    cells = [(x, y) for x in range(8) for y in range(8)]  # lower-left corners
    expected = sum(any(p[0] <= x and p[1] <= y for p in points) for x, y in cells)
    assert hypervolume([p[0] for p in points], [p[1] for p in points], (8, 8)) == expected


@given(coordinates, st.tuples(st.integers(0, 8), st.integers(0, 8)))
def test_hypervolume_never_falls_when_a_point_is_added(points: list[tuple[int, int]], more: tuple[int, int]) -> None:
    before = hypervolume([p[0] for p in points], [p[1] for p in points], (8, 8))
    after = hypervolume([p[0] for p in [*points, more]], [p[1] for p in [*points, more]], (8, 8))
    assert after >= before


def test_known_front_and_hypervolume() -> None:
    time_s, energy_j = [1.0, 1, 2, 2, 3, 4], [5.0, 4, 3, 3, 3, 2]
    front = pareto_front(time_s, energy_j)
    assert [(time_s[i], energy_j[i]) for i in front] == [(1, 4), (2, 3), (4, 2)]
    assert front.tolist() == [1, 2, 5]  # the first of equal points stays
    assert hypervolume(time_s, energy_j, (5, 6)) == 12.0
    assert hypervolume([*time_s, 2.0, 6.0], [*energy_j, 3.0, 1.0], (5, 6)) == 12.0


def test_thousands_of_duplicates_and_no_points() -> None:
    assert pareto_front(np.full(5000, 2.0), np.full(5000, 3.0)).tolist() == [0]
    assert pareto_front([], []).tolist() == []
    assert hypervolume([], [], (1.0, 1.0)) == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named(bad: float) -> None:
    with pytest.raises(FrontierError, match=r"energy_j\[1\]"):
        pareto_front([1.0, 2.0], [1.0, bad])
    with pytest.raises(FrontierError, match="reference"):
        hypervolume([1.0], [1.0], (bad, 1.0))


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(FrontierError, match="shape"):
        pareto_front([1.0, 2.0], [1.0])
