"""plan_frontier: the time-energy frontier of a whole job on emulated GPUs, planned by one of four methods.

    max_frequency       sequential execution, everything at the highest clock
    perseus             sequential execution, a clock for every forward and backward (Perseus, arXiv 2312.06902)
    nanobatch_perseus   two nanobatches with the library's own overlap, clocks as perseus
    kareus              schedules, clock and mode (nanobatched or sequential) of every forward and backward together
                        (Kareus, arXiv 2601.17654); sequential throughout where nanobatches save next to nothing

The planner sees the pipeline of forwards and backwards. What follows it (gradient reduction, optimizer) runs at the
clock of a stage's last phase and is not planned for; the points returned hold it, since each plan is emulated whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from energy_lightning.emulation.estimates import Estimate
from energy_lightning.emulation.gpu import GPU
from energy_lightning.emulation.memory import check_memory
from energy_lightning.emulation.pipeline import expand_plan, one_f_one_b, place_iteration
from energy_lightning.emulation.planning_options import OPTIONS, TIE, PhaseSpace, saving
from energy_lightning.emulation.transfers import receive_time_s
from energy_lightning.frontier import FrontierError, Option, PipelinePlan, PipelineProblem, pareto_front, trace_frontier
from energy_lightning.frontier.schedules import Instruction
from energy_lightning.types import Phase, Plan, PlanError
from energy_lightning.workload import Workload


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One plan of a frontier: time (s) and energy (J) of one iteration of the whole job, all GPUs. Emulated."""

    time_s: float
    energy_j: float
    plan: Plan


def plan_frontier(
    workload: Workload,
    gpu: GPU,
    method: str = "kareus",
    frequencies_mhz: Iterable[int] = range(900, 1411, 30),
    points: int = 20,
    *,
    allow_over_memory: bool = False,
) -> list[PlanPoint]:
    """Non-dominated plans by rising time, from the fastest to the one of least energy.

    Args:
        workload: the job. Stages run 1F1B; with one stage, every microbatch runs alike (a plan that can be trained).
        gpu: the GPU model of all its GPUs.
        method: one of METHODS, see the module.
        frequencies_mhz: SM clocks to choose from.
        points: most plans returned ("max_frequency" has one); the deadlines they are made for are evenly spaced.
        allow_over_memory: plan a job that does not fit into the GPUs' memory as well.

    Returns:
        points whose time and energy are those of `emulate_iteration(workload, gpu, point.plan)`; each plan holds every
        stage's phases in execution order (one stage: plan.stages[0] serves every microbatch).

    Raises:
        PlanError: an unknown method. DeviceError: a clock that the GPU lacks. FrontierError: no clocks, or points < 1.
        WorkloadError: the job needs more memory than the GPUs have.
    """
    if method not in OPTIONS:
        raise PlanError(f"unknown planning method {method!r}; known: {', '.join(OPTIONS)}")
    if points < 1:
        raise FrontierError(f"a frontier needs at least one point, got points={points}")
    clocks = tuple(sorted(set(frequencies_mhz)))
    if not clocks:
        raise FrontierError("frequencies_mhz is empty: give at least one clock, e.g. (gpu.max_frequency_mhz,)")
    for frequency_mhz in clocks:
        gpu.check_frequency(frequency_mhz)
    if not allow_over_memory:
        check_memory(workload, gpu)
    options = _stage_options(workload, gpu, method, clocks)
    if method == "kareus":
        whole = _stage_options(workload, gpu, "perseus", clocks)
        options = options if saving(options, whole, gpu.blocking_power_w) > TIE else whole
    if workload.pipeline_parallel == 1:
        chosen = [[[forward, backward]] for forward, backward in _pairs(options, points)]
    else:
        problem = PipelineProblem(workload.pipeline_parallel, workload.num_microbatches, options, gpu.blocking_power_w)
        chosen = [_in_order(plan, workload) for plan in trace_frontier(problem, points, refine=False)]
    found = [_point(workload, gpu, stages, method) for stages in chosen]
    kept = pareto_front([point.time_s for point in found], [point.energy_j for point in found])
    return [found[i] for i in kept]


METHODS = tuple(OPTIONS)


def _stage_options(
    workload: Workload, gpu: GPU, method: str, clocks: tuple[int, ...]
) -> dict[tuple[int, Phase], list[Option]]:
    """Options of every stage and phase; stages of the same work share theirs."""
    shared: dict[tuple[object, ...], list[Option]] = {}
    options = {}
    for stage in range(workload.pipeline_parallel):
        for phase in get_args(Phase):
            work = (
                receive_time_s(workload, gpu, phase, stage),
                *(workload.partitions(phase, stage=stage, nanobatched=mode) for mode in (False, True)),
            )
            if work not in shared:
                found = OPTIONS[method](PhaseSpace(workload, gpu, phase, stage, clocks))
                shared[work] = [replace(option, knob=option) for option in found]  # the solver hands back the knob
            options[stage, phase] = shared[work]
    return options


def _pairs(options: Mapping[tuple[int, Phase], Sequence[Option]], points: int) -> list[tuple[Option, Option]]:
    """One stage: the non-dominated pairs of a forward and a backward that serve every microbatch, at most `points`.

    Clocks that change between microbatches would come closer to a deadline, but every change costs milliseconds.
    """
    pairs = list(itertools.product(options[0, "forward"], options[0, "backward"]))
    time_s = np.array([sum(option.time_s for option in pair) for pair in pairs])
    front = pareto_front(time_s, [sum(option.energy_j for option in pair) for pair in pairs])
    wanted_s = np.linspace(time_s[front[0]], time_s[front[-1]], points)
    nearest = np.unique(np.abs(time_s[front][:, None] - wanted_s).argmin(axis=0))
    return [(pairs[front[i]][0].knob, pairs[front[i]][1].knob) for i in nearest]  # the options as first found


def _point(workload: Workload, gpu: GPU, chosen: Sequence[Sequence[Option]], method: str) -> PlanPoint:
    """The plan of every stage's options in execution order (or one pair that serves every microbatch), emulated."""
    plan = Plan(tuple(tuple(option.knob for option in stage) for stage in chosen))
    stages = expand_plan(workload, plan)
    known = [{option.knob: Estimate(option.time_s, option.energy_j) for option in stage} for stage in chosen]
    estimates = [[of[phase] for phase in stage] for of, stage in zip(known, stages, strict=True)]
    result = place_iteration(workload, gpu, stages, estimates)
    label = method.replace("_", " ")
    plan = replace(plan, time_s=result.time_s, energy_j=result.energy_per_gpu_j, emulated=True, label=label)
    return PlanPoint(result.time_s, result.energy_j, plan)


def _in_order(planned: PipelinePlan, workload: Workload) -> list[list[Option]]:
    """Every stage's chosen options in execution order."""
    stages = []
    for stage in range(workload.pipeline_parallel):
        waiting = {phase: iter(range(workload.num_microbatches)) for phase in get_args(Phase)}
        order: list[Phase] = one_f_one_b(workload.pipeline_parallel, stage, workload.num_microbatches)  # type: ignore[assignment]
        stages.append([planned.knobs[Instruction(stage, next(waiting[phase]), phase)] for phase in order])
    return stages
