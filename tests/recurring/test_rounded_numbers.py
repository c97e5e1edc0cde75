"""The curve behind rounded-up numbers of evaluations, against sums over a fine grid and drawn runs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm

from energy_lightning.recurring.beliefs import Beliefs, Floats
from energy_lightning.recurring.number_curve import NumberPrior, beliefs_of_number
from energy_lightning.recurring.rounded import Seen

OCTAVES = np.array([-1.0, 0.0])
Runs = list[tuple[int, int, bool]]  # arm, number, reached


def seen_of(runs: Runs, prior: NumberPrior) -> Seen:
    rows = Counter(runs)
    arm, number, reached = (np.array(column) for column in zip(*rows, strict=True))
    return Seen.of(arm, number.astype(float), reached, np.array(list(rows.values()), float), prior.spreads)


def believed(runs: Runs, prior: NumberPrior, octaves: Floats = OCTAVES) -> Beliefs:
    return beliefs_of_number(seen_of(runs, prior), octaves, prior)


def drawn(arm: int, mean: float, spread: float, times: int, rng: np.random.Generator) -> Runs:
    """Runs of an arm that would need `mean` evaluations in the median."""
    return [(arm, int(np.ceil(mean * np.exp(spread * rng.normal()))), True) for _ in range(times)]


def log_mean_number(f: Floats, spread: float) -> Floats:
    """Log E[N] by its sum of chances of more than k."""
    k = np.arange(200)
    with np.errstate(divide="ignore"):
        total: Floats = np.log(norm.sf((np.log(k) - f[:, None]) / spread).sum(axis=1))
    return total


@pytest.mark.parametrize(
    "runs",
    [
        [(0, 12, True)] * 8 + [(0, 13, True)] * 8 + [(1, 20, True)] * 3 + [(1, 21, True)] * 2,
        [(0, 4, True)] * 7 + [(0, 5, True)] + [(1, 4, True)] * 6 + [(1, 5, True)] * 2,
        [(0, 1, True), (1, 3, True)],
        [(0, 9, True)] * 4 + [(1, 14, False), (1, 15, True)],
        [(0, 4, True)] * 80 + [(0, 5, True)] * 9 + [(1, 5, True)],
    ],
)
@pytest.mark.parametrize("spread", [0.04, 0.12])
def test_two_arms_equal_the_sum_over_a_fine_grid(runs: Runs, spread: float) -> None:
    prior = NumberPrior(spreads=(spread,), roughs=(0.05,))
    arms, numbers = np.array([run[0] for run in runs]), np.array([run[1] for run in runs])
    middle = np.log(numbers - 0.5).mean()
    line = middle + prior.trend * (OCTAVES - OCTAVES.mean())
    axes, likelihoods = [], []
    for arm in (0, 1):
        own = numbers[arms == arm]
        f = np.linspace(np.log(max(own.min() - 1, 0.5)) - 0.5, np.log(own.max()) + 0.8, 1200)
        likelihood = np.zeros_like(f)
        for _, number, reached in (run for run in runs if run[0] == arm):
            with np.errstate(divide="ignore"):
                below = norm.cdf((np.log(number if not reached else number - 1) - f) / spread)
                above = norm.cdf((np.log(number) - f) / spread) if reached else 1.0
                likelihood += np.log(above - below)
        axes.append(f)
        likelihoods.append(likelihood)
    away = np.stack(np.meshgrid(axes[0] - line[0], axes[1] - line[1], indexing="ij"), axis=-1)
    curve = prior.curve(0.05, OCTAVES)
    log = -0.5 * np.einsum("...i,ij,...j", away, np.linalg.inv(curve), away)
    log = log + likelihoods[0][:, None] + likelihoods[1]
    chance = np.exp(log - log.max())
    chance /= chance.sum()
    values = [log_mean_number(f, spread) for f in axes]
    mean = np.array([chance.sum(axis=1) @ values[0], chance.sum(axis=0) @ values[1]])
    square = np.array([chance.sum(axis=1) @ values[0] ** 2, chance.sum(axis=0) @ values[1] ** 2])
    both = values[0] @ chance @ values[1] - mean[0] * mean[1]
    found = believed(runs, prior)
    deviation = np.sqrt(square - mean**2)
    assert np.abs(found.expected - mean).max() < 0.15 * deviation.max() + 1e-3
    assert np.sqrt(np.diag(found.covariance)) == pytest.approx(deviation, rel=0.2, abs=1e-3)
    assert found.covariance[0, 1] == pytest.approx(both, abs=0.15 * deviation[0] * deviation[1] + 1e-6)


@pytest.mark.parametrize(("median", "spread"), [(0.3, 0.1), (3.7, 0.05), (12.0, 0.3), (55.0, 0.2), (400.0, 0.1)])
def test_mean_and_variance_of_a_number_equal_those_of_many_runs(median: float, spread: float) -> None:
    """Seen so often that f is known: what is believed of E[N] and of one run is what the runs themselves say."""
    rng = np.random.default_rng(0)
    runs = drawn(0, median, spread, 4000, rng)
    numbers = np.array([run[1] for run in runs])
    found = believed(runs, NumberPrior(spreads=(spread,), roughs=(0.05,)), np.array([0.0]))
    assert np.exp(found.expected[0]) == pytest.approx(numbers.mean(), rel=0.01)
    assert found.noise[0] == pytest.approx(numbers.var() / numbers.mean() ** 2, rel=0.15, abs=1e-5)
    assert np.sqrt(found.covariance[0, 0]) < 0.01


@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_many_runs_say_no_more_than_their_standard_error(spread: float) -> None:
    """The more runs, the finer f is known; the grid is then finer too."""
    rng, errors = np.random.default_rng(3), []
    for _ in range(6):
        runs = drawn(0, 40.0, spread, 8000, rng)
        numbers = np.array([run[1] for run in runs])
        found = believed(runs, NumberPrior(), np.array([0.0]))
        deviation = float(np.sqrt(found.covariance[0, 0]))
        assert deviation == pytest.approx(numbers.std() / numbers.mean() / np.sqrt(len(runs)), rel=0.15)
        errors.append(float(found.expected[0] - np.log(40.0 * np.exp(0.5 * spread**2) + 0.5)) / deviation)
    assert np.abs(errors).max() < 3.0


@pytest.mark.parametrize("runs", [[(0, 1, True)], [(0, 6, True)], [(0, 6, False)], [(0, 6, True), (0, 7, True)]])
def test_a_finer_grid_makes_no_difference_where_the_first_was_fine_enough(runs: Runs) -> None:
    """300 runs of an arm have the first grid, 302 a finer one."""
    times = 300 // len(runs)
    once, finer = (believed(runs * many + [(1, 8, True)], NumberPrior()) for many in (times, times + 2))
    assert finer.expected == pytest.approx(once.expected, abs=2e-3)
    assert finer.covariance == pytest.approx(once.covariance, rel=0.03, abs=1e-6)


def test_equal_runs_of_one_size_do_not_make_others_sure() -> None:
    found = believed([(0, 4, True)] * 80 + [(1, 5, True)], NumberPrior())
    sure, unsure = np.sqrt(np.diag(found.covariance))
    assert sure < 0.01
    assert unsure > 0.05


def test_neighbours_tell_how_rare_an_extra_evaluation_is() -> None:
    """One run of five, among neighbours that take four nearly always, is bad luck; among ones that take five, none."""
    octaves = np.linspace(-0.8, 0.8, 9)

    def among(number: int) -> Beliefs:
        others = [(arm, number, True) for arm in range(9) if arm != 4 for _ in range(20)]
        return believed([*others, (4, 5, True)], prior, octaves)

    prior = NumberPrior()
    few, many = among(4), among(5)
    assert np.exp(few.expected[4]) < 4.5
    assert np.exp(many.expected[4]) > 4.9


def test_how_far_runs_stray_is_learned_from_all_sizes() -> None:
    rng, octaves = np.random.default_rng(1), np.arange(-3.0, 2.0)
    noise = []
    for spread in (0.03, 0.1, 0.3):
        runs = [run for arm in range(4) for run in drawn(arm, 20.0, spread, 12, rng)]
        noise.append(float(np.sqrt(believed(runs, NumberPrior(), octaves).noise[4])))
    assert noise[0] < 0.08 < noise[1] < 0.16 < noise[2]


def test_a_rough_curve_is_told_from_a_smooth_one() -> None:
    """The size between is extrapolated surely where its neighbours lie on a line, hardly where they zigzag."""
    octaves = np.arange(-4.0, 4.0)
    doubt = []
    for up in (1.0, 1.35):
        runs = [(arm, round(40 * up ** (arm % 2)), True) for arm in range(8) if arm != 4 for _ in range(6)]
        doubt.append(float(np.sqrt(believed(runs, NumberPrior(), octaves).covariance[4, 4])))
    assert doubt[1] > 1.5 * doubt[0]


def test_a_miss_says_that_more_are_needed() -> None:
    known = [(0, 8, True)] * 5
    longer = [believed([*known, (1, number, False)], NumberPrior()).expected[1] for number in (2, 16, 40)]
    assert longer == sorted(longer)
    assert longer[0] == pytest.approx(believed(known, NumberPrior()).expected[1], abs=0.02)
    assert np.exp(longer[1]) > 15.0


def test_the_next_power_of_evaluations_makes_no_difference() -> None:
    """Ten times as many evaluations of a tenth each: the same but for the rounding."""
    rng = np.random.default_rng(2)
    runs = [run for arm in (0, 1) for run in drawn(arm, 300.0 + 60.0 * arm, 0.1, 10, rng)]
    fine = [(arm, 10 * number, reached) for arm, number, reached in runs]
    once, ten = believed(runs, NumberPrior()), believed(fine, NumberPrior())
    assert ten.expected - once.expected == pytest.approx(np.log(10.0), abs=0.01)
    assert ten.covariance == pytest.approx(once.covariance, rel=0.1, abs=1e-5)
