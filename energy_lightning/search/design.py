"""The initial sample: every value of every parameter comes up about equally often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from energy_lightning.search.space import SearchSpace

Levels = NDArray[np.intp]


def levels(space: SearchSpace) -> Levels:
    """For each candidate and parameter, which of the parameter's values it is: (len(space), parameters)."""
    codes = np.nan_to_num(space.codes(), nan=-np.inf)
    return np.stack([np.unique(column, return_inverse=True)[1] for column in codes.T], axis=1)


def take_balanced(
    candidates: Levels, closed: NDArray[np.intp], open_: NDArray[np.intp], count: int, rng: np.random.Generator
) -> list[int]:
    """`count` different members of `open_`, one by one, each of the values least often taken so far.

    A Latin hypercube on a grid, and something close to it on any other set. `closed` are the candidates that were
    taken before. O(count x candidates x parameters).
    """
    chosen: list[int] = []
    taken = [np.bincount(column[closed], minlength=column.max() + 1).astype(np.float64) for column in candidates.T]
    free = np.zeros(len(candidates), dtype=bool)
    free[open_] = True
    for _ in range(count):
        shares = [counts[column] * len(counts) for counts, column in zip(taken, candidates.T, strict=True)]
        crowding = np.where(free, np.sum(shares, axis=0), np.inf)
        best = int(rng.choice(np.flatnonzero(crowding == crowding.min())))
        chosen.append(best)
        free[best] = False
        for counts, level in zip(taken, candidates[best], strict=True):
            counts[level] += 1.0
    return chosen
