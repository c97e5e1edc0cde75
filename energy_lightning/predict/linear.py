"""Linear pieces of the fine-tuning law: least squares with HC3 errors, non-negative and shrunk least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls
from scipy.stats import t as student_t

from energy_lightning.predict.columns import Floats

_REWEIGHTINGS = 4
_BEND = 0.2
_MOST_DEVIATIONS, _DEVIATION_PER_MAD = 4.0, 1.4826  # of a normal distribution, from its median absolute deviation
_PENALTIES = np.logspace(-2.0, 4.0, 25)


@dataclass(frozen=True, slots=True)
class Regression:
    """y = X b by ordinary least squares.

    Attributes:
        names, coefficients, hc3_errors: of the k columns of X, the intercept included.
        num_rows, num_parameters: n, and k plus whatever else was fitted before (effective, where shrunk).
        r2, adjusted_r2, rmse: of y (here ln E).
    """

    names: tuple[str, ...]
    coefficients: Floats
    hc3_errors: Floats
    num_rows: int
    num_parameters: float
    r2: float
    adjusted_r2: float
    rmse: float

    def table(self) -> str:
        """One line a coefficient: value, HC3 standard error, two-sided p-value."""
        degrees = max(self.num_rows - self.num_parameters, 1)
        lines = [f"  {'':24}{'coefficient':>12}{'HC3 error':>12}{'p':>10}"]
        for name, value, error in zip(self.names, self.coefficients, self.hc3_errors, strict=True):
            p = 2.0 * student_t.sf(abs(value / error), degrees) if error > 0.0 else 0.0
            lines.append(f"  {name:24}{value:12.4g}{error:12.3g}{p:10.2g}")
        return "\n".join(lines)


def ordinary(names: tuple[str, ...], design: Floats, y: Floats, *, spent: int = 0) -> Regression:
    """Least squares with HC3 errors; `spent`: parameters that were fitted to the same rows before.

    HC3: cov = (X'X)^-1 X' diag(e^2 / (1 - h)^2) X (X'X)^-1. Source: MacKinnon & White (1985), Long & Ervin (2000).
    """
    inverse = np.linalg.pinv(design.T @ design)
    coefficients = inverse @ design.T @ y
    return _with_hc3(names, design, y, np.asarray(coefficients), np.asarray(inverse), design.shape[1] + spent)


def _with_hc3(
    names: tuple[str, ...], design: Floats, y: Floats, coefficients: Floats, inverse: Floats, num_parameters: float
) -> Regression:
    residual = y - design @ coefficients
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    enlarged = residual / np.maximum(1.0 - leverage, 1e-6)
    covariance = inverse @ (design.T * enlarged**2) @ design @ inverse
    r2, adjusted = r2_of(y, residual, num_parameters)
    return Regression(
        names=names,
        coefficients=coefficients,
        hc3_errors=np.sqrt(np.maximum(np.diag(covariance), 0.0)),
        num_rows=len(y),
        num_parameters=num_parameters,
        r2=r2,
        adjusted_r2=adjusted,
        rmse=float(np.sqrt((residual**2).mean())),
    )


def drawn(
    names: tuple[str, ...], design: Floats, y: Floats, expected: Floats, *, penalty: float, num_parameters: float
) -> Regression:
    """Least squares drawn to `expected` (k,): minimises |y - X b|^2 + penalty |b - expected|^2; HC3 errors.

    What `expected` leaves of y is `bounded` before. `num_parameters`: effective, of all that was fitted to these rows.
    """
    k = design.shape[1]
    inverse = np.linalg.inv(design.T @ design + penalty * np.eye(k))
    coefficients = expected + inverse @ design.T @ bounded(y - design @ expected)
    return _with_hc3(names, design, y, np.asarray(coefficients), np.asarray(inverse), num_parameters)


def bounded(residual: Floats) -> Floats:
    """Residuals (n,) no further from their median than four robust deviations: broken runs decide little."""
    middle = np.median(residual)
    most = _MOST_DEVIATIONS * _DEVIATION_PER_MAD * np.median(np.abs(residual - middle))
    return np.asarray(np.clip(residual, middle - most, middle + most))


def r2_of(y: Floats, residual: Floats, num_parameters: float) -> tuple[float, float]:
    """R2 and adjusted R2 (`num_parameters` with the intercept)."""
    n = len(y)
    r2 = 1.0 - float((residual**2).sum() / max(((y - y.mean()) ** 2).sum(), 1e-300))
    return r2, 1.0 - (1.0 - r2) * (n - 1) / max(n - num_parameters, 1)


def non_negative(terms: Floats, energy_j: Floats) -> Floats:
    """Constants b >= 0, (t,), with terms (n, t) @ b close to `energy_j` (n,) in relative error.

    Reweighted so that the residual is close to ln(predicted / measured) and outliers count less.
    """
    scale = terms.max(axis=0)
    scale[scale <= 0.0] = 1.0
    weight = 1.0 / energy_j
    constants = np.zeros(terms.shape[1])
    for _ in range(_REWEIGHTINGS):
        weighted = terms * weight[:, None]
        size = np.maximum(weighted.max(axis=0), 1e-300)
        constants = nnls(weighted / size, weight * energy_j, maxiter=100 * terms.shape[1])[0] / size
        predicted = np.maximum(terms @ constants, 1e-3 * energy_j)
        bent = (1.0 + ((predicted / energy_j - 1.0) / _BEND) ** 2) ** -0.25
        weight = bent / np.sqrt(energy_j * predicted)
    return np.asarray(constants)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """Ridge regression on standardised features; the penalty is that of least leave-one-out error.

    Attributes:
        means, deviations: (f,) of the features. keep: (f,) which of them vary.
        intercept, weights: of the standardised features that are kept.
        penalty: of the squared weights. loo: (n,) leave-one-out residuals.
        inverse: (f', f') of the penalised normal matrix, for leverages.
    """

    means: Floats
    deviations: Floats
    keep: np.ndarray
    intercept: float
    weights: Floats
    penalty: float
    loo: Floats
    inverse: Floats

    @property
    def loo_error(self) -> float:
        """Root mean square of the leave-one-out residuals."""
        return float(np.sqrt((self.loo**2).mean()))

    def standardised(self, features: Floats) -> Floats:
        """(n, f')."""
        return np.asarray((features[:, self.keep] - self.means[self.keep]) / self.deviations[self.keep])

    def predict(self, features: Floats) -> Floats:
        """(n,)."""
        return np.asarray(self.intercept + self.standardised(features) @ self.weights)

    def leverage(self, features: Floats) -> Floats:
        """(n,): how far rows lie from those fitted; 1/n at their centre."""
        z = self.standardised(features)
        return np.asarray(1.0 / len(self.loo) + np.einsum("ij,jk,ik->i", z, self.inverse, z))


def shrunk(features: Floats, y: Floats) -> Shrunk:
    """Ridge with the penalty of least leave-one-out error, in closed form by one singular value decomposition."""
    means, deviations = features.mean(axis=0), features.std(axis=0)
    keep = deviations > 1e-9 * np.maximum(np.abs(means), 1.0)
    z = (features[:, keep] - means[keep]) / deviations[keep]
    intercept = float(y.mean())
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    projected = u.T @ (y - intercept)
    best: tuple[float, float, Floats] | None = None
    for penalty in _PENALTIES:
        factor = s**2 / (s**2 + penalty)
        residual = y - intercept - u @ (factor * projected)
        loo = residual / np.maximum(1.0 - 1.0 / len(y) - (u**2) @ factor, 1e-6)
        error = float((loo**2).mean())
        if best is None or error < best[0]:
            best = error, float(penalty), loo
    assert best is not None
    _, penalty, loo = best
    weights = vt.T @ (s / (s**2 + penalty) * projected)
    inverse = (vt.T / (s**2 + penalty)) @ vt
    return Shrunk(means, deviations, keep, intercept, weights, penalty, loo, inverse)


def with_products(features: Floats) -> Floats:
    """Features (n, f), their squares and their products, (n, f + f (f + 1) / 2). Standardise them before."""
    i, j = np.triu_indices(features.shape[1])
    return np.hstack([features, features[:, i] * features[:, j]])
