"""The default policy for recurring jobs (floor 1): Thompson sampling on a smooth curve of cost over batch size.

| symbol | shape | meaning |
| --- | --- | --- |
| x | (a,) | batch sizes in octaves from the default |
| f | (a,) | log of the mean cost in J; a straight line plus a smooth and a rough part, all Gaussian |
| y | (n,) | log cost of the finished runs |
| s2 | | variance of y about f, learned from repeats of the same batch size |

What differs from the published policy, and why: neighbouring batch sizes cost alike, so one run says something of all,
a size that is plainly dear is not tried twice, and the walk ends where the curve rises; the variance is pooled over
arms, as two runs of one arm tell little of it; a run that missed the target is charged what it spent and the least
cost, for the job must run again. Runs under another power limit shift every arm alike, up to a small difference: they
are a prior, not a measurement. Jobs that start together do not try the same new size.
Not modelled: noise that differs by arm; a cost with two far valleys is found only by walking through the hill.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energy_lightning.recurring.runs import Outcome, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Standard deviations of log cost, and a length in octaves: broad guesses, chosen on replays of published jobs.

    `noise_runs`: how many repeats the prior noise counts for; `boldness`: draws spread by this share of the belief's
    deviation, as a hundred runs do not repay the exploring that endless ones would.
    """

    level: float = 2.0
    slope: float = 0.25
    smooth: float = 1.0
    length_octaves: float = 4.0
    rough: float = 0.08
    limit_shift: float = 0.3
    limit_arm: float = 0.05
    noise: float = 0.1
    noise_runs: float = 4.0
    boldness: float = 0.7


def suggest(view: View, rng: np.random.Generator, prior: Prior | None = None) -> int:
    """Index of the arm to run next: the least of one draw of f over the arms within reach."""
    view = view.recent()
    within = _within_reach(view)
    if not view.outcomes or not within:
        return view.default
    prior = prior or Prior()
    mean, covariance = posterior(view, prior)
    drawn = rng.multivariate_normal(mean, prior.boldness**2 * covariance, method="eigh")
    return min(within, key=lambda arm: drawn[arm])


def means(view: View) -> tuple[np.ndarray, np.ndarray]:
    """(arms,) believed mean cost in J and its standard deviation; NaN for all arms before the first run."""
    if not view.outcomes:
        unknown = np.full(len(view.batch_sizes), np.nan)
        return unknown, unknown
    mean, covariance = posterior(view.recent(), Prior())
    return np.exp(mean), np.exp(mean) * np.sqrt(np.diag(covariance))


def posterior(view: View, prior: Prior) -> tuple[np.ndarray, np.ndarray]:
    """Mean (a,) and covariance (a, a) of f under the view's power limit, given its finished runs (one at least)."""
    arm = np.array([outcome.arm for outcome in view.outcomes])
    y = np.log(_charged(view))
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
    seen = seen + noise_variance(arm, y, prior) * np.eye(len(y))
    gain = np.linalg.solve(seen, between).T  # (a, n)
    centre = y.mean()
    return centre + gain @ (y - centre), shared + special - gain @ between


def noise_variance(arm: np.ndarray, y: np.ndarray, prior: Prior) -> float:
    """Pooled variance of log cost within arms, the prior counted as `noise_runs` repeats. arm (n,), y (n,)."""
    squares, freedom = 0.0, 0
    for one in np.unique(arm):
        repeats = y[arm == one]
        squares += float(((repeats - repeats.mean()) ** 2).sum())
        freedom += len(repeats) - 1
    return (prior.noise_runs * prior.noise**2 + squares) / (prior.noise_runs + freedom)


def _charged(view: View) -> np.ndarray:
    """(n,) cost in J of each finished run, a missed target with the run that must follow."""
    least = view.least_cost()

    def charge(outcome: Outcome) -> float:
        again = 0.0 if outcome.reached else (outcome.cost if least is None else least)
        return max(outcome.cost + again, np.finfo(float).tiny)

    return np.array([charge(outcome) for outcome in view.outcomes])


def _same_limit(view: View) -> np.ndarray:
    """(n + 1, n + 1) 1.0 where two runs had one power limit; the last row is the limit asked for."""
    limits = [outcome.power_limit_w for outcome in view.outcomes] + [view.power_limit_w]
    kinds = np.array([limits.index(limit) for limit in limits])
    same: np.ndarray = np.equal.outer(kinds, kinds).astype(float)
    return same


def _within_reach(view: View) -> list[int]:
    """Arms tried, and the arms next to one that reached the target (or to any, while none has) if not running now."""
    tried = {outcome.arm for outcome in view.outcomes}
    reached = {outcome.arm for outcome in view.outcomes if outcome.reached}
    beside = {arm + step for arm in reached or tried for step in (-1, 1)} & set(range(len(view.batch_sizes)))
    return sorted(((beside - tried) - view.running) | (tried if reached else set()))
