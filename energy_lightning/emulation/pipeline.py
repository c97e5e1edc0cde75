"""One training iteration: the phases of every stage on a common time axis (1F1B or any order a plan gives)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from energy_lightning.emulation.estimates import Estimate, emulate_phase, emulate_scheduled
from energy_lightning.emulation.gpu import GPU
from energy_lightning.emulation.gradients import reduce_gradients
from energy_lightning.emulation.transfers import emulate_instruction
from energy_lightning.types import PhasePlan, Plan, PlanError
from energy_lightning.workload import Workload


@dataclass(frozen=True, slots=True)
class ScheduledPhase:
    """One phase of one microbatch on the time axis, from when it starts to receive; energy of one GPU."""

    plan: PhasePlan
    microbatch: int
    start_s: float
    end_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class StageResult:
    """One pipeline stage, per GPU, over the whole iteration.

    Attributes:
        phases: in execution order; idle gaps lie between them.
        busy_s: time in phases and in the iteration's end (gradients, optimizer); the rest of time_s it is blocked.
        time_s: time of the iteration.
        energy_j: blocked time and the iteration's end included.
        dynamic_energy_j: energy beyond drawing blocking power all the time.
    """

    phases: tuple[ScheduledPhase, ...]
    busy_s: float
    time_s: float
    energy_j: float
    dynamic_energy_j: float

    @property
    def power_w(self) -> float:
        """Mean power over the iteration."""
        return self.energy_j / self.time_s


@dataclass(frozen=True)
class IterationResult:
    """One iteration. energy_j and dynamic_energy_j: whole job, all GPUs; dynamic = less blocking power x time."""

    time_s: float
    stages: tuple[StageResult, ...]
    gpus_per_stage: int
    blocking_power_w: float

    @cached_property
    def energy_j(self) -> float:
        """Energy of all GPUs."""
        return self.gpus_per_stage * sum(stage.energy_j for stage in self.stages)

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole job."""
        return self.gpus_per_stage * len(self.stages)

    @property
    def dynamic_energy_j(self) -> float:
        """Energy of all GPUs beyond drawing blocking power all the time."""
        return self.energy_j - self.num_gpus * self.blocking_power_w * self.time_s

    @property
    def energy_per_gpu_j(self) -> float:
        """Mean energy of one GPU."""
        return self.energy_j / self.num_gpus


def one_f_one_b(num_stages: int, stage: int, num_microbatches: int) -> list[str]:
    """Order of phases on `stage`: warm-up forwards, then one forward and one backward in turn, then the rest."""
    warm_up = min(num_stages - stage - 1, num_microbatches)
    steady = num_microbatches - warm_up
    return ["forward"] * warm_up + ["forward", "backward"] * steady + ["backward"] * warm_up


def expand_plan(workload: Workload, plan: Plan) -> tuple[tuple[PhasePlan, ...], ...]:
    """Every stage's phases in execution order.

    A plan of one stage serves every stage; a stage of one forward and one backward serves every microbatch, as 1F1B.

    Raises:
        PlanError: the plan has another number of stages or microbatches than the workload.
    """
    num_stages, num_microbatches = workload.pipeline_parallel, workload.num_microbatches
    stages = plan.stages * num_stages if len(plan.stages) == 1 else plan.stages
    if len(stages) != num_stages:
        raise PlanError(f"the plan has {len(plan.stages)} stages, the workload {num_stages}")
    return tuple(_expand_stage(stage, s, num_stages, num_microbatches) for s, stage in enumerate(stages))


def _expand_stage(
    phases: tuple[PhasePlan, ...], stage: int, num_stages: int, num_microbatches: int
) -> tuple[PhasePlan, ...]:
    counts = Counter(phase.phase for phase in phases)
    if counts["forward"] == counts["backward"] == num_microbatches:
        return phases
    if counts["forward"] == counts["backward"] == 1:
        pair = {phase.phase: phase for phase in phases}
        return tuple(pair[kind] for kind in one_f_one_b(num_stages, stage, num_microbatches))  # type: ignore[index]
    raise PlanError(
        f"stage {stage} of the plan has {counts['forward']} forwards and {counts['backward']} backwards; "
        f"the workload needs {num_microbatches} of each (or one of each, for every microbatch)"
    )


def place_phases(durations_s: Sequence[Sequence[tuple[str, float]]]) -> list[list[tuple[int, float, float]]]:
    """Earliest start of every phase: per stage a list of (microbatch, start_s, end_s).

    `durations_s[s]` is stage s's (phase, duration) in execution order. A forward waits for the stage before, a backward
    for the stage after. Raises PlanError when the orders wait for each other.
    """
    num_stages = len(durations_s)
    ends: dict[tuple[str, int, int], float] = {}
    placed: list[list[tuple[int, float, float]]] = [[] for _ in range(num_stages)]
    seen = [Counter[str]() for _ in range(num_stages)]
    while any(len(placed[s]) < len(durations_s[s]) for s in range(num_stages)):
        moved = False
        for s in range(num_stages):
            while len(placed[s]) < len(durations_s[s]):
                phase, duration_s = durations_s[s][len(placed[s])]
                microbatch = seen[s][phase]
                ready_s = _ready_s(ends, phase, s, microbatch, num_stages)
                if ready_s is None:
                    break
                start_s = max(ready_s, placed[s][-1][2] if placed[s] else 0.0)
                placed[s].append((microbatch, start_s, start_s + duration_s))
                ends[phase, s, microbatch] = start_s + duration_s
                seen[s][phase] += 1
                moved = True
        if not moved:
            stuck = next(s for s in range(num_stages) if len(placed[s]) < len(durations_s[s]))
            raise PlanError(
                f"the stages wait for each other: stage {stuck} cannot start its phase {len(placed[stuck])}"
            )
    return placed


def _ready_s(
    ends: dict[tuple[str, int, int], float], phase: str, stage: int, microbatch: int, num_stages: int
) -> float | None:
    needs = [("forward", stage, microbatch)] if phase == "backward" else []
    neighbour = stage - 1 if phase == "forward" else stage + 1
    if 0 <= neighbour < num_stages:
        needs.append((phase, neighbour, microbatch))
    if any(need not in ends for need in needs):
        return None
    return max((ends[need] for need in needs), default=0.0)


def emulate_iteration_end(workload: Workload, gpu: GPU, last: PhasePlan, *, stage: int = 0) -> Estimate:
    """What follows the last backward `last` on one GPU of `stage`, at its frequency and schedules.

    That is as much of the gradient reduction as `last` does not hide (see gradients.py), and the optimizer.
    """
    frequency_mhz = gpu.max_frequency_mhz if last.frequency_mhz is None else last.frequency_mhz
    total = Estimate(0.0, 0.0)
    for partition in workload.partitions("iteration", stage=stage, nanobatched=False):
        schedule = last.schedules.get(partition.key)
        if partition.key == "grad_bucket":
            backward_s = emulate_phase(workload, gpu, last, stage=stage).time_s
            total += reduce_gradients(partition, gpu, frequency_mhz, schedule, backward_s)
        else:
            total += emulate_scheduled(partition, gpu, frequency_mhz, schedule)
    return total


def emulate_iteration(workload: Workload, gpu: GPU, plan: Plan) -> IterationResult:
    """One iteration of the whole job under `plan`: pipeline timeline, then gradient reduction and optimizer.

    Changes of the clock between phases take no time here. Whether the job fits into the GPUs' memory is not asked (see
    `check_memory`).

    Raises:
        PlanError: the plan does not fit the workload. DeviceError: a clock or SM count that the GPU lacks.
    """
    stages = expand_plan(workload, plan)
    known = [
        {phase: emulate_instruction(workload, gpu, phase, stage=s) for phase in set(stage)}
        for s, stage in enumerate(stages)
    ]
    return place_iteration(workload, gpu, stages, [[known[s][p] for p in stage] for s, stage in enumerate(stages)])


def place_iteration(
    workload: Workload,
    gpu: GPU,
    stages: Sequence[Sequence[PhasePlan]],
    instructions: Sequence[Sequence[Estimate]],
) -> IterationResult:
    """`emulate_iteration` where it is known what every phase takes: `instructions[s][i]` is the
    `emulate_instruction` of `stages[s][i]`, both in execution order."""
    placed = place_phases(
        [[(p.phase, e.time_s) for p, e in zip(*both, strict=True)] for both in zip(stages, instructions, strict=True)]
    )
    ends = [emulate_iteration_end(workload, gpu, stage[-1], stage=s) for s, stage in enumerate(stages)]
    time_s = max(p[-1][2] for p in placed) + max(end.time_s for end in ends)
    results = []
    for stage, estimates, where, end in zip(stages, instructions, placed, ends, strict=True):
        phases = tuple(
            ScheduledPhase(phase, *at, estimate.energy_j)
            for phase, estimate, at in zip(stage, estimates, where, strict=True)
        )
        busy = sum(estimates, end)
        energy_j = busy.energy_j + gpu.blocking_power_w * (time_s - busy.time_s)
        dynamic_j = busy.energy_j - gpu.blocking_power_w * busy.time_s
        results.append(StageResult(phases, busy.time_s, time_s, energy_j, dynamic_j))
    return IterationResult(time_s, tuple(results), workload.gpus_per_stage, gpu.blocking_power_w)
