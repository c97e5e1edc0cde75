"""Beliefs from what runs cost alone (floor 1): where no run tells how many evaluations it took.

| symbol | shape | meaning |
| --- | --- | --- |
| x | (a,) | batch sizes in octaves from the default |
| f | (a,) | mean log of the cost in J: a curve over x |
| y | (n,) | log cost of the finished runs |
| s2 | (a,) | variance of an arm's y about f, learned from its own repeats |

The expected cost is exp(f + s2 / 2), if costs are log-normal: a size whose runs vary more costs more in the mean than
its usual run. A run that missed the target is charged what it spent, the least cost at least, and the least cost, for
the job must run again. Runs under another power limit shift every arm alike, up to a small difference: they are a
prior, not a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from energy_lightning.recurring.beliefs import Beliefs, Curve, Floats, Pooled, limits_of, octaves_of, strays
from energy_lightning.recurring.runs import Outcome, View


def _curve() -> Curve:
    return Curve(level=2.0, slope=0.25, smooth=1.0, length_octaves=4.0, rough=0.06)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPrior:
    """Standard deviations of log cost; `noise_runs`: how many repeats of an arm the prior noise counts for."""

    curve: Curve = field(default_factory=_curve)
    limit_shift: float = 0.3
    limit_arm: float = 0.05
    noise: float = 0.1
    noise_runs: float = 4.0


def beliefs(view: View, prior: CostPrior) -> Beliefs:
    """From finished runs, one at least."""
    mean, covariance = posterior(view, prior)
    noise = noise_by_arm(view, prior)
    return Beliefs(expected=mean + 0.5 * noise, covariance=covariance, noise=noise)


def posterior(view: View, prior: CostPrior) -> tuple[Floats, Floats]:
    """Mean (a,) and covariance (a, a) of f under the view's power limit, given its finished runs (one at least)."""
    arm, y = _observed(view)
    limits, shared = limits_of(view), prior.curve.covariance(octaves_of(view))
    special = prior.limit_shift**2 + prior.limit_arm**2 * np.eye(len(shared))
    centre = y.mean()
    pooled = Pooled.of(arm, limits[:-1], y - centre, noise_by_arm(view, prior)[arm])
    mean, covariance = pooled.on_curve(shared, special, int(limits[-1]))
    return centre + mean, covariance


def noise_by_arm(view: View, prior: CostPrior) -> Floats:
    """(a,) variance of log cost within an arm: the prior's, drawn towards what its own repeats show.

    Not towards other arms': many measured sizes take equally many epochs in every run, their neighbours do not. Runs of
    one arm under different power limits are no repeats of each other.
    """
    (arm, y), arms = _observed(view), len(view.batch_sizes)
    one, within, repeats = strays(arm + arms * limits_of(view)[:-1], y)
    squares, freedom = (np.bincount(arm[one], each, minlength=arms) for each in (within, repeats))
    by_arm: Floats = (prior.noise_runs * prior.noise**2 + squares) / (prior.noise_runs + freedom)
    return by_arm


def _observed(view: View) -> tuple[NDArray[np.intp], Floats]:
    """(n,) arm and log cost of each finished run, a missed target charged with the run that must follow."""
    least = view.least_cost()

    def charge(outcome: Outcome) -> float:
        cost = outcome.cost
        if not outcome.reached:  # what broke off early, out of memory say, is no cheaper for that
            cost = 2.0 * cost if least is None else max(cost, least) + least
        return max(cost, np.finfo(float).tiny)

    arm = np.array([outcome.arm for outcome in view.outcomes], dtype=np.intp)
    return arm, np.log([charge(outcome) for outcome in view.outcomes])
