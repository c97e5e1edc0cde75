"""Candidates as inputs of a Gaussian process: what is close in physics is close in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energy_lightning.search.space import Floats, SearchSpace

_NONE_POSITION = -0.5  # "not overlapped" lies beside, not among, the values of [0, 1]


@dataclass(frozen=True, slots=True)
class Features:
    """`values` (n, d), ordered columns in about [0, 1]; `categorical` (d,) marks columns that are only equal or not.

    Frequencies, SM counts and thread counts act by their ratios, so positive numbers enter as logarithms. Words enter
    twice: by position, since launch points come in execution order, and as bare categories, in case the order means
    nothing; the length scales decide between the two.
    """

    values: Floats
    categorical: NDArray[np.bool_]

    def squared_differences(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Iterator[Floats]:
        """For each of the d features, the squared differences (len(rows), len(columns)); 0 or 1 for categories."""
        for values, categorical in zip(self.values.T, self.categorical, strict=True):
            difference = values[rows, None] - values[None, columns]
            yield (difference != 0.0).astype(np.float64) if categorical else difference * difference


def features(space: SearchSpace, prior: Floats | None = None) -> Features:
    """Features of all candidates. `prior` (n, 2), expected time and energy, adds its logarithms as two columns."""
    columns: list[tuple[Floats, bool]] = []
    for name, codes in zip(space.names, space.codes().T, strict=True):
        values = space.column(name)
        words = any(isinstance(value, str) for value in values)
        columns.append((_ordered(codes, logarithmic=not words), False))
        if words or None in values:
            columns.append((np.nan_to_num(codes, nan=-1.0), True))
    columns += [(column, False) for column in _products(space)]
    if prior is not None:
        columns += [(_ordered(values, logarithmic=True), False) for values in prior.T]
    varying = [(values, categorical) for values, categorical in columns if np.ptp(values) > 0.0]
    varying = varying or [(np.zeros(len(space)), False)]  # a space of one candidate
    return Features(np.stack([v for v, _ in varying], axis=1), np.array([c for _, c in varying]))


def _ordered(codes: Floats, *, logarithmic: bool) -> Floats:
    """Scaled to [0, 1]; None (NaN) goes to a place of its own. Codes without a logarithm stay linear."""
    known = codes[~np.isnan(codes)]
    if logarithmic and len(known) and known.min() > 0.0:
        codes, known = np.log(codes), np.log(known)
    low, span = (known.min(), np.ptp(known) or 1.0) if len(known) else (0.0, 1.0)
    return np.nan_to_num((codes - low) / span, nan=_NONE_POSITION)


def _products(space: SearchSpace) -> list[Floats]:
    """A collective's speed follows its threads in all: SM count x threads a block, where both are searched."""
    if not {"sm_count", "block_threads"} <= set(space.names):
        return []
    pairs: list[tuple[Any, Any]] = list(zip(space.column("sm_count"), space.column("block_threads"), strict=True))
    return [
        _ordered(np.array([np.nan if None in pair else float(pair[0] * pair[1]) for pair in pairs]), logarithmic=True)
    ]
