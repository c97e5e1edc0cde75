"""Candidates as inputs of a Gaussian process: what is close in physics is close in numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energy_lightning.search.space import Floats, SearchSpace

# Words of parameter names (split at underscores) by which roles are recognised.
_CLOCK = {"frequency", "freq", "clock", "mhz"}  # acts on everything
_SMS, _THREADS = {"sm", "sms"}, {"thread", "threads"}
_NONE_POSITION = -0.5  # "not overlapped" lies beside, not among, the values of [0, 1]


@dataclass(frozen=True, slots=True)
class Features:
    """What a kernel compares; n candidates, d features, g groups.

    Frequencies, SM counts and thread counts act by their ratios, so positive numbers enter as logarithms. Words enter
    twice: by position, since launch points come in execution order, and as bare categories, in case the order means
    nothing; the length scales decide between the two.

    Attributes:
        values: (n, d), ordered features in about [0, 1].
        categorical: (d,), features that are only equal or not.
        groups: (g, d), features that act together: all of them, the clock alone, and all but the clock. In logarithms
            the choice of schedule and the choice of clock nearly add up, so what is learnt at one clock helps at all.
    """

    values: Floats
    categorical: NDArray[np.bool_]
    groups: NDArray[np.bool_]

    def squared_differences(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Floats:
        """Between pairs of candidates, per feature: (..., d) for index arrays that broadcast to (...)."""
        difference = self.values[rows] - self.values[columns]
        return np.where(self.categorical, difference != 0.0, difference * difference)


@dataclass(frozen=True, slots=True)
class _Column:
    values: Floats
    categorical: bool = False
    group: str = ""  # "clock", "schedule", or neither


def features(space: SearchSpace, prior: Floats | None = None) -> Features:
    """Features of all candidates. `prior` (n, 2), expected time and energy, adds its logarithms as two columns."""
    columns: list[_Column] = []
    for name, codes in zip(space.names, space.codes().T, strict=True):
        values = space.column(name)
        words = any(isinstance(value, str) for value in values)
        group = "clock" if _is(name, _CLOCK) else "schedule"
        columns.append(_Column(_ordered(codes, logarithmic=not words), False, group))
        if words or None in values:
            columns.append(_Column(np.nan_to_num(codes, nan=-1.0), True, group))
    columns += [_Column(column, False, "schedule") for column in _products(space)]
    if prior is not None:
        columns += [_Column(_ordered(values, logarithmic=True)) for values in prior.T]
    kept = [column for column in columns if np.ptp(column.values) > 0.0]
    kept = kept or [_Column(np.zeros(len(space)))]  # a space of one candidate
    named = np.array([[column.group == group for column in kept] for group in ("clock", "schedule")])
    everything = np.ones((1, len(kept)), dtype=bool)
    groups = np.concatenate([everything, named]) if named.any(axis=1).all() else everything
    return Features(np.stack([c.values for c in kept], axis=1), np.array([c.categorical for c in kept]), groups)


def _ordered(codes: Floats, *, logarithmic: bool) -> Floats:
    """Scaled to [0, 1]; None (NaN) goes to a place of its own. Codes without a logarithm stay linear."""
    known = codes[~np.isnan(codes)]
    if logarithmic and len(known) and known.min() > 0.0:
        codes, known = np.log(codes), np.log(known)
    low, span = (known.min(), np.ptp(known) or 1.0) if len(known) else (0.0, 1.0)
    return np.nan_to_num((codes - low) / span, nan=_NONE_POSITION)


def _is(name: str, words: set[str]) -> bool:
    return not words.isdisjoint(name.lower().split("_"))


def _products(space: SearchSpace) -> list[Floats]:
    """A collective's speed follows its threads in all: SM count x threads a block, where both are searched."""
    found = [[name for name in space.names if _is(name, words)] for words in (_SMS, _THREADS)]
    if any(len(names) != 1 for names in found):
        return []
    codes = dict(zip(space.names, space.codes().T, strict=True))
    return [_ordered(codes[found[0][0]] * codes[found[1][0]], logarithmic=True)]
