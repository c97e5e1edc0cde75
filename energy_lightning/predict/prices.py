"""Prices of work in joules, fitted to the runs of all GPU models at once so that each leans on the others.

    ln E = level + slope (ln R - level) + offset_g + effects X,   R = sum_k price_gk work_k,   price_gk = e^(m_k + d_gk)

    symbol   shape    meaning                               prior (normal)
    n, t, G  -        runs, kinds of work, GPU models
    m        (t,)     ln of the prices, joules a unit       what a GPU of 10 TFLOP/s, 500 GB/s and 200 W spends, 1.5
    offset   (G,)     ln of how costly a GPU model is       the median that the table says, 3
    d        (G, t)   a GPU model's own prices              0, 0.8 (0 where there is but one GPU model)
    effects  (f,)     strategies, ln of the efficiency      0, 0.15
    slope    -        of ln R                               1, 0.05

Minimises sum_i rho(r_i / noise) + sum_k ((theta_k - mean_k) / deviation_k)^2 / 2 with rho the pseudo-Huber loss (see
`loss`), by Levenberg-Marquardt with analytic gradients; noise is estimated from what is left. What few runs cannot tell
stays at its prior or at the other GPU models' prices (partial pooling), so the law needs no fewest number of runs a GPU
model.

Priors are ours. Source of partial pooling: Gelman & Hill, Data Analysis Using Regression and Multilevel Models (2007).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from energy_lightning.predict.columns import Columns, Floats
from energy_lightning.predict.loss import bent, bent_slope

# Of the GPU in the table above, fp16 or fp32: 2e-11 J a FLOP at full load, 4e-10 J a byte; a layer launches about 50
# kernels of 10 us, forward and backward. A hidden value is read and written some 20 times, a weight's update 30 bytes.
_PRIOR_J = {
    "J per FLOP": 1e-11,
    "J per hidden value": 2e-8,
    "J per ffn value": 1e-8,
    "J per attention score": 2e-8,
    "J per weight and step": 1e-8,
    "J per layer and step": 0.1,
    "J per step": 0.3,
    "J per run": 30.0,
    "J per tp value sent": 1e-7,
    "J per tp layer, step and GPU": 0.1,
    "J per fsdp weight sent": 1e-7,
    "J per fsdp layer, step and GPU": 0.1,
    "J per layer, step and further GPU": 0.05,
    "J per run and further GPU": 30.0,
}
_PRICE_DEVIATION, _OFFSET_DEVIATION, _OWN_DEVIATION = 1.5, 3.0, 0.8
_EFFECT_DEVIATION, _SLOPE_DEVIATION = 0.15, 0.05
_ROUNDS = 3
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.08, 0.03, 0.5
_MOST_EVALUATIONS = 60
_TOLERANCE = 1e-5
_NOTHING = 1e-300


@dataclass(frozen=True, slots=True)
class Prices:
    """What was fitted.

    Attributes:
        by_group: (G, t) joules a unit of work, the offset included.
        intercept, slope: ln E = intercept + slope ln R + effects X, with R by these prices.
        effects: (f,). noise: relative error of a run. leverages: (n,), whose sum is the effective number of parameters.
    """

    by_group: Floats
    intercept: float
    slope: float
    effects: Floats
    noise: float
    leverages: Floats


def fit_prices(work: Columns, effects: Columns, log_energy: Floats, group: np.ndarray) -> Prices:
    """Fit to n runs: `work` (n,) each >= 0 by names of prices, `effects` (n,) each, `group` (n,) from 0 to G - 1."""
    problem = _Problem.of(work, effects, log_energy, group)
    theta, noise = problem.mean, _FIRST_NOISE
    for _ in range(_ROUNDS):
        theta = problem.solve(theta, noise)
        leverages = problem.leverages(theta, noise)
        left = log_energy - problem.predict(theta)
        degrees = max(len(left) - float(leverages.sum()), 3.0)
        noise = float(np.clip(np.sqrt((left**2).sum() / degrees), _LEAST_NOISE, _MOST_NOISE))
    prices, offset, own, coefficients, slope = problem.split(theta)
    # With R by prices that hold the offset: slope (ln R - offset - level) + level + offset.
    log_prices = prices + own + offset[:, None] / slope
    return Prices(np.exp(log_prices), problem.level * (1.0 - slope), float(slope), coefficients, noise, leverages)


@dataclass(frozen=True, slots=True)
class _Problem:
    """theta = (m, offset, d, effects, slope); `log_work` (n, t), `effects` (n, f), `member` (n, G) of 0 and 1."""

    log_work: Floats
    effects: Floats
    target: Floats
    group: np.ndarray
    member: Floats
    level: float
    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, work: Columns, effects: Columns, target: Floats, group: np.ndarray) -> _Problem:
        log_work = np.log(np.maximum(np.stack(list(work.values()), axis=1), _NOTHING))
        member = np.eye(int(group.max()) + 1)[group]
        log_prices = np.log([_PRIOR_J[name] for name in work])
        expected = np.logaddexp.reduce(log_work + log_prices, axis=1)
        offset = np.array([np.median((target - expected)[of > 0.0]) for of in member.T])
        own, num_groups = np.zeros(member.shape[1] * len(work)), member.shape[1]
        mean = np.concatenate([log_prices, offset, own, np.zeros(len(effects)), [1.0]])
        deviation = np.concatenate(
            [
                np.full(len(work), _PRICE_DEVIATION),
                np.full(num_groups, _OFFSET_DEVIATION),
                np.full(len(own), _OWN_DEVIATION if num_groups > 1 else 1e-6),
                np.full(len(effects), _EFFECT_DEVIATION),
                [_SLOPE_DEVIATION],
            ]
        )
        columns = np.stack(list(effects.values()), axis=1) if effects else np.empty((len(target), 0))
        return cls(log_work, columns, target, group, member, float(expected.mean()), mean, deviation)

    def split(self, theta: Floats) -> tuple[Floats, Floats, Floats, Floats, float]:
        """m (t,), offset (G,), d (G, t), effects (f,), slope."""
        t, g = self.log_work.shape[1], self.member.shape[1]
        own = theta[t + g : t + g + g * t].reshape(g, t)
        return theta[:t], theta[t : t + g], own, theta[t + g + g * t : -1], float(theta[-1])

    def _log_terms(self, theta: Floats) -> Floats:
        prices, _, own, _, _ = self.split(theta)
        return np.asarray(self.log_work + prices + own[self.group])

    def predict(self, theta: Floats) -> Floats:
        """ln E, (n,)."""
        _, offset, _, coefficients, slope = self.split(theta)
        log_work = np.logaddexp.reduce(self._log_terms(theta), axis=1)
        return np.asarray(
            self.level + slope * (log_work - self.level) + offset[self.group] + self.effects @ coefficients
        )

    def gradient(self, theta: Floats) -> Floats:
        """(n, p): derivative of ln E by theta."""
        terms = self._log_terms(theta)
        log_work = np.logaddexp.reduce(terms, axis=1)
        shares = theta[-1] * np.exp(terms - log_work[:, None])
        own = (self.member[:, :, None] * shares[:, None, :]).reshape(len(terms), -1)
        return np.hstack([shares, self.member, own, self.effects, (log_work - self.level)[:, None]])

    def solve(self, start: Floats, noise: float) -> Floats:
        """theta of least loss."""

        def residuals(theta: Floats) -> Floats:
            off = (self.predict(theta) - self.target) / noise
            return np.concatenate([bent(off), (theta - self.mean) / self.deviation])

        def jacobian(theta: Floats) -> Floats:
            slope = bent_slope((self.predict(theta) - self.target) / noise) / noise
            return np.vstack([slope[:, None] * self.gradient(theta), np.diag(1.0 / self.deviation)])

        found = least_squares(
            residuals,
            start,
            jacobian,
            method="lm",
            x_scale=self.deviation,
            max_nfev=_MOST_EVALUATIONS,
            ftol=_TOLERANCE,
            xtol=_TOLERANCE,
            gtol=_TOLERANCE,
        )
        return np.asarray(found.x)

    def leverages(self, theta: Floats, noise: float) -> Floats:
        """(n,): how much each run decides its own prediction."""
        gradient = self.gradient(theta) / noise
        inverse = np.linalg.inv(gradient.T @ gradient + np.diag(self.deviation**-2.0))
        return np.asarray(np.einsum("ij,jk,ik->i", gradient, inverse, gradient))
