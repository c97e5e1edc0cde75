"""Exact two-objective fronts and their hypervolume; both objectives are minimised.

Arrays are one-dimensional and of equal length n: `time_s` (n,), `energy_j` (n,). The units carry no meaning for the
algorithms: scaled values work as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from energy_lightning.types import EnergyLightningError

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class FrontierError(EnergyLightningError):
    """Values that no frontier can be made of; the message names the value and the remedy."""


def pareto_front(time_s: ArrayLike, energy_j: ArrayLike) -> Indices:
    """Indices of the non-dominated points, by rising time (and so by falling energy). O(n log n).

    Of several equal points the first one stays. No points give no indices. Raises FrontierError for NaN or infinite
    values and for arrays of another shape.
    """
    times, energies = checked_pair(time_s, energy_j)
    order = np.lexsort((energies, times))  # stable: equal points keep their order
    best_before = np.minimum.accumulate(energies[order])
    keep = np.ones(len(order), dtype=bool)
    keep[1:] = energies[order][1:] < best_before[:-1]
    return order[keep]


def hypervolume(time_s: ArrayLike, energy_j: ArrayLike, reference: tuple[float, float]) -> float:
    """Area dominated by the points and bounded by `reference` = (time_s, energy_j), in s*J. O(n log n).

    Points beyond the reference add nothing; none inside gives 0.0. Raises FrontierError for NaN or infinite values.
    Source: Zitzler & Thiele, PPSN V (1998), "size of the space covered", two objectives.
    """
    times, energies = checked_pair(time_s, energy_j)
    reference_time_s, reference_energy_j = (float(value) for value in reference)
    if not np.isfinite([reference_time_s, reference_energy_j]).all():
        raise FrontierError(f"the reference point must be finite, got {reference!r}")
    inside = (times < reference_time_s) & (energies < reference_energy_j)
    times, energies = times[inside], energies[inside]
    front = pareto_front(times, energies)
    widths_s = np.diff(times[front], append=reference_time_s)  # how long each point is the latest one
    return float(widths_s @ (reference_energy_j - energies[front])) if len(front) else 0.0


def checked_pair(time_s: ArrayLike, energy_j: ArrayLike) -> tuple[Floats, Floats]:
    """Both as finite float64 arrays (n,); raises FrontierError naming the first fault."""
    times, energies = np.asarray(time_s, dtype=np.float64), np.asarray(energy_j, dtype=np.float64)
    if times.ndim != 1 or times.shape != energies.shape:
        raise FrontierError(f"need two equal arrays of shape (n,), got {times.shape} and {energies.shape}")
    for name, values in (("time_s", times), ("energy_j", energies)):
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise FrontierError(
                f"{name}[{bad[0]}] is {values[bad[0]]} ({len(bad)} such values): drop failed measurements first "
                "(merge_repeats does)"
            )
    return times, energies
