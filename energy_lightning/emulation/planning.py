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

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import get_args

from energy_lightning.emulation.estimates import Estimate
from energy_lightning.emulation.gpu import GPU
from energy_lightning.emulation.memory import check_memory
from energy_lightning.emulation.pipeline import one_f_one_b, place_iteration
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
        workload: the job. Stages run 1F1B; `workload.pipeline_parallel` may be 1.
        gpu: the GPU model of all its GPUs.
        method: one of METHODS, see the module.
        frequencies_mhz: SM clocks to choose from.
        points: most plans returned ("max_frequency" has one); the deadlines they are made for are evenly spaced.
        allow_over_memory: plan a job that does not fit into the GPUs' memory as well.

    Returns:
        points whose time and energy are those of `emulate_iteration(workload, gpu, point.plan)`; each plan holds every
        stage's phases in execution order.

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
    problem = PipelineProblem(workload.pipeline_parallel, workload.num_microbatches, options, gpu.blocking_power_w)
    found = [_point(workload, gpu, plan, method) for plan in trace_frontier(problem, points, refine=False)]
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


def _point(workload: Workload, gpu: GPU, planned: PipelinePlan, method: str) -> PlanPoint:
    """The plan in execution order, with what the whole iteration then takes."""
    chosen = _in_order(planned, workload)
    stages = tuple(tuple(option.knob for option in stage) for stage in chosen)
    estimates = [[Estimate(option.time_s, option.energy_j) for option in stage] for stage in chosen]
    result = place_iteration(workload, gpu, stages, estimates)
    label = method.replace("_", " ")
    plan = Plan(stages, result.time_s, result.energy_per_gpu_j, emulated=True, label=label)
    return PlanPoint(result.time_s, result.energy_j, plan)


def _in_order(planned: PipelinePlan, workload: Workload) -> list[list[Option]]:
    """Every stage's chosen options in execution order."""
    stages = []
    for stage in range(workload.pipeline_parallel):
        waiting = {phase: iter(range(workload.num_microbatches)) for phase in get_args(Phase)}
        order: list[Phase] = one_f_one_b(workload.pipeline_parallel, stage, workload.num_microbatches)  # type: ignore[assignment]
        stages.append([planned.knobs[Instruction(stage, next(waiting[phase]), phase)] for phase in order])
    return stages
