"""Fronts that are added: the time and energy of parts that run one after the other.

The front of a sum is the Pareto front of all pairwise sums, and since both objectives add up, a dominated partial sum
can never come back: pruning after every addition loses nothing. That replaces the Cartesian product of all parts by a
few products of two fronts. Only the values are kept per front, with links back to what each point was made of, so the
choices are put together for the points that survive to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energy_lightning.frontier.pareto import Floats, Indices, pareto_front

_BLOCK = 1 << 19  # pairwise sums held at once (two float64 each: 8 MB)


@dataclass(frozen=True, slots=True)
class Front:
    """Non-dominated points by rising time: `time_s`, `energy_j` (n,), and where each came from.

    `sources` holds the fronts the points were made of, `links` (n, len(sources)) the point of each (-1: none, for a
    union). A leaf has no sources and `choices` instead, one object a point.
    """

    time_s: Floats
    energy_j: Floats
    sources: tuple[Front, ...] = ()
    links: Indices | None = None
    choices: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.time_s)

    def chosen(self, point: int) -> tuple[Any, ...]:
        """The leaf choices that point number `point` is made of, in the order of the sources."""
        if self.links is None:
            return (self.choices[point],)
        parts = zip(self.sources, self.links[point], strict=True)
        return tuple(choice for source, index in parts if index >= 0 for choice in source.chosen(int(index)))


def leaf(values: Iterable[tuple[float, float, Any]]) -> Front:
    """The front of (time_s, energy_j, choice) triples."""
    times, energies, choices = zip(*values, strict=True)
    kept = pareto_front(times, energies)
    time_s, energy_j = np.asarray(times, dtype=np.float64)[kept], np.asarray(energies, dtype=np.float64)[kept]
    return Front(time_s, energy_j, choices=tuple(choices[i] for i in kept))


def shifted(front: Front, *, times: float = 1.0, add_time_s: float = 0.0, add_energy_j: float = 0.0) -> Front:
    """The same choices, repeated `times` times, plus a constant time and energy."""
    links = np.arange(len(front))[:, None]
    return Front(front.time_s * times + add_time_s, front.energy_j * times + add_energy_j, (front,), links)


def union(fronts: Sequence[Front]) -> Front:
    """The front of the alternatives: every point comes from one of `fronts`."""
    time_s = np.concatenate([front.time_s for front in fronts])
    energy_j = np.concatenate([front.energy_j for front in fronts])
    owner = np.repeat(np.arange(len(fronts)), [len(front) for front in fronts])
    position = np.concatenate([np.arange(len(front)) for front in fronts])
    kept = pareto_front(time_s, energy_j)
    links = np.full((len(kept), len(fronts)), -1, dtype=np.intp)
    links[np.arange(len(kept)), owner[kept]] = position[kept]
    return Front(time_s[kept], energy_j[kept], tuple(fronts), links)


def convolve(a: Front, b: Front) -> Front:
    """The front of all sums of a point of `a` and a point of `b`. Exact; memory bounded by the block size.

    O(n m log(n m)) at worst. Sums on the lower convex hulls are formed first: they dominate most of the others, which
    are then dropped by a look-up instead of a sort.
    """
    hulls = _pair_sums(a, b, _convex_hull(a), _convex_hull(b))
    time_s, energy_j, links = _prune(*hulls)
    rows = max(1, _BLOCK // len(b))
    for start in range(0, len(a), rows):
        block = _pair_sums(a, b, np.arange(start, min(start + rows, len(a))), np.arange(len(b)))
        # The last point of the front that is no slower: if it needs no more energy either, the sum is dominated.
        last = np.searchsorted(time_s, block[0], side="right") - 1
        open_ = (last < 0) | (energy_j[last] > block[1])
        merged = (np.concatenate([old, new[open_]]) for old, new in zip((time_s, energy_j, links), block, strict=True))
        time_s, energy_j, links = _prune(*merged)
    return Front(time_s, energy_j, (a, b), links)


def convolve_all(fronts: Sequence[Front]) -> Front:
    """The front of the sums over all `fronts` (at least one), the small ones first."""
    result, *rest = sorted(fronts, key=len)
    for front in rest:
        result = convolve(result, front)
    return result


def _pair_sums(a: Front, b: Front, rows: Indices, columns: Indices) -> tuple[Floats, Floats, Indices]:
    time_s = (a.time_s[rows, None] + b.time_s[None, columns]).ravel()
    energy_j = (a.energy_j[rows, None] + b.energy_j[None, columns]).ravel()
    links = np.stack([np.repeat(rows, len(columns)), np.tile(columns, len(rows))], axis=1)
    return time_s, energy_j, links


def _prune(time_s: Floats, energy_j: Floats, links: Indices) -> tuple[Floats, Floats, Indices]:
    kept = pareto_front(time_s, energy_j)
    return time_s[kept], energy_j[kept], links[kept]


def _convex_hull(front: Front) -> Indices:
    """Indices of the lower convex hull of a front (Andrew's monotone chain, one side). O(n)."""
    hull: list[int] = []
    points = list(zip(front.time_s.tolist(), front.energy_j.tolist(), strict=True))
    for i, (time_s, energy_j) in enumerate(points):
        while len(hull) >= 2:
            (t0, e0), (t1, e1) = points[hull[-2]], points[hull[-1]]
            if (t1 - t0) * (energy_j - e0) > (time_s - t0) * (e1 - e0):  # the middle point lies below the line
                break
            hull.pop()
        hull.append(i)
    return np.array(hull, dtype=np.intp)
