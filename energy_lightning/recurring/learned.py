"""The default policy for recurring jobs (floor 1): what a run may teach against what it costs, on a smooth curve.

| symbol | shape | meaning |
| --- | --- | --- |
| x | (a,) | batch sizes in octaves from the default |
| f | (a,) | mean log of the cost in J; a straight line plus a smooth and a rough part, all Gaussian |
| y | (n,) | log cost of the finished runs |
| s2 | (a,) | variance of an arm's y about f, learned from its own repeats |
| m | (a,) | f + s2 / 2: log of the expected cost of a run, if costs are log-normal |

What differs from the published policy, and why: neighbouring batch sizes cost alike, so one run says something of all
and the walk ends where the curve rises; a new size is tried while what a run of it is expected to teach, over as many
runs as `horizon`, is worth more than its extra cost (the online knowledge gradient of Ryzhov, Powell and Frazier,
Operations Research 60, 2012, with several repeats looked ahead and correlated beliefs). So that one unlucky run
does not decide for ever, the contenders (sizes that may yet prove worth changing to) are then run by turns, that with
fewest runs first, while all runs together are believed to have cost less extra than `rounds` runs of every size in
reach: much where sizes differ, little where they cost alike. Savings below `worth` are not looked for, or two sizes of
one cost would take all these runs (the indifference zone of Bechhofer, Annals of Mathematical Statistics 25, 1954).
Afterwards one of the known sizes is drawn by its chance to be best (Thompson sampling). A size whose runs vary more
costs more in the mean than its usual run, hence s2 by arm; equal runs of one size do not say that another's are equal.
A run that missed the target is charged what it spent and the least cost, for the job must run again. Runs under another
power limit shift every arm alike, up to a small difference: they are a prior, not a measurement. Jobs that start
together do not try the same new size.
Not modelled: a cost with two far valleys is found only by walking through the hill.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energy_lightning.recurring.runs import Outcome, View

Floats = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)  # of a standard normal variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Standard deviations of log cost, a length in octaves, and how to choose: see benchmarks/RESULTS.md for on what.

    `noise_runs`: how many repeats of an arm the prior noise counts for; `horizon`: runs over which a lesson pays;
    `repeats`: of a size that are looked ahead; `most_extra`: a run costs at most this times the least more, as it is
    stopped at twice the least and made again; `rounds`: runs of each size whose extra cost may be spent on
    contenders; `worth`: least saving (log of cost) worth a change of size; `doubt`: a contender saves more with more
    than this chance; `boldness`: draws among known sizes spread by this share of the belief's deviation.
    """

    level: float = 2.0
    slope: float = 0.25
    smooth: float = 1.0
    length_octaves: float = 4.0
    rough: float = 0.06
    limit_shift: float = 0.3
    limit_arm: float = 0.05
    noise: float = 0.1
    noise_runs: float = 4.0
    horizon: float = 60.0
    repeats: tuple[int, ...] = (1, 2, 4, 8)
    most_extra: float = 2.0
    rounds: float = 1.5
    worth: float = 0.02
    doubt: float = 0.04
    boldness: float = 0.15


def suggest(view: View, rng: np.random.Generator, prior: Prior | None = None) -> int:
    """Index of the arm to run next."""
    view, prior = view.recent(), prior or Prior()
    within = _within_reach(view)
    if not view.outcomes or not within:
        return view.default
    mean, covariance = posterior(view, prior)
    noise = noise_by_arm(view, prior)
    expected = mean + 0.5 * noise
    price = {arm: _price(arm, expected, covariance, noise, within, prior) for arm in within}
    chosen = min(within, key=lambda arm: price[arm])
    known = sorted({outcome.arm for outcome in view.outcomes if outcome.reached})
    if chosen not in known:
        return chosen
    contenders = _contenders(view, expected, covariance, within, prior)
    if len(contenders) > 1:
        return min(contenders, key=lambda arm: (len(view.of(arm)) + (arm in view.running), expected[arm]))
    drawn = rng.multivariate_normal(expected, prior.boldness**2 * covariance, method="eigh")
    return min(known, key=lambda arm: drawn[arm])


def _contenders(view: View, expected: Floats, covariance: Floats, within: Sequence[int], prior: Prior) -> list[int]:
    """The arm believed best and those that may yet be worth changing to; none once the allowance is spent.

    Spent is what the runs so far are believed to have cost more than as many of the best arm.
    """
    best = min(within, key=lambda arm: expected[arm])
    extra = {arm: min(math.expm1(min(expected[arm] - expected[best], 700.0)), prior.most_extra) for arm in within}
    if sum(extra.get(outcome.arm, 0.0) for outcome in view.outcomes) >= prior.rounds * sum(extra.values()):
        return []

    def chance(arm: int) -> float:
        spread = covariance[arm, arm] + covariance[best, best] - 2.0 * covariance[arm, best]
        return 0.5 * math.erfc((expected[arm] - expected[best] + prior.worth) / math.sqrt(2.0 * max(spread, 1e-12)))

    return [arm for arm in within if arm == best or chance(arm) > prior.doubt]


def _price(arm: int, expected: Floats, covariance: Floats, noise: Floats, within: Sequence[int], prior: Prior) -> float:
    """Extra cost of a run of `arm` over the best arm's, less what it teaches, in units of the best arm's cost.

    Least over how often the run is repeated. Without noise in the posterior's mean nothing can be learned.
    """
    rivals = expected[list(within)]
    best = rivals.min()
    extra = min(float(np.exp(expected[arm] - best)) - 1.0, prior.most_extra)
    prices = []
    for repeats in prior.repeats:
        moves = covariance[list(within), arm] / np.sqrt(covariance[arm, arm] + noise[arm] / repeats)
        least = (rivals + _NODES[:, None] * moves).min(axis=1)
        lesson = max(0.0, float(best - _WEIGHTS @ least / _WEIGHTS.sum()))
        prices.append(extra - (prior.horizon - repeats) * lesson / repeats)
    return min(prices)


def means(view: View) -> tuple[Floats, Floats]:
    """(arms,) expected cost in J and its standard deviation; NaN for all arms before the first run."""
    if not view.outcomes:
        unknown = np.full(len(view.batch_sizes), np.nan)
        return unknown, unknown
    view, prior = view.recent(), Prior()
    mean, covariance = posterior(view, prior)
    cost: Floats = np.exp(mean + 0.5 * noise_by_arm(view, prior))
    return cost, cost * np.sqrt(np.diag(covariance))


def posterior(view: View, prior: Prior) -> tuple[Floats, Floats]:
    """Mean (a,) and covariance (a, a) of f under the view's power limit, given its finished runs (one at least)."""
    arm, y = _observed(view)
    octaves = np.log2(np.array(view.batch_sizes, float) / view.batch_sizes[view.default])
    apart = octaves[:, None] - octaves
    shared = prior.level**2 + prior.slope**2 * np.outer(octaves, octaves)
    shared = shared + prior.smooth**2 * np.exp(-0.5 * (apart / prior.length_octaves) ** 2)
    shared = shared + prior.rough**2 * np.eye(len(octaves))
    same = _same_limit(view)
    special = prior.limit_shift**2 + prior.limit_arm**2 * np.eye(len(octaves))
    now = same[-1]  # (n + 1,): which runs were made under the limit asked for
    between = shared[arm] + special[arm] * now[:-1, None]  # (n, a)
    seen = shared[np.ix_(arm, arm)] + special[np.ix_(arm, arm)] * same[:-1, :-1]
    seen = seen + np.diag(noise_by_arm(view, prior)[arm])
    gain = np.linalg.solve(seen, between).T  # (a, n)
    centre = y.mean()
    return centre + gain @ (y - centre), shared + special - gain @ between


def noise_by_arm(view: View, prior: Prior) -> Floats:
    """(a,) variance of log cost within an arm: the prior's, drawn towards what its own repeats show.

    Not towards other arms': many measured sizes take equally many epochs in every run, their neighbours do not. Runs of
    one arm under different power limits are no repeats of each other.
    """
    arm, y = _observed(view)
    limits = [outcome.power_limit_w for outcome in view.outcomes]
    cell = np.array([arm[index] + len(view.batch_sizes) * limits.index(limit) for index, limit in enumerate(limits)])
    squares, freedom = np.zeros(len(view.batch_sizes)), np.zeros(len(view.batch_sizes))
    for one in np.unique(cell):
        repeats = y[cell == one]
        squares[one % len(view.batch_sizes)] += ((repeats - repeats.mean()) ** 2).sum()
        freedom[one % len(view.batch_sizes)] += len(repeats) - 1
    by_arm: Floats = (prior.noise_runs * prior.noise**2 + squares) / (prior.noise_runs + freedom)
    return by_arm


def _observed(view: View) -> tuple[NDArray[np.intp], Floats]:
    """(n,) arm and log cost of each finished run, a missed target charged with the run that must follow."""
    least = view.least_cost()

    def charge(outcome: Outcome) -> float:
        again = 0.0 if outcome.reached else (outcome.cost if least is None else least)
        return max(outcome.cost + again, np.finfo(float).tiny)

    arm = np.array([outcome.arm for outcome in view.outcomes], dtype=np.intp)
    return arm, np.log([charge(outcome) for outcome in view.outcomes])


def _same_limit(view: View) -> Floats:
    """(n + 1, n + 1) 1.0 where two runs had one power limit; the last row is the limit asked for."""
    limits = [outcome.power_limit_w for outcome in view.outcomes] + [view.power_limit_w]
    kinds = np.array([limits.index(limit) for limit in limits])
    same: Floats = np.equal.outer(kinds, kinds).astype(float)
    return same


def _within_reach(view: View) -> list[int]:
    """Arms tried, and the arms next to one that reached the target (or to any, while none has) if not running now."""
    tried = {outcome.arm for outcome in view.outcomes}
    reached = {outcome.arm for outcome in view.outcomes if outcome.reached}
    beside = {arm + step for arm in reached or tried for step in (-1, 1)} & set(range(len(view.batch_sizes)))
    return sorted(((beside - tried) - view.running) | (tried if reached else set()))
