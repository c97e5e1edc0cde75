"""emulate_partition, its batched form, and emulate_phase: time and energy per GPU at the reference temperature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energy_lightning.emulation.gpu import GPU, Floats
from energy_lightning.emulation.throttling import Rows, unlimited, within_power_limit
from energy_lightning.emulation.timeline import EXPOSED, Configurations, partition_time_and_energy
from energy_lightning.types import PhasePlan, PlanError, Schedule
from energy_lightning.workload import Collective, Operator, Partition, Workload


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time (s) and energy (J, static included) of one execution on one GPU."""

    time_s: float
    energy_j: float

    def __iter__(self) -> Iterator[float]:
        """`time_s, energy_j = estimate`."""
        return iter((self.time_s, self.energy_j))

    @property
    def power_w(self) -> float:
        """Mean power over the execution."""
        return self.energy_j / self.time_s

    def times(self, count: float) -> Estimate:
        """`count` executions one after the other."""
        return Estimate(self.time_s * count, self.energy_j * count)

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.time_s + other.time_s, self.energy_j + other.energy_j)


def emulate_partitions(
    operators: Sequence[Operator],
    collective: Collective | None,
    gpu: GPU,
    *,
    frequency_mhz: Any,
    sm_count: Any = None,
    block_threads: Any = 1024,
    launch: str | Sequence[str | None] | None = None,
    join: str | Sequence[str | None] | None = None,
) -> tuple[Floats, Floats]:
    """Time (s) and energy (J, static included) per GPU of n configurations of one partition, run again and again.

    A configuration that would draw more than the power limit is charged at the highest clock that does not.

    Args:
        operators, collective: the partition's work.
        gpu: the GPU model.
        frequency_mhz: SM clock, scalar or (n,).
        sm_count: SMs lent to the collective, scalar or (n,); None takes the library's default.
        block_threads: threads a block of the collective's kernel, scalar or (n,).
        launch: operator beside which the collective starts; None: the collective runs first, exposed.
        join: operator before which compute waits for the collective (after it, where that is also `launch`); None: the
            end of the partition.

    Returns:
        two arrays (n,).

    Raises:
        DeviceError: a clock or SM count that the GPU lacks. PlanError: an operator that is not there, or
            impossible block_threads.
    """
    counts = gpu.collective.default_sms if sm_count is None else sm_count
    names = [operator.name for operator in operators]
    arrays = np.broadcast_arrays(
        np.atleast_1d(np.asarray(frequency_mhz, dtype=np.float64)),
        np.asarray(counts, dtype=np.float64),
        np.asarray(block_threads, dtype=np.float64),
        _indices(launch, names, EXPOSED, "launch"),
        _indices(join, names, len(names), "join"),
    )
    for frequency in sorted(set(arrays[0].tolist())):
        gpu.check_frequency(frequency)
    for count in sorted(set(arrays[1].tolist())):
        gpu.check_sm_count(count)
    if not ((arrays[2] >= 32) & (arrays[2] % 32 == 0)).all():  # NaN fails too
        raise PlanError(f"block_threads must be a positive multiple of 32, got {block_threads!r}")

    def at_clocks(clocks_mhz: Floats, rows: Rows) -> tuple[Floats, Floats]:
        chosen = Configurations(clocks_mhz, *(array[rows] for array in arrays[1:]))
        return partition_time_and_energy(operators, collective, gpu, chosen)

    return within_power_limit(at_clocks, gpu, arrays[0])[:2]


def _indices(value: str | Sequence[str | None] | None, names: list[str], default: int, what: str) -> Any:
    index: dict[str | None, int] = {None: default} | {name: i for i, name in enumerate(names)}
    wanted = [value] if value is None or isinstance(value, str) else list(value)
    unknown = next((name for name in wanted if name not in index), None)
    if unknown is not None:
        raise PlanError(f"{what}={unknown!r} is no operator of this partition; it has {', '.join(names)}")
    return np.array([index[name] for name in wanted], dtype=np.int64)


def emulate_partition(
    operators: Sequence[Operator],
    collective: Collective | None,
    gpu: GPU,
    *,
    frequency_mhz: int,
    sm_count: int | None = None,
    block_threads: int = 1024,
    launch: str | None = None,
    join: str | None = None,
) -> Estimate:
    """One configuration of one partition; arguments and errors as in `emulate_partitions`."""
    time_s, energy_j = emulate_partitions(
        operators,
        collective,
        gpu,
        frequency_mhz=frequency_mhz,
        sm_count=sm_count,
        block_threads=block_threads,
        launch=launch,
        join=join,
    )
    if time_s.size != 1:
        raise PlanError(f"emulate_partition takes one configuration, got {time_s.size}; emulate_partitions takes many")
    return Estimate(float(time_s[0]), float(energy_j[0]))


def default_schedule(partition: Partition) -> Schedule:
    """What an unscheduled library does: its own SM count, launched as soon as the data is there."""
    points = partition.launch_points
    return Schedule(launch=points[0] if points else None)


def emulate_scheduled(partition: Partition, gpu: GPU, frequency_mhz: int, schedule: Schedule | None) -> Estimate:
    """One execution of `partition` under `schedule` (None: `default_schedule`)."""
    return emulate_partition(
        partition.operators, partition.collective, gpu, frequency_mhz=frequency_mhz, **_choices(partition, schedule)
    )


def _choices(partition: Partition, schedule: Schedule | None) -> dict[str, Any]:
    """What `schedule` (None: `default_schedule`) says of `partition`, as arguments of `emulate_partition(s)`."""
    chosen = default_schedule(partition) if schedule is None else schedule
    launch = chosen.launch if partition.launch_points else None
    return {"sm_count": chosen.sm_count, "block_threads": chosen.block_threads, "launch": launch}


def emulate_phase_curve(
    workload: Workload, gpu: GPU, phase_plan: PhasePlan, frequencies_mhz: Sequence[int], *, stage: int = 0
) -> tuple[Floats, Floats]:
    """`emulate_phase` at each of `frequencies_mhz` (not the plan's own): time (s) and energy (J), (n,) each."""
    partitions = workload.partitions(phase_plan.phase, stage=stage, nanobatched=phase_plan.nanobatched)
    free = unlimited(gpu)  # the phase is judged as a whole

    def at_clocks(clocks_mhz: Floats, rows: Rows) -> tuple[Floats, Floats]:
        time_s, energy_j = np.zeros(len(clocks_mhz)), np.zeros(len(clocks_mhz))
        for partition in partitions:
            schedule = phase_plan.schedules.get(partition.name, phase_plan.schedules.get(partition.key))
            choices = _choices(partition, schedule)
            once_s, once_j = emulate_partitions(
                partition.operators, partition.collective, free, frequency_mhz=clocks_mhz, **choices
            )
            time_s += partition.count * once_s
            energy_j += partition.count * once_j
        return time_s, energy_j

    return within_power_limit(at_clocks, gpu, np.asarray(frequencies_mhz, dtype=np.float64))[:2]


def emulate_phase(workload: Workload, gpu: GPU, phase_plan: PhasePlan, *, stage: int = 0) -> Estimate:
    """One microbatch's forward or backward on one GPU of `stage`; no frequency in the plan means the highest.

    Schedules may name partitions by key or by name ("fwd_attn.sequential"); partitions without one get the default. The
    power limit holds for the phase's mean power; within it, the phase is the sum of its partitions.
    """
    frequency_mhz = gpu.max_frequency_mhz if phase_plan.frequency_mhz is None else phase_plan.frequency_mhz
    time_s, energy_j = emulate_phase_curve(workload, gpu, phase_plan, [frequency_mhz], stage=stage)
    return Estimate(float(time_s[0]), float(energy_j[0]))
