"""The cheapest pipeline plan for a deadline, and the frontier of such plans.

A linear program finds the best times between the clocks (relaxation.py), sweeps round them to clocks (rounding.py),
and where that loses too much, in small problems or with few clocks, mixed-integer programs follow (improvement.py).
No 1 ms walk along the frontier (Perseus's own solver).
"""

from __future__ import annotations

import numpy as np

from energy_lightning.frontier.improvement import Effort, Target, best_of_all, improved, spent_j
from energy_lightning.frontier.pareto import FrontierError, Indices, pareto_front
from energy_lightning.frontier.pipeline import PipelineGraph, PipelinePlan, PipelineProblem
from energy_lightning.frontier.relaxation import Relaxation, Relaxed
from energy_lightning.frontier.rounding import Rounding
from energy_lightning.types import BudgetError

_ROUNDING = 1e-9  # relative tolerance on times
_MOST_BINARIES, _EXACT = 64, Effort(most_nodes=5000, gap=1e-9)  # up to here all clocks of all instructions are tried
# Windows follow where the rounding spends more than this above the linear program's bound. In large problems only
# coarse clocks lose so much.
_SMALL, _SMALL_LOSS = 64, 5e-4
_MEDIUM, _MEDIUM_LOSS = 512, 7e-3
_WINDOW, _WINDOW_EFFORT = 12, Effort(most_nodes=20, gap=1e-4)
_ONE_WINDOW, _NEAR = 32, Effort(most_nodes=20, gap=1e-4)  # up to here all instructions are one more window


def solve_deadline(problem: PipelineProblem, deadline_s: float) -> PipelinePlan:
    """The plan of least energy that ends by `deadline_s`; it may end sooner where waiting would cost more.

    With discrete clocks the problem is NP-hard: optimal for a few instructions, within some tenths of a percent beyond.
    Raises BudgetError, naming the fastest time, when no plan is that fast.
    """
    return _Solver(problem).solve(deadline_s)


def trace_frontier(problem: PipelineProblem, points: int = 20, *, refine: bool = True) -> list[PipelinePlan]:
    """Non-dominated plans at up to `points` deadlines, evenly from the fastest to the one of least energy.

    `refine=False` leaves out the mixed-integer programs of all but the smallest problems: a hundred times faster for
    tens of instructions, at some tenths of a percent of energy.

    A longer deadline never costs more: where it would, the plan of the shorter one stands for both.
    """
    if points < 1:
        raise FrontierError(f"a frontier needs at least one point, got {points}")
    plans = _Solver(problem, refine=refine).trace(points)
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

    def __init__(self, problem: PipelineProblem, *, refine: bool = True) -> None:
        self._problem, self._graph, self._refine = problem, PipelineGraph(problem), refine
        graph, num = self._graph, len(self._graph.instructions)
        self.fastest_s = graph.makespan(graph.times(np.zeros(num, dtype=np.intp)))
        slowest = np.array([len(graph.choices[kind].time_s) - 1 for kind in graph.kinds])
        self._slowest_s = graph.makespan(graph.times(slowest))  # nothing gains from more time
        self._waiting_w = problem.num_stages * problem.blocking_power_w
        self._relaxation, self._rounding = Relaxation(graph), Rounding(graph)

    def solve(self, deadline_s: float, *, end_is_fixed: bool = False) -> PipelinePlan:
        """The cheapest plan by the deadline; `end_is_fixed`: waiting until the deadline is paid for in any case."""
        target = self._target(deadline_s, 0.0 if end_is_fixed else self._waiting_w)
        return self._discrete(self._relaxation.solve(target.deadline_s, target.waiting_w), target)

    def trace(self, points: int) -> list[PipelinePlan]:
        """Plans for `points` even deadlines; linear programs in between are solved between their neighbours."""
        last = self._target(np.inf, self._waiting_w)
        relaxed = {points - 1: self._relaxation.solve(last.deadline_s, last.waiting_w)}
        cheapest = self._discrete(relaxed[points - 1], last)
        deadlines = np.linspace(self.fastest_s, max(self.fastest_s, cheapest.time_s), points)
        targets = [*(self._target(float(deadline_s), self._waiting_w) for deadline_s in deadlines[:-1]), last]
        relaxed[0] = self._relaxation.solve(targets[0].deadline_s, targets[0].waiting_w)
        spans = [(0, points - 1)]
        for first, second in spans:  # grows: every half is a span of its own
            middle = (first + second) // 2
            if first < middle < second:
                between = (relaxed[first], relaxed[second])
                relaxed[middle] = self._relaxation.solve(targets[middle].deadline_s, self._waiting_w, between)
                spans += [(first, middle), (middle, second)]
        return [*(self._discrete(relaxed[i], targets[i]) for i in range(points - 1)), cheapest]

    def _target(self, deadline_s: float, waiting_w: float) -> Target:
        if not deadline_s >= self.fastest_s * (1.0 - _ROUNDING):  # NaN fails too
            raise BudgetError(
                f"no plan of this pipeline ends within {deadline_s:.6g} s; the fastest takes {self.fastest_s:.6g} s. "
                "Raise the deadline to at least that"
            )
        within_s = min(max(deadline_s, self.fastest_s), self._slowest_s)
        return Target(within_s * (1.0 + _ROUNDING), waiting_w)

    def _discrete(self, relaxed: Relaxed, target: Target) -> PipelinePlan:
        """The best clocks that are found near a relaxed solution."""
        graph, num = self._graph, len(self._graph.instructions)
        candidates = self._rounding.candidates(relaxed, target.deadline_s)
        chosen = min(candidates, key=lambda choices: spent_j(graph, choices, target.waiting_w))
        num_binaries = sum(len(graph.choices[kind].time_s) for kind in graph.kinds)
        loss = spent_j(graph, chosen, target.waiting_w) / relaxed.spent_j - 1.0
        if self._refine and ((num <= _SMALL and loss > _SMALL_LOSS) or (num <= _MEDIUM and loss > _MEDIUM_LOSS)):
            chosen = improved(graph, chosen, target, _WINDOW_EFFORT, _WINDOW)
        if num_binaries <= _MOST_BINARIES:
            chosen = best_of_all(graph, chosen, target, _EXACT)
        elif self._refine and num <= _ONE_WINDOW and loss > _SMALL_LOSS:
            chosen = improved(graph, chosen, target, _NEAR, num)
        return self._plan(chosen)

    def _plan(self, chosen: Indices) -> PipelinePlan:
        graph, problem = self._graph, self._problem
        time_s = graph.makespan(graph.times(chosen))
        energy_j = graph.cost(chosen) + self._waiting_w * time_s
        picked = zip(graph.instructions, graph.kinds, chosen, strict=True)
        knobs = {instruction: graph.choices[kind].options[c].knob for instruction, kind, c in picked}
        return PipelinePlan(time_s, energy_j, knobs, problem.num_stages, problem.blocking_power_w)
