"""The cheapest pipeline plan for a deadline, and the frontier of such plans.

With clocks between the options allowed, the problem is a linear program: per instruction a start and, along the lower
convex hull of (time, cost), the share of every segment; a start waits for its predecessors. HiGHS solves it in
milliseconds to seconds. The discrete clocks follow by one sweep in topological order: an instruction takes the
cheapest clock that still ends where the linear program let it end, so time saved by rounding is passed on to the next.
Where rounding weighs most, in small problems, a mixed-integer program over all clocks, or over the neighbours of the
rounded ones, follows. No 1 ms walk along the frontier (Perseus's own solver).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from energy_lightning.frontier.pareto import Floats, FrontierError, Indices, pareto_front
from energy_lightning.frontier.pipeline import PipelineGraph, PipelinePlan, PipelineProblem
from energy_lightning.types import BudgetError

_ROUNDING = 1e-9  # relative tolerance on times
_MOST_STRETCH, _NUM_STRETCHES = 1.1, 5  # how much later than in the relaxed plan instructions may end, and trials
_MOST_BINARIES = 64  # up to here all clocks of all instructions are tried
_MOST_INSTRUCTIONS = 48  # up to here the neighbours of the rounded clocks are
_EXACT, _NEAR = (5000, 1e-9), (100, 1e-4)  # most nodes and relative gap of either search


@dataclass(frozen=True, slots=True)
class _Segments:
    """Pieces that lengthen instructions: arrays (k,) of the instruction, the length (s) and the slope (J/s)."""

    instruction: Indices
    length_s: Floats
    slope_w: Floats


def solve_deadline(problem: PipelineProblem, deadline_s: float) -> PipelinePlan:
    """The plan of least energy that ends by `deadline_s`; it may end sooner where waiting would cost more.

    With discrete clocks the problem is NP-hard: optimal for a few instructions, within some tenths of a percent beyond.
    Raises BudgetError, naming the fastest time, when no plan is that fast.
    """
    return _Solver(problem).solve(deadline_s)


def trace_frontier(problem: PipelineProblem, points: int = 20) -> list[PipelinePlan]:
    """Non-dominated plans at up to `points` deadlines, evenly from the fastest to the one of least energy."""
    if points < 1:
        raise FrontierError(f"a frontier needs at least one point, got {points}")
    solver = _Solver(problem)
    cheapest = solver.solve(np.inf)
    deadlines = np.linspace(solver.fastest_s, max(solver.fastest_s, cheapest.time_s), points)
    plans = [*(solver.solve(float(deadline)) for deadline in deadlines[:-1]), cheapest]
    kept = pareto_front([plan.time_s for plan in plans], [plan.energy_j for plan in plans])
    return [plans[i] for i in kept]


def solve_straggler(problem: PipelineProblem, straggler_time_s: float) -> PipelinePlan:
    """The plan to run while a slower replica needs `straggler_time_s` for its iteration, so ours cannot end before.

    It spends least until then: see `PipelinePlan.energy_when_waiting_until`. If the straggler is no slower than our
    fastest plan, that one. Raises FrontierError for a time that is not positive.
    """
    if not straggler_time_s > 0.0:  # NaN fails too
        raise FrontierError(f"straggler_time_s must be > 0, got {straggler_time_s}")
    solver = _Solver(problem)
    return solver.solve(max(straggler_time_s, solver.fastest_s), end_is_fixed=True)


class _Solver:
    """One problem, many deadlines: the matrices are built once."""

    def __init__(self, problem: PipelineProblem) -> None:
        self._problem = problem
        self._graph = PipelineGraph(problem)
        self._fastest = np.zeros(len(self._graph.instructions), dtype=np.intp)
        self.fastest_s = self._graph.makespan(self._graph.times(self._fastest))
        slowest = np.array([len(self._graph.choices[kind].time_s) - 1 for kind in self._graph.kinds])
        self._slowest_s = self._graph.makespan(self._graph.times(slowest))  # nothing gains from more time
        self._least_s = self._graph.times(self._fastest)
        self._pieces = _hull_segments(self._graph)
        self._relaxed = _constraints(self._graph, self._pieces.instruction)

    def solve(self, deadline_s: float, *, end_is_fixed: bool = False) -> PipelinePlan:
        """The cheapest plan by the deadline; `end_is_fixed`: waiting until the deadline is paid for in any case."""
        if not deadline_s >= self.fastest_s * (1.0 - _ROUNDING):  # NaN fails too
            raise BudgetError(
                f"no plan of this pipeline ends within {deadline_s:.6g} s; the fastest takes {self.fastest_s:.6g} s. "
                "Raise the deadline to at least that"
            )
        deadline_s = min(max(deadline_s, self.fastest_s), self._slowest_s) * (1.0 + _ROUNDING)
        waiting_w = 0.0 if end_is_fixed else self._problem.num_stages * self._problem.blocking_power_w
        latest_ends, end_s = self._relaxed_ends(deadline_s, waiting_w)
        # Where the end is not forced, clocks between those of the relaxed plan may round to slower ones as well.
        stretches = np.unique(np.linspace(1.0, max(1.0, min(deadline_s / end_s, _MOST_STRETCH)), _NUM_STRETCHES))
        roundings = [self._reclaim(self._rounded(latest_ends * stretch), deadline_s) for stretch in stretches]
        rounded = min(roundings, key=lambda chosen: self._spent(chosen, waiting_w))
        menus = self._menus(rounded)
        chosen = self._best_of(menus, deadline_s, waiting_w) if menus else None
        if chosen is None or self._spent(rounded, waiting_w) <= self._spent(chosen, waiting_w):
            chosen = rounded
        return self._plan(chosen)

    def _menus(self, rounded: Indices) -> list[Indices]:
        """Choice numbers that a mixed-integer program may try, per instruction; [] where the problem is too large."""
        sizes = np.array([len(self._graph.choices[kind].time_s) for kind in self._graph.kinds])
        if sizes.sum() <= _MOST_BINARIES:
            return [np.arange(size) for size in sizes]
        if len(sizes) <= _MOST_INSTRUCTIONS:
            return [np.arange(max(0, c - 1), min(size, c + 2)) for c, size in zip(rounded, sizes, strict=True)]
        return []

    def _spent(self, chosen: Indices, waiting_w: float) -> float:
        return self._graph.cost(chosen) + waiting_w * self._graph.makespan(self._graph.times(chosen))

    def _relaxed_ends(self, deadline_s: float, waiting_w: float) -> tuple[Floats, float]:
        """When the linear program lets every instruction (n,) end at the latest, and the iteration."""
        graph, pieces = self._graph, self._pieces
        num, num_pieces = len(graph.instructions), len(pieces.length_s)
        upper = np.concatenate([np.full(num, np.inf), pieces.length_s, [deadline_s]])
        costs = np.concatenate([np.zeros(num), pieces.slope_w, [waiting_w]])
        limits = LinearConstraint(self._relaxed, -np.inf, -self._least_s[_rows(graph)])
        solution = milp(costs, constraints=limits, bounds=Bounds(0.0, upper))
        if solution.x is None:
            raise FrontierError(f"HiGHS found no plan within {deadline_s:.6g} s: {solution.message}")
        starts, end_s = solution.x[:num], float(solution.x[num + num_pieces])
        ends = np.array([min((starts[s] for s in after), default=end_s) for after in graph.successors])
        return ends * (1.0 + _ROUNDING), end_s

    def _rounded(self, latest_ends: Floats) -> Indices:
        """The cheapest choices that end in time, time saved by rounding passed on in the order of instructions."""
        graph = self._graph
        chosen, ends = self._fastest.copy(), [0.0] * len(latest_ends)
        for i, before in enumerate(graph.predecessors):
            start = max((ends[p] for p in before), default=0.0)
            options = graph.choices[graph.kinds[i]]
            chosen[i] = options.cheapest_within(latest_ends[i] - start)
            ends[i] = start + options.time_s[chosen[i]]
        return chosen

    def _reclaim(self, chosen: Indices, deadline_s: float) -> Indices:
        """Give the slack that is left to the instructions, in order; never later than the deadline."""
        graph, chosen = self._graph, chosen.copy()
        makespan = graph.makespan(graph.times(chosen))
        latest = graph.latest_ends(graph.times(chosen), min(deadline_s, makespan))
        ends = [0.0] * len(chosen)
        for i, before in enumerate(graph.predecessors):
            start = max((ends[p] for p in before), default=0.0)
            options = graph.choices[graph.kinds[i]]
            chosen[i] = max(chosen[i], options.cheapest_within(latest[i] - start))
            ends[i] = start + options.time_s[chosen[i]]
        return chosen

    def _best_of(self, menus: list[Indices], deadline_s: float, waiting_w: float) -> Indices | None:
        """The best choices from the menus, or None if the node limit comes before any."""
        graph = self._graph
        menu_of = list(zip(graph.kinds, menus, strict=True))
        owner = np.repeat(np.arange(len(menus)), [len(menu) for menu in menus])
        time_s = np.concatenate([graph.choices[kind].time_s[menu] for kind, menu in menu_of])
        cost_j = np.concatenate([graph.choices[kind].cost_j[menu] for kind, menu in menu_of])
        num, num_binaries = len(menus), len(owner)
        most_nodes, gap = _EXACT if num_binaries <= _MOST_BINARIES else _NEAR
        shape = (num, num + num_binaries + 1)
        picks = sparse.csr_matrix((np.ones(num_binaries), (owner, num + np.arange(num_binaries))), shape=shape)
        solution = milp(
            np.concatenate([np.zeros(num), cost_j, [waiting_w]]),
            constraints=[
                LinearConstraint(_constraints(graph, owner, time_s), -np.inf, 0.0),
                LinearConstraint(picks, 1.0, 1.0),
            ],
            bounds=Bounds(0.0, np.concatenate([np.full(num, np.inf), np.ones(num_binaries), [deadline_s]])),
            integrality=np.concatenate([np.zeros(num), np.ones(num_binaries), [0.0]]),
            options={"node_limit": most_nodes, "mip_rel_gap": gap},
        )
        if solution.x is None:
            return None
        shares = np.split(solution.x[num:-1], np.flatnonzero(np.diff(owner)) + 1)
        chosen = np.array([menu[np.argmax(share)] for menu, share in zip(menus, shares, strict=True)])
        # HiGHS allows 1e-6 of slack in its constraints: more than a deadline's rounding is not ours to take.
        return chosen if graph.makespan(graph.times(chosen)) <= deadline_s * (1.0 + _ROUNDING) else None

    def _plan(self, chosen: Indices) -> PipelinePlan:
        graph, problem = self._graph, self._problem
        time_s = graph.makespan(graph.times(chosen))
        energy_j = graph.cost(chosen) + problem.num_stages * problem.blocking_power_w * time_s
        picked = zip(graph.instructions, graph.kinds, chosen, strict=True)
        knobs = {instruction: graph.choices[kind].options[c].knob for instruction, kind, c in picked}
        return PipelinePlan(time_s, energy_j, knobs, problem.num_stages, problem.blocking_power_w)


def _hull_segments(graph: PipelineGraph) -> _Segments:
    hulls = []
    for options in graph.choices:
        corners = options.hull()
        length_s = np.diff(options.time_s[corners])
        hulls.append((length_s, np.diff(options.cost_j[corners]) / length_s))
    owner = [np.full(len(hulls[kind][0]), i) for i, kind in enumerate(graph.kinds)]
    lengths, slopes = ([hulls[kind][j] for kind in graph.kinds] for j in (0, 1))
    return _Segments(np.concatenate(owner).astype(np.intp), np.concatenate(lengths), np.concatenate(slopes))


def _rows(graph: PipelineGraph) -> Indices:
    """The instruction that each constraint lets end: one an edge, then the last instructions."""
    return np.concatenate([graph.edges[:, 0], _last(graph)])


def _last(graph: PipelineGraph) -> Indices:
    return np.array([i for i, after in enumerate(graph.successors) if not after], dtype=np.intp)


def _constraints(graph: PipelineGraph, owner: Indices, weight: Floats | None = None) -> sparse.csr_matrix:
    """Rows "end of the earlier - start of the later (or - end of the iteration)" over [starts, pieces, iteration end].

    `owner` (k,) is the instruction that each piece lengthens, by `weight` (k,) per unit (default 1).
    """
    num, last = len(graph.instructions), _last(graph)
    rows, num_rows = _rows(graph), len(graph.edges) + len(last)
    every = np.arange(num_rows)
    starts = sparse.csr_matrix((np.ones(num_rows), (every, rows)), shape=(num_rows, num))
    followers = (-np.ones(len(graph.edges)), (every[: len(graph.edges)], graph.edges[:, 1]))
    starts = starts + sparse.csr_matrix(followers, shape=(num_rows, num))
    weights = np.ones(len(owner)) if weight is None else weight
    pieces = sparse.csr_matrix((weights, (owner, np.arange(len(owner)))), shape=(num, len(owner)))[rows]
    end = sparse.csr_matrix(
        (-np.ones(len(last)), (every[len(graph.edges) :], np.zeros(len(last), dtype=int))), (num_rows, 1)
    )
    return sparse.hstack([starts, pieces, end]).tocsr()
