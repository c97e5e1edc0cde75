"""Resampling a fitted closed form: parameters under other weights of the rows, and residuals of honest size."""

from __future__ import annotations

import numpy as np

from energy_lightning.predict.columns import Floats
from energy_lightning.predict.fitting import Problem, robust_fit

_LEAST_RESIDUAL = 0.005  # no energy counter repeats better than half a percent


def draw_thetas(problem: Problem, theta: Floats, count: int, rng: np.random.Generator) -> list[Floats]:
    """`count` draws of theta (p,): Dirichlet weights on the rows, the prior's mean moved by its own deviation.

    Moving the prior keeps parameters that the table says nothing about as uncertain as the prior leaves them.
    Source: Rubin, "The Bayesian Bootstrap" (1981).
    """
    mean, deviation = problem.priors()
    low, high = problem.bounds()
    n = len(problem.target)
    draws = []
    for _ in range(count):
        moved = np.clip(mean + deviation * rng.normal(size=len(mean)), low, high)
        weights = rng.dirichlet(np.ones(n)) * n
        fit = robust_fit(problem, [theta[problem.free]], weights=weights, prior_mean=moved, most_evaluations=12)
        draws.append(fit)
    return draws


def inflated_residuals(residual: Floats, num_parameters: int) -> Floats:
    """Residuals (n,) without their mean, enlarged for the parameters spent on them (at most half the rows count)."""
    n = len(residual)
    centred = residual - residual.mean()
    inflated = centred * np.sqrt(n / (n - min(num_parameters, n / 2.0)))
    spread = float(inflated.std())
    if spread < _LEAST_RESIDUAL:
        return np.linspace(-2.0, 2.0, n) * _LEAST_RESIDUAL
    return np.asarray(inflated)
