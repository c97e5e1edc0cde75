"""A curve over batch sizes behind numbers that were rounded up (floor 1).

| symbol | shape | meaning |
| --- | --- | --- |
| a, m, k, g | - | arms, arms that were tried, `spreads`, points of a grid |
| t | (n,) | evaluations that a run would need if they could be taken at any moment; log-normal |
| f | (a,) | mean of log t: a line, a smooth and a rough part over octaves of batch size |
| s | (a,) | standard deviation of log t of an arm, one of `spreads` |
| N | (n,) | evaluations that a run took: t rounded up; a run that missed its target says t > N |

The posterior of f is Gaussian by expectation propagation (Minka, UAI 2001), with one site for all runs of an arm, whose
moments are sums over a grid of f and s. How often each of `spreads` occurs among the arms is learned from all of them
(empirical Bayes), and of `roughs` each counts by its evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from energy_lightning.recurring.beliefs import Beliefs, Curve, Floats

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)  # of a standard normal variable
_ROUNDED = 60.0  # from so many evaluations on, rounding up is half an evaluation more
_LOGS = np.concatenate([np.linspace(-3.0, 5.0, 1400), np.linspace(5.1, 60.0, 200)])  # f with moments of N in a table
_FINEST = 1e-6  # log t is not told apart more finely
_FINE, _TAIL = 120, 50  # points of a grid between an arm's least and most evaluations, and on either side
_MANY = 300  # runs of an arm that a grid of this fineness is enough for
_AT_ONCE = 256  # runs whose chances are held in memory together
_LEAST = 1e-6  # precision of a site that says next to nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberPrior:
    """Standard deviations of log t, a length in octaves: see benchmarks/RESULTS.md for on what they were chosen.

    `trend`: mean slope of f an octave, as larger batches need no fewer epochs (Shallue et al., JMLR 20, 2019);
    `usual_spread`: about which `spreads` are likely, within `spread_octaves`, as strongly as one arm's runs would say;
    `sweeps`: of expectation propagation.
    """

    level: float = 2.0
    slope: float = 0.3
    trend: float = 0.1
    smooth: float = 0.4
    length_octaves: float = 3.0
    roughs: tuple[float, ...] = (0.02, 0.05, 0.1, 0.3)
    spreads: tuple[float, ...] = (0.02, 0.035, 0.06, 0.1, 0.17, 0.3, 0.5)
    usual_spread: float = 0.08
    spread_octaves: float = 0.87
    sweeps: int = 8

    def curve(self, rough: float, octaves: Floats) -> Floats:
        """(a, a) covariance of f."""
        line = {"level": self.level, "slope": self.slope}
        return Curve(**line, smooth=self.smooth, length_octaves=self.length_octaves, rough=rough).covariance(octaves)

    def usual(self) -> Floats:
        """(k,) chance of each spread."""
        apart = np.log2(np.array(self.spreads) / self.usual_spread) / self.spread_octaves
        chance: Floats = np.exp(-0.5 * apart**2)
        chance /= chance.sum()
        return chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the runs of each tried arm say of its f, on a grid of its own.

    `arms` (m,); `grid` (m, g) of f and `width` (m, g) of its cells; `likelihood` (m, k, g), log, of each spread;
    `middle`: mean log number of all runs.
    """

    arms: NDArray[np.intp]
    grid: Floats
    width: Floats
    likelihood: Floats
    middle: float

    @classmethod
    def of(
        cls, arm: NDArray[np.intp], number: Floats, reached: NDArray[np.bool_], times: Floats, spreads: Floats
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
        return cls(arms=arms, grid=grid, width=np.gradient(grid, axis=1), likelihood=likelihood, middle=middle)

    def given(self, mean: Floats, variance: Floats, share: Floats) -> tuple[Floats, Floats]:
        """(m,) log evidence and (m, k, g) chance, f being normal, (m,) each, before, and spreads having (k,) shares."""
        before = (self.grid - mean[:, None]) ** 2 / variance[:, None] + np.log(2.0 * np.pi * variance)[:, None]
        joint = self.likelihood + np.log(share)[:, None] + (np.log(self.width) - 0.5 * before)[:, None, :]
        top = joint.max(axis=(1, 2))
        chance = np.exp(joint - top[:, None, None])
        total = chance.sum(axis=(1, 2))
        return top + np.log(total), chance / total[:, None, None]


def beliefs_of_number(seen: Seen, octaves: Floats, prior: NumberPrior) -> Beliefs:
    """Of log E[N] of all arms: the mixture over `roughs`, as one Gaussian."""
    fits = [_fit(seen, octaves, rough, prior) for rough in prior.roughs]
    weight = np.exp([evidence - max(other for other, _ in fits) for evidence, _ in fits])
    weight /= weight.sum()
    mean: Floats = np.sum([w * fit.expected for w, (_, fit) in zip(weight, fits, strict=True)], axis=0)
    noise: Floats = np.sum([w * fit.noise for w, (_, fit) in zip(weight, fits, strict=True)], axis=0)
    covariance = np.zeros((len(mean), len(mean)))
    for w, (_, fit) in zip(weight, fits, strict=True):
        covariance += w * (fit.covariance + np.outer(fit.expected - mean, fit.expected - mean))
    return Beliefs(expected=mean, covariance=covariance, noise=noise)


def _fit(seen: Seen, octaves: Floats, rough: float, prior: NumberPrior) -> tuple[float, Beliefs]:
    """Log evidence of this roughness, and what is believed under it."""
    arms, curve = seen.arms, prior.curve(rough, octaves)
    line = seen.middle + prior.trend * (octaves - octaves[arms].mean())  # about which f is a curve
    usual = share = prior.usual()
    inverse = np.linalg.inv(curve[np.ix_(arms, arms)])
    precision, pull = np.zeros(len(arms)), np.zeros(len(arms))  # of the sites
    for sweep in range(prior.sweeps + 1):
        covariance = np.linalg.inv(inverse + np.diag(precision))
        mean, variance = covariance @ pull, np.diag(covariance)
        rest = 1.0 / np.maximum(1.0 / variance - precision, _LEAST)  # variance without the arm's own runs
        guess = rest * (mean / variance - pull)
        evidence, chance = seen.given(line[arms] + guess, rest, share)
        if sweep == prior.sweeps:
            break
        own, f = chance.sum(axis=1), seen.grid - line[arms][:, None]
        own_mean = (own * f).sum(axis=1)
        own_variance = np.maximum((own * (f - own_mean[:, None]) ** 2).sum(axis=1), 1e-7)
        wanted = np.maximum(1.0 / own_variance - 1.0 / rest, _LEAST)
        step = 0.8 if sweep else 1.0
        pull = pull + step * (own_mean * (wanted + 1.0 / rest) - guess / rest - pull)
        precision = precision + step * (wanted - precision)
        share = (usual + chance.sum(axis=(0, 2))) / (1.0 + len(arms))
    moved = guess**2 / rest - (guess / rest + pull) ** 2 / (1.0 / rest + precision)
    sites = evidence + 0.5 * (np.log1p(precision * rest) + moved)
    volume = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(inverse)[1]
    gain = curve[:, arms] @ inverse
    every = curve - gain @ (curve[arms] - covariance @ gain.T)
    return float(sites.sum() + 0.5 * (volume + mean @ pull)), _of_number(
        seen, chance, share, line + gain @ mean, every, prior.spreads
    )


def _of_number(
    seen: Seen, chance: Floats, share: Floats, mean: Floats, covariance: Floats, spreads: Sequence[float]
) -> Beliefs:
    """From f of all arms to log E[N]: the best line through each arm's own belief, and what is left of its own.

    Tried arms have `chance` (m, k, g) on their grids, the others a normal f and the (k,) `share` of each spread.
    """
    deviation = np.sqrt(np.diag(covariance))
    weight = np.broadcast_to(share[:, None] * _WEIGHTS / _WEIGHTS.sum(), (len(mean), len(share), len(_NODES)))
    average, along, square, noise = _moments_over(weight, deviation[:, None] * _NODES, mean, spreads)
    tried = _moments_over(chance, seen.grid - mean[seen.arms][:, None], mean[seen.arms], spreads)
    average[seen.arms], along[seen.arms], square[seen.arms], noise[seen.arms] = tried
    slope = along / deviation**2
    own = np.maximum(square - slope * along, 0.0)
    return Beliefs(expected=average, covariance=slope[:, None] * slope * covariance + np.diag(own), noise=noise)


def _moments_over(
    weight: Floats, away: Floats, mean: Floats, spreads: Sequence[float]
) -> tuple[Floats, Floats, Floats, Floats]:
    """(arms,) of log E[N]: its mean, covariance with f and variance; then the variance of log N.

    `weight` (arms, k, points) of f, `away` (arms, points) from its `mean` (arms,).
    """
    f = mean[:, None] + away
    tables = [_moments(spread) for spread in spreads]
    value, noise = (np.stack([np.interp(f, _LOGS, table[part]) for table in tables], axis=1) for part in (0, 1))
    average = (weight * value).sum(axis=(1, 2))
    about = value - average[:, None, None]
    along, square = (weight * about * away[:, None, :]).sum(axis=(1, 2)), (weight * about**2).sum(axis=(1, 2))
    return average, along, square, (weight * noise).sum(axis=(1, 2))


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
    grid: Floats, place: NDArray[np.intp], below: Floats, above: Floats, times: Floats, spreads: Floats
) -> Floats:
    """(m, k, g) log likelihood of f on each arm's grid: of `times` runs each that log t lies between; all (u,)."""
    likelihood, spread = np.zeros((len(grid), len(spreads), grid.shape[1])), spreads[:, None]
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
