"""Better discrete choices: mixed-integer programs over all instructions of a small pipeline, or over a few at a time.

A window is a run of instructions in the order of their starts. What comes before is over at known times, what comes
after needs a known time to the end, so the program of a window is small whatever the size of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from energy_lightning.frontier.pareto import Floats, Indices
from energy_lightning.frontier.pipeline import PipelineGraph

_ROUNDING = 1e-9  # relative tolerance on times
_WHOLE_MENU = 4  # up to so many choices all are tried in a window, beyond only the neighbours


@dataclass(frozen=True, slots=True)
class Effort:
    """How long HiGHS may look for better choices: most nodes, and the relative gap at which it stops."""

    most_nodes: int
    gap: float


@dataclass(frozen=True, slots=True)
class Target:
    """What counts: the deadline (s), and the power (W) that is charged until the end of the iteration."""

    deadline_s: float
    waiting_w: float


def spent_j(graph: PipelineGraph, chosen: Indices, waiting_w: float) -> float:
    """Cost of the choices and of the waiting (J)."""
    return graph.cost(chosen) + waiting_w * graph.makespan(graph.times(chosen))


def best_of_all(graph: PipelineGraph, chosen: Indices, target: Target, effort: Effort) -> Indices:
    """The best of all choices of all instructions, or `chosen` if HiGHS finds no better within its effort."""
    window = np.arange(len(chosen))
    menus = [np.arange(len(graph.choices[kind].time_s)) for kind in graph.kinds]
    return _better(graph, chosen, _solved(graph, chosen, (window, menus), target, effort), target)


def improved(graph: PipelineGraph, chosen: Indices, target: Target, effort: Effort, size: int) -> Indices:
    """`chosen` improved window by window (`size` instructions), then again with windows that begin half a size later.

    One window that holds everything is solved once.
    """
    for shift in (0, size // 2) if size < len(chosen) else (0,):
        for window in list(_windows(graph, chosen, size, shift)):
            menus = [_menu(chosen[i], len(graph.choices[graph.kinds[i]].time_s)) for i in window]
            chosen = _better(graph, chosen, _solved(graph, chosen, (window, menus), target, effort), target)
    return chosen


def _windows(graph: PipelineGraph, chosen: Indices, size: int, shift: int) -> Iterator[Indices]:
    order = np.argsort(graph.starts(graph.times(chosen)), kind="stable")
    yield from (window for window in np.split(order, np.arange(shift or size, len(order), size)) if len(window))


def _menu(choice: int, size: int) -> Indices:
    return np.arange(size) if size <= _WHOLE_MENU else np.arange(max(0, choice - 1), min(size, choice + 2))


def _better(graph: PipelineGraph, chosen: Indices, other: Indices | None, target: Target) -> Indices:
    # HiGHS allows 1e-6 of slack in its constraints: more than a deadline's rounding is not ours to take.
    if other is None or graph.makespan(graph.times(other)) > target.deadline_s * (1.0 + _ROUNDING):
        return chosen
    cheaper = spent_j(graph, other, target.waiting_w) < spent_j(graph, chosen, target.waiting_w)
    return other if cheaper else chosen


def _solved(
    graph: PipelineGraph,
    chosen: Indices,
    window_and_menus: tuple[Indices, list[Indices]],
    target: Target,
    effort: Effort,
) -> Indices | None:
    """`chosen` with the best choices for a window, or None if the node limit comes before any.

    Variables: starts (m,), one binary a choice (k,), the end of the iteration. Times in units of the longest choice.
    """
    from scipy import sparse  # here: loading both takes many times what reading a frontier does
    from scipy.optimize import Bounds, LinearConstraint, milp

    window, menus = window_and_menus
    owner = np.repeat(np.arange(len(window)), [len(menu) for menu in menus])
    time_s = np.concatenate([graph.choices[graph.kinds[i]].time_s[m] for i, m in zip(window, menus, strict=True)])
    cost_j = np.concatenate([graph.choices[graph.kinds[i]].cost_j[m] for i, m in zip(window, menus, strict=True)])
    unit_s = float(time_s.max())
    earliest, least_end_s = _surroundings(graph, chosen, window)
    rows, limits = _order(graph, chosen, window)
    lengths = sparse.csr_matrix((time_s / unit_s, (owner, np.arange(len(owner)))), shape=(len(window), len(owner)))
    same = sparse.csr_matrix(sparse.eye(len(window)))
    ends = sparse.csr_matrix(sparse.hstack([same, lengths, sparse.csr_matrix((len(window), 1))]))
    begins = sparse.csr_matrix(sparse.eye(len(window) + len(owner) + 1))
    order = ends[rows[:, 0]] - begins[rows[:, 1]]
    picks = sparse.csr_matrix((np.ones(len(owner)), (owner, len(window) + np.arange(len(owner)))), order.shape[1:] * 2)
    zeros, ones = np.zeros(len(window)), np.ones(len(owner))
    solution = milp(
        np.concatenate([zeros, cost_j, [target.waiting_w * unit_s]]),
        constraints=[
            LinearConstraint(order, -np.inf, limits / unit_s),
            LinearConstraint(picks[: len(window)], 1.0, 1.0),
        ],
        bounds=Bounds(
            np.concatenate([earliest / unit_s, 0.0 * ones, [least_end_s / unit_s]]),
            np.concatenate([zeros + np.inf, ones, [target.deadline_s / unit_s]]),
        ),
        integrality=np.concatenate([zeros, ones, [0.0]]),
        options={"node_limit": effort.most_nodes, "mip_rel_gap": effort.gap},
    )
    if solution.x is None:
        return None
    shares = np.split(solution.x[len(window) : -1], np.flatnonzero(np.diff(owner)) + 1)
    other = chosen.copy()
    other[window] = [menu[np.argmax(share)] for menu, share in zip(menus, shares, strict=True)]
    return other


def _surroundings(graph: PipelineGraph, chosen: Indices, window: Indices) -> tuple[Floats, float]:
    """Earliest starts (m,) that the instructions before a window allow; the least end (s) whatever the window takes."""
    time_s = graph.times(chosen)
    ends, inside = graph.starts(time_s) + time_s, set(window.tolist())
    earliest = [max([ends[p] for p in graph.predecessors[i] if p not in inside], default=0.0) for i in window]
    time_s[window] = 0.0
    return np.array(earliest), graph.makespan(time_s)


def _order(graph: PipelineGraph, chosen: Indices, window: Indices) -> tuple[Indices, Floats]:
    """Rows (r, 2) of positions: the end of the first minus the second variable is at most the limit (r,), in s.

    The second is the start of a follower in the window, or the end of the iteration (-1), before which the
    instructions after the window need their time.
    """
    time_s, position = graph.times(chosen), {int(i): j for j, i in enumerate(window)}
    latest_ends = graph.latest_ends(time_s, 0.0)
    rows: list[tuple[int, int]] = []
    limits: list[float] = []
    for i in window.tolist():
        after = graph.successors[i]
        outside = [float(latest_ends[s] - time_s[s]) for s in after if s not in position]
        rows += [(position[i], position[s]) for s in after if s in position]
        limits += [0.0] * (len(rows) - len(limits))
        if outside or not after:
            rows.append((position[i], -1))
            limits.append(min(outside, default=0.0))
    return np.array(rows, dtype=np.intp).reshape(-1, 2), np.array(limits)
