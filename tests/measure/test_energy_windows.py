"""Energy readings: expected values are worked by hand or come from closed forms."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_lightning.measure import (
    EnergyTotal,
    WindowReading,
    integrate_power,
    sum_over_gpus,
    window_energy,
)
from energy_lightning.types import MeasurementError


def test_a_counter_that_falls_voids_its_window_and_moves_the_base() -> None:
    readings_j = [mj * 1e-3 for mj in (1000, 1800, 300, 900)]
    total, windows = EnergyTotal(), []
    for before_j, after_j in itertools.pairwise(readings_j):
        energy_j, reason = window_energy(before_j, after_j, time_s=1.0)
        windows.append(WindowReading(1.0, energy_j, "counter", reason))
        total.add(windows[-1])
    assert [window.energy_j for window in windows] == [pytest.approx(0.8), None, pytest.approx(0.6)]
    assert (total.energy_j, total.time_s, total.complete) == (pytest.approx(1.4), 3.0, False)


def test_a_reset_window_names_the_reset() -> None:
    energy_j, reason = window_energy(1.8, 0.3, time_s=5.0)
    assert energy_j is None
    assert reason is not None
    assert "reset" in reason


def test_a_window_shorter_than_the_refresh_is_too_short_never_zero() -> None:
    energy_j, reason = window_energy(5.0, 5.0, time_s=0.001, refresh_s=0.010)
    assert energy_j is None
    assert reason is not None
    assert reason.startswith("too short")


def test_a_counter_that_stands_still_is_void_even_in_a_long_window() -> None:
    assert window_energy(5.0, 5.0, time_s=1.0)[0] is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reading_that_is_no_number_is_void(bad: float) -> None:
    assert window_energy(1.0, bad, time_s=1.0)[0] is None


def test_constant_power_integrates_to_power_times_time() -> None:
    assert integrate_power([0.0, 4.0, 10.0], [200.0, 200.0, 200.0]) == pytest.approx(2000.0)


def test_uneven_samples_follow_the_trapezoid_rule() -> None:
    assert integrate_power([0.0, 1.0, 3.0], [100.0, 200.0, 200.0]) == pytest.approx(550.0)


@pytest.mark.parametrize(
    ("times_s", "powers_w"),
    [([0.0], [1.0]), ([0.0, 1.0], [1.0]), ([1.0, 0.0], [1.0, 1.0]), ([0.0, 1.0], [1.0, math.nan])],
)
def test_samples_that_mean_nothing_are_refused(times_s: list[float], powers_w: list[float]) -> None:
    with pytest.raises(MeasurementError):
        integrate_power(times_s, powers_w)


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=12))
def test_linear_power_integrates_exactly(steps_s: list[float]) -> None:
    times_s = [math.fsum(steps_s[:i]) for i in range(len(steps_s) + 1)]
    expected_j = 1.5 * times_s[-1] ** 2 + 5.0 * times_s[-1]
    assert integrate_power(times_s, [3.0 * t + 5.0 for t in times_s]) == pytest.approx(expected_j)


def test_distinct_gpus_add_up_and_a_shared_one_counts_once() -> None:
    assert sum_over_gpus([("a", 30.0), ("b", 40.0)]) == pytest.approx(70.0)
    assert sum_over_gpus([("a", 30.0), ("a", 31.0), ("b", 40.0)]) == pytest.approx(71.0)
