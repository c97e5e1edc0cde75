"""Fitting a closed form to a table: robust with priors (default), or as published. All seeded and single-threaded.

Robust: minimises  sum_i w_i rho(r_i / scale) + sum_k ((theta_k - mean_k) / deviation_k)^2 / 2  with r = ln(predicted /
measured) and rho the pseudo-Huber loss (`loss`): relative errors count alike in both directions, outliers grow
linearly, and parameters that the table says little about stay at their priors. Analytic gradients, trust-region least
squares, several starts. Published: mean absolute percentage error by L-BFGS-B from uniform random starts, no priors.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, minimize

from energy_lightning.predict.columns import Floats
from energy_lightning.predict.form import Form, LogColumns, log_energy
from energy_lightning.predict.loss import bent, bent_slope

_SCALE = 0.07  # relative error beyond which the loss bends
_MOST_EVALUATIONS = 100
_TOLERANCE = 1e-6
_START_SPREAD = 0.7
_EFFECT_ROUNDS = 3
_LEAST_EFFECT_VARIANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Problem:
    """What is fitted to what.

    Attributes:
        form, logs: the closed form and the logarithms of the columns.
        target: (n,) ln E less its mean.
        fixed: theta of the parameters that the table cannot tell.
    """

    form: Form
    logs: LogColumns
    target: Floats
    fixed: Mapping[str, float]

    def __post_init__(self) -> None:
        names = {parameter.name for parameter in self.form.parameters}
        assert set(self.fixed) <= names, sorted(set(self.fixed) - names)

    @property
    def free(self) -> np.ndarray:
        """Indices of the parameters to fit."""
        return np.array([i for i, p in enumerate(self.form.parameters) if p.name not in self.fixed], dtype=np.intp)

    def full(self, free_theta: Floats) -> Floats:
        """(p,): all parameters, from the free ones."""
        theta = np.array([self.fixed.get(p.name, p.mean) for p in self.form.parameters])
        theta[self.free] = free_theta
        return theta

    def bounds(self) -> tuple[Floats, Floats]:
        """Of the free parameters."""
        free = [self.form.parameters[i] for i in self.free]
        return np.array([p.low for p in free]), np.array([p.high for p in free])

    def priors(self) -> tuple[Floats, Floats]:
        """Means and deviations of the free parameters."""
        free = [self.form.parameters[i] for i in self.free]
        return np.array([p.mean for p in free]), np.array([p.deviation for p in free])


def robust_fit(
    problem: Problem,
    starts: Sequence[Floats],
    *,
    weights: Floats | None = None,
    prior_mean: Floats | None = None,
    most_evaluations: int = _MOST_EVALUATIONS,
) -> Floats:
    """theta (p,) of the best of several starts (each the free parameters); `weights` (n,) of the rows, mean 1."""
    mean, deviation = problem.priors()
    mean = mean if prior_mean is None else prior_mean
    root = np.ones(len(problem.target)) if weights is None else np.sqrt(weights)
    low, high = problem.bounds()

    def relative(free_theta: Floats) -> Floats:
        return (log_energy(problem.form, problem.full(free_theta), problem.logs) - problem.target) / _SCALE

    def residuals(free_theta: Floats) -> Floats:
        return np.concatenate([root * bent(relative(free_theta)), (free_theta - mean) / deviation])

    def jacobian(free_theta: Floats) -> Floats:
        slope = root * bent_slope(relative(free_theta)) / _SCALE
        gradient = problem.form.gradient(problem.full(free_theta), problem.logs)[:, problem.free]
        return np.vstack([slope[:, None] * gradient, np.diag(1.0 / deviation)])

    fits = [
        least_squares(
            residuals,
            np.clip(start, low + 1e-6, high - 1e-6),
            jacobian,
            (low, high),
            ftol=_TOLERANCE,
            xtol=_TOLERANCE,
            gtol=_TOLERANCE,
            max_nfev=most_evaluations,
        )
        for start in starts
    ]
    return problem.full(min(fits, key=lambda fit: fit.cost).x)


def prior_starts(problem: Problem, count: int, rng: np.random.Generator) -> list[Floats]:
    """The prior's mean and draws around it."""
    mean, deviation = problem.priors()
    draws = rng.normal(size=(count - 1, len(mean)))
    return [mean, *(mean + _START_SPREAD * deviation * draw for draw in draws)]


def published_fit(problem: Problem, count: int, rng: np.random.Generator) -> Floats:
    """theta (p,) of least mean absolute percentage error: L-BFGS-B from `count` uniform random starts.

    The published text names no range to draw alpha and delta from; here two deviations of the prior.
    """
    low, high = problem.bounds()
    mean, deviation = problem.priors()
    draw_low, draw_high = np.maximum(low, mean - 2.0 * deviation), np.minimum(high, mean + 2.0 * deviation)

    def objective(free_theta: Floats) -> tuple[float, Floats]:
        theta = problem.full(free_theta)
        log_ratio = log_energy(problem.form, theta, problem.logs) - problem.target
        ratio = np.exp(np.minimum(log_ratio, 50.0))
        slope = np.sign(ratio - 1.0) * ratio
        gradient = problem.form.gradient(theta, problem.logs)[:, problem.free]
        return float(np.abs(ratio - 1.0).mean()), gradient.T @ slope / len(slope)

    fits = [
        minimize(
            objective,
            rng.uniform(draw_low, draw_high),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(low, high, strict=True)),
        )
        for _ in range(count)
    ]
    return problem.full(min(fits, key=lambda fit: float(fit.fun)).x)


@dataclass(frozen=True, slots=True)
class Effects:
    """Logarithm of the factor of each group of rows, shrunk towards 0 by how much its rows agree."""

    of: Mapping[Hashable, float]

    @classmethod
    def none(cls) -> Effects:
        """No group has a factor."""
        return cls({})

    @classmethod
    def estimate(cls, groups: Sequence[Hashable], residual: Floats) -> Effects:
        """Variance components by moments, then the best linear unbiased prediction of each group's mean.

        Source: Searle, Casella & McCulloch, Variance Components (1992), one-way random model.
        """
        names = list(dict.fromkeys(groups))
        member = np.array([names.index(group) for group in groups])
        counts = np.bincount(member).astype(np.float64)
        means = np.bincount(member, residual) / counts
        within = float(((residual - means[member]) ** 2).sum()) / max(len(residual) - len(names), 1)
        spread = float((counts * means**2).sum() - len(names) * within) / len(residual)
        between = max(spread, _LEAST_EFFECT_VARIANCE)
        shrunk = means * between / (between + within / counts)
        return cls(dict(zip(names, shrunk.tolist(), strict=True)))

    def on(self, groups: Sequence[Hashable]) -> Floats:
        """(n,): of each row; 0 for groups that were not seen."""
        return np.array([self.of.get(group, 0.0) for group in groups], dtype=np.float64)


def fit_with_effects(problem: Problem, theta: Floats, groups: Sequence[Hashable]) -> tuple[Floats, Effects]:
    """Form and group factors together: fitted in turn from `theta`, a few rounds (they settle in two or three)."""
    effects = Effects.none()
    for _ in range(_EFFECT_ROUNDS):
        residual = problem.target - log_energy(problem.form, theta, problem.logs)
        effects = Effects.estimate(groups, residual)
        adjusted = Problem(problem.form, problem.logs, problem.target - effects.on(groups), problem.fixed)
        theta = robust_fit(adjusted, [theta[problem.free], problem.priors()[0]])
    residual = problem.target - log_energy(problem.form, theta, problem.logs)
    return theta, Effects.estimate(groups, residual)
