"""Hypervolume improvement of all candidates at once, in closed form for two objectives.

    energy
      |   .            The region that a front leaves undominated below the reference r is a row of vertical strips,
      |---o            one between neighbouring front points. A new point (t, e) gains, in strip [a, b] with ceiling h,
      |   |  .         (b - max(a, t))+ x (h - e)+. The sum over the strips is exact. When t and e are independent
      |   |--o----r    normal variables, the two factors are independent as well, so the expectation is the sum of the
      +------------    products of two one-dimensional expected improvements.
                time

Shapes: front (f, 2), candidates (n, 2), result (n,); columns [time, energy], both minimised, any unit.
"""

from __future__ import annotations

import numpy as np

from energy_lightning.search.space import Floats

Reference = tuple[float, float]


def improvement(front: Floats, candidates: Floats, reference: Reference) -> Floats:
    """Exact hypervolume improvement (n,) of each candidate alone over the front. O(n f)."""
    starts, ends, ceilings = _strips(front, reference)
    time, energy = candidates[:, :1], candidates[:, 1:]
    widths = np.clip(ends - np.maximum(starts, time), 0.0, None)
    gains: Floats = (widths * np.clip(ceilings - energy, 0.0, None)).sum(axis=1)
    return gains


def expected_improvement(front: Floats, mean: Floats, std: Floats, reference: Reference) -> Floats:
    """Expected hypervolume improvement (n,) of independent normals with `mean` and `std` (n, 2). O(n f).

    Source: Emmerich et al. (2011), here written strip by strip. Zero deviations give the plain improvement.
    """
    starts, ends, ceilings = _strips(front, reference)
    std = np.maximum(std, 1e-12)
    below_end = _expected_shortfall(ends, mean[:, :1], std[:, :1])
    below_start = _expected_shortfall(starts, mean[:, :1], std[:, :1])
    below_ceiling = _expected_shortfall(ceilings, mean[:, 1:], std[:, 1:])
    gains: Floats = ((below_end - below_start) * below_ceiling).sum(axis=1)
    return gains


def pairs_on_unit_square(times: tuple[Floats, Floats], energies: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """(measured, predicted) as arrays (m, 2) and (n, 2), scaled so that the measured values span [0, 1]."""
    columns = []
    for measured, predicted in (times, energies):
        low, span = measured.min(), float(np.ptp(measured)) or 1.0
        columns.append(((measured - low) / span, (predicted - low) / span))
    return np.stack([c[0] for c in columns], axis=1), np.stack([c[1] for c in columns], axis=1)


def _strips(front: Floats, reference: Reference) -> tuple[Floats, Floats, Floats]:
    """Starts, ends and ceilings (f + 1,) of the undominated strips; `front` is non-dominated and sorted by time."""
    inside = front[(front[:, 0] < reference[0]) & (front[:, 1] < reference[1])]
    starts = np.concatenate([[-np.inf], inside[:, 0]])
    ends = np.concatenate([inside[:, 0], [reference[0]]])
    ceilings = np.concatenate([[reference[1]], inside[:, 1]])
    return starts, ends, ceilings


def _expected_shortfall(limit: Floats, mean: Floats, std: Floats) -> Floats:
    """E[(limit - x)+] for x ~ N(mean, std); 0 for a limit of minus infinity."""
    from scipy.special import ndtr  # here: reports of a search need none of it

    z = (limit - mean) / std
    with np.errstate(invalid="ignore"):
        value = (limit - mean) * ndtr(z) + std * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return np.where(np.isneginf(limit), 0.0, value)
