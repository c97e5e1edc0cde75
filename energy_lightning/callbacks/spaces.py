"""What there is to measure for a job on a GPU: per partition, its fixed configurations and its search space.

nanobatched partition with a collective   searched: frequency x (SM count x launch point, or not overlapped)
everything else                           every frequency, the backend's own schedule
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from energy_lightning.measure import PartitionConfig
from energy_lightning.search import SearchSpace
from energy_lightning.types import Schedule, WorkloadError

if TYPE_CHECKING:
    from energy_lightning.device import Device
    from energy_lightning.workload import Partition, Workload

Phase = Literal["forward", "backward", "iteration"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "iteration")

LEAST_CLOCK_RATIO = 0.63  # 900 of 1410 MHz; below, energy rises again on every GPU published so far (Kareus, Perseus)
MOST_FREQUENCIES = 18  # 900 to 1410 MHz, step 30 (Kareus)
SMALL_GROUP = 4  # GPUs; smaller communication groups saturate their links with fewer SMs


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """One partition and the configurations in which it may be measured.

    Attributes:
        partition: what runs.
        phase: where it runs; "iteration": once per iteration.
        nanobatched: the mode it belongs to; None: the same in both.
        fixed: configurations measured in any case, the highest frequency first.
        space: candidates to search among, or None.
    """

    partition: Partition
    phase: Phase
    nanobatched: bool | None
    fixed: tuple[PartitionConfig, ...]
    space: SearchSpace | None

    @property
    def name(self) -> str:
        """The partition's name."""
        return self.partition.name

    @property
    def default(self) -> PartitionConfig:
        """The highest frequency, and what an unscheduled library does."""
        return self.fixed[0]

    def config(self, candidate: Mapping[str, Any]) -> PartitionConfig:
        """The configuration that a candidate of the space stands for."""
        schedule = Schedule(candidate["sm_count"], candidate["launch"])
        return PartitionConfig(self.name, candidate["frequency_mhz"], schedule)

    @staticmethod
    def candidate(config: PartitionConfig) -> dict[str, Any]:
        """Inverse of `config`."""
        schedule = config.schedule or Schedule()
        return {"frequency_mhz": config.frequency_mhz, "sm_count": schedule.sm_count, "launch": schedule.launch}


def search_frequencies(
    device: Device, wanted_mhz: Sequence[int] | None = None, *, locked: bool = True
) -> tuple[int, ...]:
    """The clocks worth measuring on a device, highest first; `wanted_mhz` (if any) as they are.

    Without control of the clock (here or, `locked` False, on another rank) there is one: whatever runs, named after
    the highest, for the clock of an instant is none to come back to. Raises WorkloadError for clocks the device lacks.
    """
    known_mhz = device.frequencies_mhz
    if not (locked and device.can_lock_frequency and known_mhz):
        return (max(known_mhz, default=device.frequency_mhz()),)
    if wanted_mhz is not None:
        _check_clocks(wanted_mhz, device)
        return tuple(sorted(set(wanted_mhz), reverse=True))
    return useful_frequencies(known_mhz)


def useful_frequencies(known_mhz: Sequence[int]) -> tuple[int, ...]:
    """About MOST_FREQUENCIES evenly spaced clocks of those in the useful range, highest first."""
    useful = sorted((f for f in known_mhz if f >= LEAST_CLOCK_RATIO * max(known_mhz)), reverse=True)
    return tuple(useful[:: math.ceil(len(useful) / MOST_FREQUENCIES)])


def _check_clocks(wanted_mhz: Sequence[int], device: Device) -> None:
    if not wanted_mhz:
        raise WorkloadError("frequencies_mhz is empty; name at least one clock, or null for a useful range")
    for wanted in wanted_mhz:
        if wanted not in device.frequencies_mhz:
            near = sorted(sorted(device.frequencies_mhz, key=lambda f: abs(f - wanted))[:2])
            raise WorkloadError(f"frequencies_mhz: {device.name} has no clock of {wanted} MHz; nearest: {near}")


def sm_counts(group_size: int, num_sms: int) -> tuple[int, ...]:
    """SM counts worth lending to a collective of `group_size` GPUs (Kareus, section on the search space)."""
    counts = range(1, 21) if group_size < SMALL_GROUP else range(3, 31, 3)
    return tuple(count for count in counts if count < num_sms)


def partition_tasks(
    workload: Workload, device: Device, *, frequencies_mhz: Sequence[int] | None = None, locked: bool = True
) -> tuple[PartitionTask, ...]:
    """Everything to measure for one GPU of a job without pipeline, plain execution first.

    Nanobatches are left out where no collective can be hidden: half batches alone only cost time. `locked` False: at
    the running clock only.
    """
    clocks_mhz = search_frequencies(device, frequencies_mhz, locked=locked)
    tasks: dict[str, PartitionTask] = {}
    for nanobatched in (False, True) if can_overlap(workload) else (False,):
        for phase in PHASES:
            for partition in workload.partitions(phase, nanobatched=nanobatched):
                mode = _mode(partition, phase, workload)
                tasks.setdefault(partition.name, _task(partition, phase, mode, clocks_mhz, device.num_sms))
    return tuple(tasks.values())


def can_overlap(workload: Workload) -> bool:
    """Whether nanobatches have a collective to hide."""
    phases: tuple[Phase, ...] = ("forward", "backward")
    return workload.microbatch_size > 1 and any(
        partition.launch_points for phase in phases for partition in workload.partitions(phase, nanobatched=True)
    )


def _mode(partition: Partition, phase: Phase, workload: Workload) -> bool | None:
    """The mode a partition belongs to; None for what both modes share (embedding, head, optimizer)."""
    if partition.nanobatched:
        return True
    shared = {p.name for p in workload.partitions(phase, nanobatched=True) if not p.nanobatched}
    return None if partition.name in shared else False


def _task(
    partition: Partition, phase: Phase, mode: bool | None, clocks_mhz: Sequence[int], num_sms: int
) -> PartitionTask:
    points, collective = partition.launch_points, partition.collective
    if not points or collective is None:
        fixed = tuple(PartitionConfig(partition.name, f) for f in clocks_mhz)
        return PartitionTask(partition, phase, mode, fixed, None)
    overlapped = [(count, point) for count in sm_counts(collective.group_size, num_sms) for point in points]
    candidates = [
        {"frequency_mhz": f, "sm_count": count, "launch": point}
        for f in clocks_mhz
        for count, point in (*overlapped, (None, None))
    ]
    default = PartitionConfig(partition.name, clocks_mhz[0], Schedule(launch=points[0]))
    return PartitionTask(partition, phase, mode, (default,), SearchSpace.from_candidates(candidates))
