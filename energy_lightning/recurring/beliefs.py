"""What finished runs say of the cost of each batch size, whichever model reads them (floor 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energy_lightning.recurring.runs import View

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """Of each batch size, in logarithms of J: what a run is expected to cost, how sure that is, how far a run strays.

    `expected` (a,): log of the expected cost; `covariance` (a, a) of it; `noise` (a,): variance of one run's log cost.
    """

    expected: Floats
    covariance: Floats
    noise: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A Gaussian curve over octaves of batch size: a line, a smooth part and a rough one, by standard deviation."""

    level: float
    slope: float
    smooth: float
    length_octaves: float
    rough: float

    def covariance(self, octaves: Floats) -> Floats:
        """(a, a) of the curve at (a,) octaves from the default."""
        apart = octaves[:, None] - octaves
        shared = self.level**2 + self.slope**2 * np.outer(octaves, octaves)
        shared = shared + self.smooth**2 * np.exp(-0.5 * (apart / self.length_octaves) ** 2)
        curve: Floats = shared + self.rough**2 * np.eye(len(octaves))
        return curve


def octaves_of(view: View) -> Floats:
    """(a,) batch sizes in octaves from the default."""
    octaves: Floats = np.log2(np.array(view.batch_sizes, float) / view.batch_sizes[view.default])
    return octaves


def limits_of(view: View) -> NDArray[np.intp]:
    """(n + 1,) which power limit each run had, as a number; the last one is that of the limit asked for."""
    numbers: dict[float | None, int] = {}
    limits = [*(outcome.power_limit_w for outcome in view.outcomes), view.power_limit_w]
    return np.array([numbers.setdefault(limit, len(numbers)) for limit in limits], dtype=np.intp)


def strays(cell: NDArray[np.intp], y: Floats) -> tuple[NDArray[np.intp], Floats, Floats]:
    """(c,) one run of each cell, the sum of squares of its y about their mean, and the degrees of freedom."""
    _, first, place = np.unique(cell, return_index=True, return_inverse=True)
    runs = np.bincount(place).astype(float)
    away = y - (np.bincount(place, y) / runs)[place]
    squares: Floats = np.bincount(place, away**2).astype(float)
    return first, squares, runs - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Runs of one arm under one limit as one, whose noise is theirs together: a Gaussian curve learns as much from it.

    All (c,): `arm`, `limit` as a number, `y` what was seen, `noise` its variance.
    """

    arm: NDArray[np.intp]
    limit: NDArray[np.intp]
    y: Floats
    noise: Floats

    @classmethod
    def of(cls, arm: NDArray[np.intp], limit: NDArray[np.intp], y: Floats, noise: Floats) -> Pooled:
        """Of runs, all (n,)."""
        cells, place = np.unique(np.stack([arm, limit]), axis=1, return_inverse=True)
        precision = np.bincount(place, 1.0 / noise)
        return cls(arm=cells[0], limit=cells[1], y=np.bincount(place, y / noise) / precision, noise=1.0 / precision)

    def on_curve(self, shared: Floats, special: Floats, now: int) -> tuple[Floats, Floats]:
        """Mean (a,) and covariance (a, a) under the limit `now` of a curve of mean 0.

        Its covariance is `shared` (a, a) between limits and `special` (a, a) more under one.
        """
        own = special[self.arm]
        across = shared[self.arm] + own * (self.limit == now)[:, None]
        among = shared[np.ix_(self.arm, self.arm)] + own[:, self.arm] * np.equal.outer(self.limit, self.limit)
        return self.on_gaussian(shared + special, across, among)

    def on_gaussian(self, covariance: Floats, across: Floats, among: Floats) -> tuple[Floats, Floats]:
        """As `on_curve`: y less its noise has covariances `across` (c, a) with the curve and `among` (c, c)."""
        gain = np.linalg.solve(among + np.diag(self.noise), across).T
        return gain @ self.y, covariance - gain @ across
