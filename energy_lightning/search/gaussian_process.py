"""Gaussian process regression over a finite set of candidates; hyperparameters by maximum a posteriori.

    symbol    shape     meaning
    N, n, d             candidates, observations, features
    target    (n,)      standardised to mean 0 and standard deviation 1 inside
    theta     (d + 2,)  log length scales, log signal deviation, log noise deviation of a single measurement
    kernel    (n, n)    Matern 5/2 of r, r^2 = sum of squared feature differences / length scale^2
    noise     (n,)      noise variance / repeats: means of more windows are trusted more
    whitened  (n, N)    L^-1 k(observations, candidates), L the Cholesky factor of kernel + noise

Source: Rasmussen & Williams (2006), chapters 2 and 5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from energy_lightning.search.features import Features
from energy_lightning.search.space import Floats

# Log-normal priors (mean, deviation of the logarithm) and bounds, for features in [0, 1] and standardised targets.
_LENGTH_SCALE, _SIGNAL, _NOISE = (0.0, 1.0), (0.0, 1.0), (-6.0, 2.0)
_BOUNDS = ((-4.0, 5.0), (-3.0, 3.0), (-9.0, 0.0))
_START_NOISE = -4.0
_MOST_STEPS = 40
_JITTER = 1e-8
_ROOT5 = float(np.sqrt(5.0))


class GaussianProcess:
    """Fitted on construction; then knows mean and variance of every candidate and can assume further measurements.

    Args:
        features: of all N candidates.
        rows: (n,) the observed candidates, all different.
        target: (n,) finite observed values.
        num_repeats: (n,) measurements behind each value.
    """

    def __init__(self, features: Features, rows: NDArray[np.intp], target: Floats, num_repeats: Floats) -> None:
        self._features = features
        self._everything = np.arange(len(features.values))
        self._offset, self._scale = float(target.mean()), float(target.std()) or 1.0
        standardised = (target - self._offset) / self._scale
        self._theta = _fit(np.stack([*features.squared_differences(rows, rows)], axis=-1), standardised, num_repeats)
        self._noise = float(np.exp(2.0 * self._theta[-1]))
        factor = cholesky(self._kernel(rows, rows) + np.diag(self._noise / num_repeats + _JITTER), lower=True)
        self._whitened = solve_triangular(factor, self._kernel(rows, self._everything), lower=True)
        level = _level(factor, standardised)
        self._mean = level + self._whitened.T @ solve_triangular(factor, standardised - level, lower=True)
        self._variance = np.exp(2.0 * self._theta[-2]) - (self._whitened**2).sum(axis=0)

    @property
    def mean(self) -> Floats:
        """Posterior mean (N,) in the target's unit."""
        return self._offset + self._scale * self._mean

    @property
    def std(self) -> Floats:
        """Posterior standard deviation (N,) of the noise-free value, in the target's unit."""
        std: Floats = self._scale * np.sqrt(np.maximum(self._variance, 1e-12))
        return std

    def assume_measured(self, candidate: int) -> None:
        """Shrink the variances as if `candidate` had been measured at its mean (which moves no mean). O(n N)."""
        covariance = self._kernel(np.array([candidate]), self._everything)[0]
        covariance = covariance - self._whitened.T @ self._whitened[:, candidate]
        row = covariance / np.sqrt(max(self._variance[candidate], 0.0) + self._noise + _JITTER)
        self._whitened = np.vstack([self._whitened, row])
        self._variance = self._variance - row**2

    def _kernel(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Floats:
        weights = np.exp(-2.0 * self._theta[:-2])
        squared = np.zeros((len(rows), len(columns)))
        for weight, differences in zip(weights, self._features.squared_differences(rows, columns), strict=True):
            squared += weight * differences
        return _matern(squared, float(self._theta[-2]))[0]


def _fit(squared: Floats, target: Floats, num_repeats: Floats) -> Floats:
    """The theta of the highest posterior density, from one fixed start. `squared` is (n, n, d)."""
    d = squared.shape[-1]
    start = np.concatenate([np.full(d, _LENGTH_SCALE[0]), [_SIGNAL[0], _START_NOISE]])
    bounds = [_BOUNDS[0]] * d + [_BOUNDS[1], _BOUNDS[2]]
    result = minimize(
        _objective,
        start,
        args=(squared, target, num_repeats),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _MOST_STEPS},
    )
    theta: Floats = result.x
    return theta


def _objective(theta: Floats, squared: Floats, target: Floats, num_repeats: Floats) -> tuple[float, Floats]:
    """Negative log posterior density of theta (up to a constant) and its gradient (d + 2,)."""
    n, _, d = squared.shape
    weights = np.exp(-2.0 * theta[:d])
    kernel, slope = _matern(squared.reshape(n * n, d) @ weights, float(theta[d]))
    noise = np.exp(2.0 * theta[-1]) / num_repeats
    factor = cholesky(kernel.reshape(n, n) + np.diag(noise + _JITTER), lower=True)
    residual = target - _level(factor, target)
    inverse = cho_solve((factor, True), np.eye(n))
    solved = inverse @ residual
    pull = np.outer(solved, solved) - inverse  # d(log likelihood) / d(kernel), twice
    gradient = np.empty_like(theta)
    gradient[:d] = -0.5 * weights * ((pull.ravel() * slope) @ squared.reshape(n * n, d))
    gradient[d] = -(pull.ravel() @ kernel)
    gradient[-1] = -(np.diag(pull) @ noise)
    value = 0.5 * residual @ solved + np.log(np.diag(factor)).sum()
    means = np.concatenate([np.full(d, _LENGTH_SCALE[0]), [_SIGNAL[0], _NOISE[0]]])
    deviations = np.concatenate([np.full(d, _LENGTH_SCALE[1]), [_SIGNAL[1], _NOISE[1]]])
    surprise = (theta - means) / deviations
    return float(value + 0.5 * surprise @ surprise), gradient + surprise / deviations


def _matern(squared: Floats, log_signal: float) -> tuple[Floats, Floats]:
    """Matern 5/2 kernel of squared scaled distances, and -2 times its derivative by them."""
    signal = np.exp(2.0 * log_signal)
    scaled = _ROOT5 * np.sqrt(squared)
    decay = signal * np.exp(-scaled)
    return (1.0 + scaled + scaled**2 / 3.0) * decay, (5.0 / 3.0) * (1.0 + scaled) * decay


def _level(factor: Floats, target: Floats) -> float:
    """The constant mean that fits best (generalised least squares)."""
    ones = cho_solve((factor, True), np.ones(len(target)))
    return float(ones @ target / ones.sum())
