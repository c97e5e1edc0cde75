"""What numbers that were rounded up say of the quantity behind them (floor 1).

| symbol | shape | meaning |
| --- | --- | --- |
| a, m, k, g | - | arms, arms that were tried, spreads that are thought possible, points of a grid |
| t | (n,) | evaluations that a run would need if they could be taken at any moment; log-normal |
| f | (a,) | mean of log t |
| s | (a,) | standard deviation of log t of an arm, one of k |
| N | (n,) | evaluations that a run took: t rounded up; a run that missed its target says t > N |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from energy_lightning.recurring.beliefs import Floats

_ROUNDED = 60.0  # from so many evaluations on, rounding up is half an evaluation more
_LOGS = np.concatenate([np.linspace(-3.0, 5.0, 1400), np.linspace(5.1, 60.0, 200)])  # f with moments of N in a table
_FINEST = 1e-6  # log t is not told apart more finely
_FINE, _TAIL = 120, 50  # points of a grid between an arm's least and most evaluations, and on either side
_MANY = 300  # runs of an arm that a grid of this fineness is enough for
_AT_ONCE = 256  # runs whose chances are held in memory together


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the runs of each tried arm say of its f, on a grid of its own.

    `arms` (m,); `grid` (m, g) of f; `best` (m, g): log likelihood under the likeliest spread, with the log width of the
    grid's cell; `likely` (m, k, g): likelihood of each spread over that one's; `numbers` (3, m, k, g): log E[N] of
    each spread, its square, and the variance of log N, times `likely`; `middle`: mean log number of all runs.
    """

    arms: NDArray[np.intp]
    grid: Floats
    best: Floats
    likely: Floats
    numbers: Floats
    middle: float

    @classmethod
    def of(
        cls, arm: NDArray[np.intp], number: Floats, reached: NDArray[np.bool_], times: Floats, spreads: Sequence[float]
    ) -> Seen:
        """`times` runs of `arm` that took `number` evaluations and reached their target or not; all (u,)."""
        arms, place = np.unique(arm, return_inverse=True)
        lowest, highest = np.full(len(arms), np.inf), np.zeros(len(arms))
        np.minimum.at(lowest, place, number)
        np.maximum.at(highest, place, number)
        high = np.log(highest)
        grid = _grid(np.minimum(np.log(np.maximum(lowest - 1.0, 0.4)), high - 0.02), high)
        with np.errstate(divide="ignore"):
            above = np.where(reached, np.log(number), np.inf)
            below = np.where(reached, np.minimum(np.log(number - 1.0), np.log(number) - _FINEST), np.log(number))
        given = (place, below, above, times, spreads)
        likelihood = _likelihood(grid, *given)
        many = np.bincount(place, times) > _MANY
        if many.any():  # f is known more finely than the grid
            grid[many] = _refined(grid[many], likelihood[many].max(axis=1))
            likelihood = _likelihood(grid, *given)
        middle = float(times @ np.log(number - 0.5) / times.sum())
        best = likelihood.max(axis=1)
        likely = np.exp(likelihood - best[:, None, :])
        return cls(
            arms=arms,
            grid=grid,
            best=best + np.log(np.gradient(grid, axis=1)),
            likely=likely,
            numbers=likely * np.stack(numbers_of(grid, spreads)),
            middle=middle,
        )

    def given(self, mean: Floats, variance: Floats, share: Floats) -> tuple[Floats, Floats, Floats]:
        """With f normal before, (r, m) each, and (r, k) shares of the spreads: log evidence (r, m), chance of f.

        The chance is (r, m, g) twice: as it is, and to be multiplied by the share and `likely` of a spread.
        """
        apart = (self.grid - mean[..., None]) ** 2 / variance[..., None]
        joint = self.best - 0.5 * (apart + np.log(2.0 * np.pi * variance)[..., None])
        top = joint.max(axis=2)
        unspread = np.exp(joint - top[..., None])
        chance = unspread * over_spreads(share, self.likely)
        total = chance.sum(axis=2)
        return top + np.log(total), chance / total[..., None], unspread / total[..., None]


def over_spreads(share: Floats, table: Floats) -> Floats:
    """(..., r, m, g) from (r, k) shares and a (..., m, k, g) table of each spread."""
    return np.swapaxes(share @ table, -3, -2)


def numbers_of(f: Floats, spreads: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """(..., k, g) each, of f (..., g) under each spread: log E[N], its square, and the variance of log N."""
    tables = [_moments(spread) for spread in spreads]
    value, noise = (np.stack([np.interp(f, _LOGS, table[part]) for table in tables], axis=-2) for part in (0, 1))
    return value, value**2, noise


@lru_cache(maxsize=64)
def _moments(spread: float) -> tuple[Floats, Floats]:
    """Log mean of N, and N's variance over its mean squared, where f is each of _LOGS."""
    k = np.arange(300.0)
    with np.errstate(divide="ignore"):
        more = np.exp(_log_below((_LOGS[:, None] - np.log(k)) / spread))  # chance of N > k
    mean, square = more.sum(axis=1), more @ (2.0 * k + 1.0)
    large = np.exp(_LOGS) > _ROUNDED
    mean = np.where(large, np.exp(_LOGS + 0.5 * spread**2) + 0.5, mean)
    variance = np.where(large, np.exp(2.0 * _LOGS + spread**2) * np.expm1(spread**2), square - mean**2)
    return np.log(mean), np.maximum(variance, 0.0) / mean**2


def _grid(low: Floats, high: Floats) -> Floats:
    """(m, g) fine between (m,) low and high, ever coarser beyond."""
    tail = 3.2 * np.linspace(1.0, 0.0, _TAIL, endpoint=False) ** 2
    return np.hstack([low[:, None] - tail, np.linspace(low, high, _FINE, axis=1), high[:, None] + tail[::-1]])


def _refined(grid: Floats, likelihood: Floats) -> Floats:
    """(m, g) grids that are fine only where the (m, g) log likelihood on `grid` is not small, and next to there."""
    likely = likelihood > likelihood.max(axis=1, keepdims=True) - 40.0
    first = np.maximum(likely.argmax(axis=1) - 1, _TAIL)
    last = np.minimum(likely.shape[1] - likely[:, ::-1].argmax(axis=1), _TAIL + _FINE - 1)
    rows, within = np.arange(len(grid)), first < last  # otherwise beyond the fine part: of misses alone
    first, last = np.where(within, first, _TAIL), np.where(within, last, _TAIL + _FINE - 1)
    return _grid(grid[rows, first], grid[rows, last])


def _likelihood(
    grid: Floats, place: NDArray[np.intp], below: Floats, above: Floats, times: Floats, spreads: Sequence[float]
) -> Floats:
    """(m, k, g) log likelihood of f on each arm's grid: of `times` runs each that log t lies between; all (u,)."""
    likelihood, spread = np.zeros((len(grid), len(spreads), grid.shape[1])), np.array(spreads)[:, None]
    for rows in (slice(start, start + _AT_ONCE) for start in range(0, len(place), _AT_ONCE)):
        f, low, high = grid[place[rows], None], below[rows, None, None], above[rows, None, None]
        each = _log_between((low - f) / spread, (high - f) / spread)
        np.add.at(likelihood, place[rows], times[rows, None, None] * each)
    return likelihood


def _log_between(low: Floats, high: Floats) -> Floats:
    """Log probability of a standard normal variable between low < high."""
    mirrored = low + high > 0.0  # the lower tail is the exact one
    upper, lower = _log_below(np.where(mirrored, -low, high)), _log_below(np.where(mirrored, -high, low))
    with np.errstate(divide="ignore", invalid="ignore"):
        probability: Floats = upper + np.log1p(-np.exp(np.minimum(lower - upper, -1e-12)))
    return probability


def _log_below(z: Floats) -> Floats:
    """Log probability of a standard normal variable below z."""
    from scipy.special import log_ndtr  # takes longer to load than a store to show: only where runs tell numbers

    below: Floats = log_ndtr(z)
    return below
