"""Gaussian process regression over a finite set of candidates; hyperparameters by maximum a posteriori.

    symbol    shape        meaning
    N, n      -            candidates, observations
    d, g      -            features, groups of features
    target    (n,)         standardised to mean 0 and standard deviation 1 inside
    theta     (d + g + 1,) log length scales, log deviations of the groups, log noise deviation of one measurement
    kernel    (n, n)       sum over groups of deviation^2 x Matern 5/2 of r, r^2 = sum over the group's features of
                           squared difference / length scale^2
    noise     (n,)         noise variance / repeats: means of more windows are trusted more
    whitened  (n, N)       L^-1 k(observations, candidates), L the Cholesky factor of kernel + noise

Source: Rasmussen & Williams (2006), chapters 2 and 5; sums over groups: Duvenaud et al. (2011).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from energy_lightning.search.features import Features
from energy_lightning.search.space import Floats

# Means and deviations of the normal priors over theta, and bounds; for features in [0, 1] and standardised targets.
_LENGTH_SCALE, _GROUP, _NOISE = (0.0, 1.0), (0.0, 1.0), (-3.0, 1.0)
_BOUNDS = ((-4.0, 5.0), (-5.0, 3.0), (-9.0, 0.0))
_START_NOISE = -4.0
_MOST_STEPS = 40
_MOST_FITTED = 96  # observations that the hyperparameters are fitted to; the posterior takes all
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
        fitted = _spread(len(rows), _MOST_FITTED)
        self._theta = _fit(features, rows[fitted], standardised[fitted], num_repeats[fitted])
        self._noise = float(np.exp(2.0 * self._theta[-1]))
        covariance = self._kernel(rows[:, None], rows[None, :])
        factor = cholesky(covariance + np.diag(self._noise / num_repeats + _JITTER), lower=True)
        self._whitened = solve_triangular(factor, self._kernel(rows[:, None], self._everything), lower=True)
        level = _level(factor, standardised)
        self._mean = level + self._whitened.T @ solve_triangular(factor, standardised - level, lower=True)
        signal = np.exp(2.0 * self._theta[len(features.categorical) : -1]).sum()
        self._variance = signal - (self._whitened**2).sum(axis=0)

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
        covariance = self._kernel(np.array(candidate), self._everything)
        covariance = covariance - self._whitened.T @ self._whitened[:, candidate]
        row = covariance / np.sqrt(max(self._variance[candidate], 0.0) + self._noise + _JITTER)
        self._whitened = np.vstack([self._whitened, row])
        self._variance = self._variance - row**2

    def _kernel(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Floats:
        squared = self._features.squared_differences(rows, columns)
        kernel: Floats = _matern(squared, self._theta, self._features.groups)[0].sum(axis=-1)
        return kernel


def _spread(count: int, most: int) -> NDArray[np.intp]:
    """All of range(count), or `most` of them at even distances."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.intp)


@dataclass(frozen=True, slots=True)
class _Data:
    """Observations for the fit: `squared` (p, d) over the p = n (n - 1) / 2 `pairs` of `np.triu_indices`."""

    pairs: tuple[NDArray[np.intp], NDArray[np.intp]]
    squared: Floats
    groups: NDArray[np.bool_]
    target: Floats
    num_repeats: Floats


def _fit(features: Features, rows: NDArray[np.intp], target: Floats, num_repeats: Floats) -> Floats:
    """The theta of the highest posterior density, from one fixed start."""
    pairs = np.triu_indices(len(rows), 1)
    squared = features.squared_differences(rows[pairs[0]], rows[pairs[1]])
    data = _Data(pairs, squared, features.groups, target, num_repeats)
    g, d = features.groups.shape
    start = np.array([_LENGTH_SCALE[0]] * d + [_GROUP[0]] * g + [_START_NOISE])
    bounds = [_BOUNDS[0]] * d + [_BOUNDS[1]] * g + [_BOUNDS[2]]
    result = minimize(
        _objective,
        start,
        args=(data,),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _MOST_STEPS},
    )
    theta: Floats = result.x
    return theta


def _objective(theta: Floats, data: _Data) -> tuple[float, Floats]:
    """Negative log posterior density of theta (up to a constant) and its gradient (d + g + 1,)."""
    (g, d), n = data.groups.shape, len(data.target)
    kernels, slopes = _matern(data.squared, theta, data.groups)
    signals, noise = np.exp(2.0 * theta[d:-1]), np.exp(2.0 * theta[-1]) / data.num_repeats
    covariance = np.zeros((n, n))
    covariance[data.pairs] = kernels.sum(axis=1)
    covariance += covariance.T + np.diag(signals.sum() + noise + _JITTER)
    factor = cholesky(covariance, lower=True)
    residual = data.target - _level(factor, data.target)
    inverse = cho_solve((factor, True), np.eye(n))
    solved = inverse @ residual
    pull = np.outer(solved, solved) - inverse  # twice the derivative of the log likelihood by the covariance
    off, diagonal = pull[data.pairs], np.diag(pull)  # every pair stands for two entries
    gradient = np.empty_like(theta)
    by_group = (off[:, None] * slopes).T @ data.squared  # (g, d)
    gradient[:d] = -np.exp(-2.0 * theta[:d]) * (by_group * data.groups).sum(axis=0)
    gradient[d:-1] = -2.0 * (off @ kernels) - signals * diagonal.sum()
    gradient[-1] = -(diagonal @ noise)
    value = 0.5 * residual @ solved + np.log(np.diag(factor)).sum()
    means, deviations = (np.repeat([_LENGTH_SCALE[i], _GROUP[i], _NOISE[i]], [d, g, 1]) for i in (0, 1))
    surprise = (theta - means) / deviations
    return float(value + 0.5 * surprise @ surprise), gradient + surprise / deviations


def _matern(squared: Floats, theta: Floats, groups: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Kernel of each group (..., g) for squared differences (..., d), and -2 times its derivative by r^2."""
    d = groups.shape[1]
    scaled = _ROOT5 * np.sqrt(squared @ (np.exp(-2.0 * theta[:d]) * groups).T)
    decay = np.exp(2.0 * theta[d:-1] - scaled)
    return (1.0 + scaled + scaled**2 / 3.0) * decay, (5.0 / 3.0) * (1.0 + scaled) * decay


def _level(factor: Floats, target: Floats) -> float:
    """The constant mean that fits best (generalised least squares)."""
    ones = cho_solve((factor, True), np.ones(len(target)))
    return float(ones @ target / ones.sum())
