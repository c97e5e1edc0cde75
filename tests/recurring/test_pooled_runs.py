"""Runs of one size under one limit are pooled: the same beliefs as from each run alone, also from ten thousand."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from energy_lightning.recurring import learned
from energy_lightning.recurring.beliefs import Curve, Pooled, limits_of, strays
from energy_lightning.recurring.runs import Outcome, View

ARMS = (8, 16, 32, 64)


def test_pooled_runs_tell_a_curve_what_each_alone_does() -> None:
    """Oracle: the Gaussian of the curve under three limits, updated by one run after the other."""
    rng = np.random.default_rng(0)
    arm, limit = rng.integers(0, 4, 60), rng.integers(0, 3, 60)
    y, noise = rng.normal(size=60), rng.uniform(0.01, 0.3, 60)
    octaves = np.arange(4.0)
    shared = Curve(level=2.0, slope=0.25, smooth=0.5, length_octaves=4.0, rough=0.02).covariance(octaves)
    special = 0.3**2 + 0.05**2 * np.eye(4)
    mean, covariance = np.zeros(12), np.kron(np.ones((3, 3)), shared) + np.kron(np.eye(3), special)
    for a, kind, value, variance in zip(arm, limit, y, noise, strict=True):
        place = 4 * kind + a
        gain = covariance[:, place] / (covariance[place, place] + variance)
        mean = mean + gain * (value - mean[place])
        covariance = covariance - np.outer(gain, covariance[place])
    for now in range(3):
        own = slice(4 * now, 4 * now + 4)
        found, doubt = Pooled.of(arm, limit, y, noise).on_curve(shared, special, now)
        assert found == pytest.approx(mean[own], abs=1e-9)
        assert doubt == pytest.approx(covariance[own, own], abs=1e-9)


def test_strays_are_those_of_each_cell_about_its_own_mean() -> None:
    first, squares, freedom = strays(np.array([7, 3, 7, 7, 3, 9]), np.array([1.0, 10.0, 2.0, 6.0, 14.0, 5.0]))
    assert first.tolist() == [1, 0, 5]
    assert squares == pytest.approx([8.0, 14.0, 0.0])
    assert freedom.tolist() == [1.0, 2.0, 0.0]


def test_limits_have_numbers_and_the_one_asked_for_is_last() -> None:
    runs = [Outcome(arm=0, cost=1.0, reached=True, power_limit_w=limit) for limit in (250.0, None, 250.0, 150.0)]
    for asked, expected in ((None, 1), (150.0, 2), (100.0, 3)):
        view = View(batch_sizes=ARMS, default=2, outcomes=runs, power_limit_w=asked)
        assert limits_of(view).tolist() == [0, 1, 0, 2, expected]


@pytest.mark.parametrize("told", [True, False])
def test_ten_thousand_runs_take_little_memory(told: bool) -> None:
    """A job that ran for years: (runs, runs) matrices would be 800 MB each, and so would all runs' grids at once."""
    rng = np.random.default_rng(0)
    numbers = np.ceil(30_000 * np.exp(0.2 * rng.normal(size=10_000))).astype(int)  # hardly two are equal
    outcomes = [
        Outcome(arm=index % 4, cost=float(number), reached=True, num_evaluations=int(number) if told else None)
        for index, number in enumerate(numbers)
    ]
    view = View(batch_sizes=ARMS, default=2, outcomes=outcomes)
    tracemalloc.start()
    try:
        cost, deviation = learned.means(view)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cost == pytest.approx(numbers.mean(), rel=0.02)
    assert (deviation < 0.01 * cost).all()
    assert peak_bytes < 100e6
