"""The default policy for recurring jobs (floor 1): what a run may teach against what it costs, on a smooth curve.

What differs from the published policy, and why: neighbouring batch sizes cost alike, so one run says something of all
and the walk ends where the curve rises (`counts` and `costs` tell how); a new size is tried while what a run of it is
expected to teach, over as many runs as `horizon`, is worth more than its extra cost (the online knowledge gradient of
Ryzhov, Powell and Frazier, Operations Research 60, 2012, with several repeats looked ahead and correlated beliefs).
Otherwise one of the known sizes is drawn by its chance to be the cheapest (Thompson sampling), so that one unlucky run
does not decide for ever. Draws spread less than beliefs do, and less the more often a size has run, where all runs
together are believed to have cost as much extra as must be spent by whoever never stops learning: in proportion to
the logarithm of their number (Lai and Robbins, Advances in Applied Mathematics 6, 1985). After two runs for each size
the runs of known sizes together must not cost more than the default would have, but for what they had cost more by then
and a few percent (conservative exploration; Wu, Shariff, Lattimore and Szepesvari, ICML 2016). Jobs that start together
do not try the same new size.
Not modelled: a cost with two far valleys is found only by walking through the hill.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from energy_lightning.recurring import costs, counts
from energy_lightning.recurring.beliefs import Beliefs, Floats
from energy_lightning.recurring.costs import CostPrior
from energy_lightning.recurring.counts import CountPrior
from energy_lightning.recurring.runs import View

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)  # of a standard normal variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is believed before any run, and how to choose: see benchmarks/RESULTS.md for on what.

    `horizon`: runs over which a lesson pays, the window at most; `repeats`: of a size that are looked ahead;
    `most_extra`: a run costs at most this times the least more, as it is stopped at twice the least and made again;
    `rounds`: runs of each size in reach whose extra cost is to be spent, times the logarithm of the number of runs;
    `boldness`: part of the belief's deviation by which a size with one run is drawn once that is spent; it falls with
    the root of its runs to `settled`;
    `allowance`: part of the default's cost by which each run may cost more than it, as far as is believed plus
    `caution` deviations of the belief.
    """

    counts: CountPrior = field(default_factory=CountPrior)
    costs: CostPrior = field(default_factory=CostPrior)
    horizon: float = 60.0
    repeats: tuple[int, ...] = (1, 2, 4, 8)
    most_extra: float = 2.0
    rounds: float = 0.4
    boldness: float = 0.75
    settled: float = 0.4
    allowance: float = 0.03
    caution: float = 1.5


def suggest(view: View, rng: np.random.Generator, prior: Prior | None = None) -> int:
    """Index of the arm to run next."""
    prior = prior or Prior()
    if view.window is not None:  # a lesson is forgotten with the run that taught it
        prior = replace(prior, horizon=min(prior.horizon, float(view.window)))
    view = view.recent()
    within = _within_reach(view)
    if not view.outcomes or not within:
        return view.default
    beliefs = _beliefs(view, prior)
    extra = _extra(beliefs.expected, within, prior)
    price = {arm: _price(arm, extra[arm], beliefs, within, prior) for arm in within}
    chosen = min(within, key=lambda arm: price[arm])
    known = sorted({outcome.arm for outcome in view.outcomes if outcome.reached})
    if chosen not in known:
        return chosen
    away = rng.multivariate_normal(np.zeros_like(beliefs.expected), beliefs.covariance, method="eigh")
    drawn = beliefs.expected + _spread(view, extra, prior) * away
    return _conservative(min(known, key=lambda arm: drawn[arm]), known, view, beliefs, prior)


def _conservative(chosen: int, known: Sequence[int], view: View, beliefs: Beliefs, prior: Prior) -> int:
    """`chosen`, or the size that surely costs little more than the default where the runs together cost more than it.

    What they cost more in the first two runs for each size is the price of exploring, and allowed.
    """
    start = 2 * len(view.batch_sizes)
    if len(view.outcomes) < start:
        return chosen
    covariance, default = beliefs.covariance, view.default
    variance = np.diag(covariance) + covariance[default, default] - 2.0 * covariance[:, default]
    above = beliefs.expected - beliefs.expected[default] + prior.caution * np.sqrt(np.maximum(variance, 0.0))
    more = np.minimum(np.expm1(np.minimum(above, 700.0)), prior.most_extra) - prior.allowance
    sums = np.cumsum([more[outcome.arm] for outcome in view.outcomes])
    if sums[-1] + more[chosen] <= max(0.0, sums[:start].max()):
        return chosen
    return min(known, key=lambda arm: float(more[arm]))


def _spread(view: View, extra: Mapping[int, float], prior: Prior) -> Floats:
    """(a,) part of the belief's deviation by which each arm is drawn. One that only missed its target owes nothing."""
    runs, reached = (np.zeros(len(view.batch_sizes)) for _ in range(2))
    for outcome in view.outcomes:
        runs[outcome.arm] += 1.0
        reached[outcome.arm] += outcome.reached
    due = {arm: cost for arm, cost in extra.items() if reached[arm] or not runs[arm]}
    spent = sum(cost * runs[arm] for arm, cost in due.items())
    if spent < prior.rounds * math.log(runs.sum()) * sum(due.values()):
        return np.ones(len(runs))
    return np.maximum(prior.settled, prior.boldness / np.sqrt(np.maximum(runs, 1)))


def means(view: View) -> tuple[Floats, Floats]:
    """(arms,) expected cost in J and its standard deviation; NaN for all arms before the first run.

    NaN too for arms that were not tried and lie beyond one that never reached the target: that is no guide to them.
    """
    view = view.recent()
    if not view.outcomes:
        unknown = np.full(len(view.batch_sizes), np.nan)
        return unknown, unknown
    beliefs = _beliefs(view, Prior())
    cost: Floats = np.exp(beliefs.expected)
    cost[_beyond_a_miss(view)] = np.nan
    return cost, cost * np.sqrt(np.diag(beliefs.covariance))


def _beyond_a_miss(view: View) -> list[int]:
    """Arms that were not tried, beyond the outermost ones that reached the target and one that never did."""
    reached = {outcome.arm for outcome in view.outcomes if outcome.reached}
    missed = {outcome.arm for outcome in view.outcomes} - reached
    if not reached:
        return []
    above = min((arm for arm in missed if arm > max(reached)), default=len(view.batch_sizes))
    below = max((arm for arm in missed if arm < min(reached)), default=-1)
    return [arm for arm in range(len(view.batch_sizes)) if not below <= arm <= above and arm not in missed]


def _beliefs(view: View, prior: Prior) -> Beliefs:
    return counts.beliefs(view, prior.counts) if counts.counted(view) else costs.beliefs(view, prior.costs)


def _extra(expected: Floats, within: Sequence[int], prior: Prior) -> dict[int, float]:
    """What a run of each arm within reach costs more than one of the best, in units of the best arm's cost."""
    best = expected[list(within)].min()
    return {arm: min(math.expm1(min(expected[arm] - best, 700.0)), prior.most_extra) for arm in within}


def _price(arm: int, extra: float, beliefs: Beliefs, within: Sequence[int], prior: Prior) -> float:
    """Extra cost of a run of `arm` over the best arm's, less what it teaches, in units of the best arm's cost.

    Least over how often the run is repeated. Without noise in the posterior's mean nothing can be learned.
    """
    rivals, covariance = beliefs.expected[list(within)], beliefs.covariance
    best = rivals.min()
    prices = []
    for repeats in prior.repeats:
        moves = covariance[list(within), arm] / np.sqrt(covariance[arm, arm] + beliefs.noise[arm] / repeats)
        least = (rivals + _NODES[:, None] * moves).min(axis=1)
        lesson = max(0.0, float(best - _WEIGHTS @ least / _WEIGHTS.sum()))
        prices.append(extra - (prior.horizon - repeats) * lesson / repeats)
    return min(prices)


def _within_reach(view: View) -> list[int]:
    """Arms tried, and the arms next to one that reached the target (or to any, while none has) if not running now."""
    tried = {outcome.arm for outcome in view.outcomes}
    reached = {outcome.arm for outcome in view.outcomes if outcome.reached}
    beside = {arm + step for arm in reached or tried for step in (-1, 1)} & set(range(len(view.batch_sizes)))
    return sorted(((beside - tried) - view.running) | (tried if reached else set()))
