"""From measured partitions to whole iterations: the frontier, and the labelled plans it is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from energy_lightning.callbacks.spaces import PartitionTask
from energy_lightning.frontier import (
    FrontierError,
    FrontierPoint,
    PartOption,
    PartProfile,
    choose,
    compose_iteration,
    pareto_front,
)
from energy_lightning.measure import UNREACHABLE, PartitionConfig
from energy_lightning.types import Budget, BudgetError, Measurement, Plan

MAX_FREQUENCY = "max frequency"
FREQUENCY_ONLY = "frequency only"
NANOBATCHING_ONLY = "nanobatching only"
KAREUS = "kareus"

Measured = Mapping[PartitionConfig, Measurement]
Wanted = Callable[[PartitionTask, PartitionConfig], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCosts:
    """What an iteration consists of beside its partitions.

    Attributes:
        num_microbatches: forward-backward pairs in one iteration.
        static_power_w: charged while the clock is switched (see `compose_iteration`).
        switch_time_s: time of one change of the clock, from the request until it is in force.
        emulated: the measurements come from an emulated GPU.
        clock_locked: False: measured at the running clock, so plans leave the clock alone.
    """

    num_microbatches: int
    static_power_w: float
    switch_time_s: float
    emulated: bool
    clock_locked: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What profiling found for a budget.

    Attributes:
        chosen: the point that serves the budget best; its choice is the Plan to run.
        frontiers: label -> non-dominated points by rising time ("kareus", "frequency only").
        references: label -> one plan ("max frequency", "frequency only", "nanobatching only", "kareus").
    """

    chosen: FrontierPoint
    frontiers: Mapping[str, Sequence[FrontierPoint]]
    references: Mapping[str, FrontierPoint]

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return plan_of(self.chosen)


def plan_of(point: FrontierPoint) -> Plan:
    """The plan of a composed frontier point."""
    return cast(Plan, point.choice)


def compose_outcome(
    tasks: Sequence[PartitionTask], measured: Measured, costs: IterationCosts, budget: Budget
) -> Outcome:
    """Frontiers, reference plans and the choice for a budget, from what has been measured so far.

    Raises:
        BudgetError: no plan meets the budget; names what is reachable.
        FrontierError: plain execution has not been measured completely yet at any frequency.
    """
    baseline = _at_highest_clock(tasks, measured, costs, _is_sequential)
    if baseline is None:
        raise FrontierError(
            f"plain execution was not measured completely at any frequency: {_what_is_missing(measured)}"
        )
    sequential = _front([baseline, *_frontier(tasks, measured, costs, _is_sequential)])
    everything = _front([baseline, *_frontier(tasks, measured, costs, lambda task, config: True)])
    chosen = choose(everything, budget, baseline_time_s=baseline.time_s)
    references = {
        MAX_FREQUENCY: _labelled(baseline, MAX_FREQUENCY),
        FREQUENCY_ONLY: _labelled(_closest(sequential, budget, baseline.time_s), FREQUENCY_ONLY),
    }
    nanobatched = _at_highest_clock(tasks, measured, costs, _is_nanobatched_by_default)
    if nanobatched is not None:
        references[NANOBATCHING_ONLY] = _labelled(nanobatched, NANOBATCHING_ONLY)
    references[KAREUS] = _labelled(chosen, KAREUS)
    return Outcome(references[KAREUS], {FREQUENCY_ONLY: sequential, KAREUS: everything}, references)


def _at_highest_clock(
    tasks: Sequence[PartitionTask], measured: Measured, costs: IterationCosts, wanted: Wanted
) -> FrontierPoint | None:
    """The fastest iteration at the highest clock at which all of it could be measured, or None.

    Where the GPU could not hold that clock (a power cap), what it did instead counts: that is what execution at maximum
    frequency really takes. In searched plans a clock that cannot be had does not count.
    """
    for clock_mhz in sorted({config.frequency_mhz for config in measured}, reverse=True):
        at_clock = {c: _as_it_ran(known) for c, known in measured.items() if c.frequency_mhz == clock_mhz}
        points = _frontier(tasks, at_clock, costs, wanted)
        if points:
            return points[0]
    return None


def _what_is_missing(measured: Measured) -> str:
    voids = Counter(known.invalid_reason for known in measured.values() if not known.valid)
    if not voids:
        return "profile for longer"
    reason, count = voids.most_common(1)[0]
    return f"{count} of {len(measured)} measurements are void ({reason})"


def _as_it_ran(known: Measurement) -> Measurement:
    throttled = known.invalid_reason is not None and known.invalid_reason.startswith(UNREACHABLE)
    return replace(known, invalid_reason=None) if throttled else known


def _is_sequential(task: PartitionTask, config: PartitionConfig) -> bool:
    return task.nanobatched is not True


def _is_nanobatched_by_default(task: PartitionTask, config: PartitionConfig) -> bool:
    return task.nanobatched is not False and (task.space is None or config.schedule == task.default.schedule)


def _closest(points: Sequence[FrontierPoint], budget: Budget, baseline_time_s: float) -> FrontierPoint:
    """The best of a reference frontier for the budget; its fastest point where it cannot meet it."""
    try:
        return choose(points, budget, baseline_time_s=baseline_time_s)
    except BudgetError:
        return points[0]


def _labelled(point: FrontierPoint, label: str) -> FrontierPoint:
    return replace(point, choice=replace(plan_of(point), label=label))


def _frontier(
    tasks: Sequence[PartitionTask], measured: Measured, costs: IterationCosts, wanted: Wanted
) -> list[FrontierPoint]:
    """Non-dominated iterations by rising time over both modes, [] when none is complete.

    Forward and backward share a mode: a microbatch that went forward in two halves comes back in two halves. Each mode
    is composed by itself, for it has partitions of its own (edges, suffixed collectives).
    """
    points: list[FrontierPoint] = []
    for nanobatched in (False, True):
        parts = _parts(tasks, measured, costs, nanobatched, wanted)
        if parts is not None:
            points += _composed(parts, costs)
    return _front(points)


def _front(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    if not points:
        return []
    return [points[i] for i in pareto_front([p.time_s for p in points], [p.energy_j for p in points])]


def _parts(
    tasks: Sequence[PartitionTask], measured: Measured, costs: IterationCosts, nanobatched: bool, wanted: Wanted
) -> list[PartProfile] | None:
    """The profiles of one mode, or None when the mode does not exist or a partition has no usable measurement."""
    members = [task for task in tasks if task.nanobatched in (nanobatched, None)]
    if not any(task.nanobatched is nanobatched for task in members):
        return None
    parts = []
    for task in members:
        options = [
            PartOption(
                config.frequency_mhz if costs.clock_locked else None, config.schedule, known.time_s, known.energy_j
            )
            for config, known in measured.items()
            if config.partition == task.name and known.valid and known.energy_j is not None and wanted(task, config)
        ]
        if not options:
            return None
        parts.append(PartProfile(task.phase, task.partition.key, task.nanobatched, task.partition.count, options))
    return parts


def _composed(parts: Sequence[PartProfile], costs: IterationCosts) -> list[FrontierPoint]:
    try:
        return compose_iteration(
            parts,
            num_microbatches=costs.num_microbatches,
            static_power_w=costs.static_power_w,
            switch_time_s=costs.switch_time_s,
            emulated=costs.emulated,
        )
    except FrontierError:  # no frequency at which all parts of this mode were measured
        return []


def point_to_dict(point: FrontierPoint) -> dict[str, Any]:
    """Plain values, for checkpoints and reports."""
    return {"time_s": point.time_s, "energy_j": point.energy_j, "plan": plan_of(point).to_dict()}


def point_from_dict(data: Mapping[str, Any]) -> FrontierPoint:
    """Inverse of `point_to_dict`."""
    return FrontierPoint(data["time_s"], data["energy_j"], Plan.from_dict(data["plan"]))


def outcome_to_dict(outcome: Outcome) -> dict[str, Any]:
    """Plain values, for checkpoints."""
    return {
        "chosen": point_to_dict(outcome.chosen),
        "frontiers": {label: [point_to_dict(p) for p in points] for label, points in outcome.frontiers.items()},
        "references": {label: point_to_dict(point) for label, point in outcome.references.items()},
    }


def outcome_from_dict(data: Mapping[str, Any]) -> Outcome:
    """Inverse of `outcome_to_dict`. Raises PlanError on a plan that cannot be read."""
    return Outcome(
        point_from_dict(data["chosen"]),
        {label: [point_from_dict(p) for p in points] for label, points in data["frontiers"].items()},
        {label: point_from_dict(point) for label, point in data["references"].items()},
    )
