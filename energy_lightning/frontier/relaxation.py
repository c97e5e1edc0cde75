"""The pipeline's linear program: what a deadline would cost if clocks between the options were allowed.

Per instruction a start and, along the lower convex hull of (time, cost), the share of every segment; a start waits for
its predecessors. HiGHS solves it in milliseconds to seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from energy_lightning.frontier.pareto import Floats, FrontierError, Indices
from energy_lightning.frontier.pipeline import PipelineGraph

if TYPE_CHECKING:  # loaded by the functions that solve: it takes many times what reading a frontier does
    from scipy import sparse

_ROUNDING = 1e-9  # relative tolerance on times
_FULL = 1e-6  # a segment within this fraction of its end counts as there
_TIGHT = 1e-7  # slack below this fraction of the deadline counts as none

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A solution between the clocks.

    Attributes:
        latest_ends: (n,) s, when every instruction may end at the latest.
        end_s: of the iteration.
        filled: (k,) fraction used of every segment.
        tight: (r,) whether the follower of an edge (or the end) waits for just that instruction.
        spent_j: cost of the instructions and of the waiting. Solved alone, a lower bound for discrete plans.
    """

    latest_ends: Floats
    end_s: float
    filled: Floats
    tight: Flags
    spent_j: float


@dataclass(frozen=True, slots=True)
class _Segments:
    """Pieces that lengthen instructions: arrays (k,) of the instruction, the length (s) and the slope (J/s)."""

    instruction: Indices
    length_s: Floats
    slope_w: Floats


class Relaxation:
    """One pipeline, many deadlines: the matrix is built once."""

    def __init__(self, graph: PipelineGraph) -> None:
        self._graph = graph
        fastest = np.zeros(len(graph.instructions), dtype=np.intp)
        self._least_s, self._dearest_j = graph.times(fastest), graph.cost(fastest)
        self._pieces = _hull_segments(graph)
        self._matrix = _constraints(graph, self._pieces.instruction)
        self._ending = _ending(graph)

    def solve(self, deadline_s: float, waiting_w: float, between: tuple[Relaxed, Relaxed] | None = None) -> Relaxed:
        """The cheapest solution by the deadline; `waiting_w` is charged until the end of the iteration.

        `between`: solutions for a shorter and a longer deadline. What is equal in both stays: segments used whole or
        not at all, and who waits for whom. That leaves a program many times faster to solve, whose solutions hold all
        mixtures of the two and hardly cost more than the best. Raises FrontierError if HiGHS gives up.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        pieces, num = self._pieces, len(self._least_s)
        full, free, tight = self._common(between)
        least_s = self._least_s + np.bincount(pieces.instruction[full], pieces.length_s[full], minlength=num)
        matrix = self._matrix[:, np.concatenate([np.arange(num), num + np.flatnonzero(free), [num + len(free)]])]
        limits = -least_s[self._ending]
        solution = milp(
            np.concatenate([np.zeros(num), pieces.slope_w[free], [waiting_w]]),
            constraints=LinearConstraint(matrix, np.where(tight, limits, -np.inf), limits),
            bounds=Bounds(0.0, np.concatenate([np.full(num, np.inf), pieces.length_s[free], [deadline_s]])),
        )
        if solution.x is None and between is not None:
            return self.solve(deadline_s, waiting_w)
        if solution.x is None:
            raise FrontierError(f"HiGHS found no plan within {deadline_s:.6g} s: {solution.message}")
        filled = full.astype(np.float64)
        filled[free] = solution.x[num:-1] / pieces.length_s[free]
        spent_j = self._dearest_j + float((pieces.length_s * pieces.slope_w)[full].sum() + solution.fun)
        starts, end_s = solution.x[:num], float(solution.x[-1])
        ends = np.array([min((starts[s] for s in after), default=end_s) for after in self._graph.successors])
        tight = limits - matrix @ solution.x <= _TIGHT * deadline_s
        return Relaxed(ends * (1.0 + _ROUNDING), end_s, filled, tight, spent_j)

    def _common(self, between: tuple[Relaxed, Relaxed] | None) -> tuple[Flags, Flags, Flags]:
        """Which segments are used whole and which are open (k,), and which rows hold with equality (r,)."""
        if between is None:
            no_segment = np.zeros(len(self._pieces.length_s), dtype=bool)
            return no_segment, ~no_segment, np.zeros(len(self._ending), dtype=bool)
        full = np.minimum(between[0].filled, between[1].filled) >= 1.0 - _FULL
        unused = np.maximum(between[0].filled, between[1].filled) <= _FULL
        return full, ~(full | unused), between[0].tight & between[1].tight


def _hull_segments(graph: PipelineGraph) -> _Segments:
    hulls = []
    for options in graph.choices:
        corners = options.hull()
        length_s = np.diff(options.time_s[corners])
        hulls.append((length_s, np.diff(options.cost_j[corners]) / length_s))
    owner = [np.full(len(hulls[kind][0]), i) for i, kind in enumerate(graph.kinds)]
    lengths, slopes = ([hulls[kind][j] for kind in graph.kinds] for j in (0, 1))
    return _Segments(np.concatenate(owner).astype(np.intp), np.concatenate(lengths), np.concatenate(slopes))


def _ending(graph: PipelineGraph) -> Indices:
    """The instruction (r,) that each row lets end: one an edge, then the last instructions."""
    last = [i for i, after in enumerate(graph.successors) if not after]
    return np.concatenate([graph.edges[:, 0], np.array(last, dtype=np.intp)])


def _constraints(graph: PipelineGraph, owner: Indices) -> sparse.csc_matrix:
    """Rows "end of the earlier - start of the later (or - end of the iteration)" over [starts, pieces, iteration end].

    `owner` (k,) is the instruction that each piece lengthens.
    """
    from scipy import sparse

    num, edges, rows = len(graph.instructions), graph.edges, _ending(graph)
    num_rows, num_last = len(rows), len(rows) - len(edges)
    every = np.arange(num_rows)
    starts = sparse.csr_matrix((np.ones(num_rows), (every, rows)), shape=(num_rows, num))
    starts = starts + sparse.csr_matrix(
        (-np.ones(len(edges)), (every[: len(edges)], edges[:, 1])), shape=(num_rows, num)
    )
    pieces = sparse.csr_matrix((np.ones(len(owner)), (owner, np.arange(len(owner)))), shape=(num, len(owner)))[rows]
    end = sparse.csr_matrix((-np.ones(num_last), (every[len(edges) :], np.zeros(num_last, dtype=int))), (num_rows, 1))
    return sparse.hstack([starts, pieces, end]).tocsc()
