"""Ways to run one phase of one microbatch: what a pipeline planner chooses from.

Every option is an `Option` whose knob is the PhasePlan to run. Where stages wait for each other, an option is judged by
its time and its cost = energy - blocking power x time (Perseus, arXiv 2312.06902), and so it is here.
Source of the schedules' search space: Kareus, arXiv 2601.17654.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from energy_lightning.emulation.estimates import emulate_partitions, emulate_phase_curve
from energy_lightning.emulation.gpu import GPU, Floats
from energy_lightning.emulation.throttling import unlimited
from energy_lightning.emulation.transfers import receive_time_s
from energy_lightning.frontier import Option
from energy_lightning.frontier.pareto import Indices, pareto_front
from energy_lightning.types import Phase, PhasePlan, Schedule
from energy_lightning.workload import Partition, Workload

_MOST_OPTIONS = 48  # of a phase; more only make the pipeline's linear program longer
_SMALL_GROUP = 4  # communication groups below this size search every SM count from 1 to 20
_SMALL_GROUP_SMS, _SMS = range(1, 21), range(3, 31, 3)


@dataclass(frozen=True, slots=True)
class PhaseSpace:
    """One phase of one stage, and the clocks (MHz, ascending) it may run at."""

    workload: Workload
    gpu: GPU
    phase: Phase
    stage: int
    frequencies_mhz: tuple[int, ...]


def fastest_sequential(space: PhaseSpace) -> list[Option]:
    """No nanobatches, the highest of the clocks."""
    return _curve(space, space.frequencies_mhz[-1:], nanobatched=False)


def sequential(space: PhaseSpace) -> list[Option]:
    """No nanobatches, any of the clocks."""
    return _curve(space, space.frequencies_mhz, nanobatched=False)


def nanobatched(space: PhaseSpace) -> list[Option]:
    """Two nanobatches that overlap as an unscheduled library does it, any of the clocks."""
    return _curve(space, space.frequencies_mhz, nanobatched=True)


def scheduled(space: PhaseSpace) -> list[Option]:
    """Two nanobatches under the best schedules (SM count x launch point a partition type) at any of the clocks, and
    sequential execution: the lower convex hull of all of them in time and cost.

    What lies above the hull is left out: instructions are many, and mixing two of the hull's options does better.
    """
    parts = space.workload.partitions(space.phase, stage=space.stage, nanobatched=True)
    clocks = tuple(f for f in space.gpu.frequencies_mhz if f <= space.frequencies_mhz[-1])  # the power limit's choice
    tables = [_schedule_table(space.gpu, part, clocks) for part in parts]
    options = sequential(space)
    for frequency_mhz in space.frequencies_mhz:
        options += _composed(space, clocks.index(frequency_mhz), tables)
    return _thinned(options, space.gpu.blocking_power_w)


OPTIONS: Mapping[str, Callable[[PhaseSpace], list[Option]]] = {
    "max_frequency": fastest_sequential,
    "perseus": sequential,
    "nanobatch_perseus": nanobatched,
    "kareus": scheduled,
}

TIE = 0.015
"""Relative saving of a job below which nanobatches and sequential execution are a tie: the emulator is off by more for
nanobatched plans, and twice the kernels cost a host what is not modelled."""
Options = Mapping[tuple[int, Phase], Sequence[Option]]


def saving(options: Options, baseline: Options, blocking_power_w: float) -> float:
    """Most that `options` save of `baseline` (both by stage and phase) on any stage, at several prices of a second.

    What a second is worth in a pipeline lies between blocking power, where it is slack, and that of all stages.
    """
    prices_w = blocking_power_w * np.array([2.0, 4.0, 12.0])

    def least(of: Options, stage: int, price_w: float) -> float:
        own = [choices for (s, _), choices in of.items() if s == stage]
        return sum(min(o.energy_j + price_w * o.time_s for o in choices) for choices in own)

    stages = {stage for stage, _ in options}
    return max(1.0 - least(options, s, w) / least(baseline, s, w) for s in stages for w in prices_w.tolist())


def _curve(space: PhaseSpace, frequencies_mhz: tuple[int, ...], *, nanobatched: bool) -> list[Option]:
    plan = PhasePlan(space.phase, None, nanobatched)
    time_s, energy_j = emulate_phase_curve(space.workload, space.gpu, plan, frequencies_mhz, stage=space.stage)
    return [
        _option(space, t, e, PhasePlan(space.phase, f, nanobatched))
        for f, t, e in zip(frequencies_mhz, time_s.tolist(), energy_j.tolist(), strict=True)
    ]


def _option(space: PhaseSpace, time_s: float, energy_j: float, plan: PhasePlan) -> Option:
    """The phase with what its stage receives before it."""
    waits_s = receive_time_s(space.workload, space.gpu, space.phase, space.stage)
    return Option(time_s + waits_s, energy_j + space.gpu.blocking_power_w * waits_s, plan)


@dataclass(frozen=True, slots=True)
class _Table:
    """k schedules of one partition type at n clocks (MHz): time and energy of all executions in a phase, (n, k)."""

    key: str
    clocks_mhz: tuple[int, ...]
    schedules: tuple[Schedule | None, ...]
    time_s: Floats
    energy_j: Floats


def _schedule_table(gpu: GPU, part: Partition, clocks_mhz: tuple[int, ...]) -> _Table:
    """All schedules of `part` at all clocks, whatever power that would draw."""
    schedules: list[Schedule] = []
    if part.collective is not None:
        sm_counts = _SMALL_GROUP_SMS if part.collective.group_size < _SMALL_GROUP else _SMS
        allowed = [count for count in sm_counts if count < gpu.num_sms]
        schedules = [Schedule(count, launch) for count in allowed for launch in (*part.launch_points, None)]
    time_s, energy_j = emulate_partitions(
        part.operators,
        part.collective,
        unlimited(gpu),
        frequency_mhz=np.repeat(clocks_mhz, max(1, len(schedules))),
        sm_count=[s.sm_count for s in schedules] * len(clocks_mhz) if schedules else None,
        launch=[s.launch for s in schedules] * len(clocks_mhz) if schedules else None,
    )
    shape = (len(clocks_mhz), -1)
    times, energies = part.count * time_s.reshape(shape), part.count * energy_j.reshape(shape)
    return _Table(part.key, clocks_mhz, tuple(schedules) or (None,), times, energies)


def _composed(space: PhaseSpace, row: int, tables: Sequence[_Table]) -> list[Option]:
    """The hull of the sums over all partition types at clock number `row`.

    The hull of a sum walks along the hulls of its terms, the steepest step first: from the fastest schedule of every
    type, each step gives one type its next schedule.
    """
    blocking_w = space.gpu.blocking_power_w
    hulls = [lower_hull(t.time_s[row], t.energy_j[row] - blocking_w * t.time_s[row]) for t in tables]
    steps = []
    for i, (table, hull) in enumerate(zip(tables, hulls, strict=True)):
        slopes_w = np.diff(table.energy_j[row, hull]) / np.diff(table.time_s[row, hull])
        steps += [(slope, i, int(hull[j])) for j, slope in enumerate(slopes_w.tolist(), start=1)]
    corner = [int(hull[0]) for hull in hulls]
    options = [_at_corner(space, row, tables, corner)]
    for _, i, schedule in sorted(steps):
        corner[i] = schedule
        options.append(_at_corner(space, row, tables, corner))
    return options


def _at_corner(space: PhaseSpace, row: int, tables: Sequence[_Table], corner: Sequence[int]) -> Option:
    """One schedule a partition type at clock number `row`, or the highest one below that the power limit allows."""
    picked = list(zip(tables, corner, strict=True))
    time_s = np.sum([table.time_s[: row + 1, k] for table, k in picked], axis=0)
    energy_j = np.sum([table.energy_j[: row + 1, k] for table, k in picked], axis=0)
    held = np.flatnonzero(energy_j <= space.gpu.power_limit_w * time_s)
    i = int(held[-1]) if len(held) else 0
    schedules = {table.key: schedule for table, k in picked if (schedule := table.schedules[k]) is not None}
    plan = PhasePlan(space.phase, tables[0].clocks_mhz[row], True, schedules)
    return _option(space, float(time_s[i]), float(energy_j[i]), plan)


def lower_hull(time_s: Floats, cost_j: Floats) -> Indices:
    """Indices of the corners of the lower left convex hull, by rising time (n,) and falling cost (n,). O(n log n)."""
    kept: list[int] = []
    for i in pareto_front(time_s, cost_j).tolist():
        while len(kept) >= 2 and _turns_down(time_s, cost_j, kept[-2], kept[-1], i):
            kept.pop()
        kept.append(i)
    return np.array(kept, dtype=np.intp)


def _turns_down(time_s: Floats, cost_j: Floats, a: int, b: int, c: int) -> bool:
    """Whether b lies on or above the line from a to c."""
    return bool((time_s[b] - time_s[a]) * (cost_j[c] - cost_j[a]) <= (time_s[c] - time_s[a]) * (cost_j[b] - cost_j[a]))


def _thinned(options: Sequence[Option], blocking_power_w: float) -> list[Option]:
    """The corners of the hull; of more than `_MOST_OPTIONS`, those nearest to evenly spaced times, both ends kept."""
    time_s = np.array([option.time_s for option in options])
    cost_j = np.array([option.energy_j for option in options]) - blocking_power_w * time_s
    hull = lower_hull(time_s, cost_j)
    if len(hull) > _MOST_OPTIONS:
        wanted = np.linspace(time_s[hull[0]], time_s[hull[-1]], _MOST_OPTIONS)
        nearest = np.abs(time_s[hull][:, None] - wanted).argmin(axis=0)
        hull = hull[np.unique(nearest)]
    return [options[i] for i in hull]
