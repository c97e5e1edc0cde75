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


def same_limit(view: View) -> Floats:
    """(n + 1, n + 1) 1.0 where two runs had one power limit; the last row is the limit asked for."""
    limits = [outcome.power_limit_w for outcome in view.outcomes] + [view.power_limit_w]
    kinds = np.array([limits.index(limit) for limit in limits])
    same: Floats = np.equal.outer(kinds, kinds).astype(float)
    return same
