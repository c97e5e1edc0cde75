"""Plans beside each other: time, energy and what is different about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from energy_lightning.frontier import FrontierPoint
from energy_lightning.types import EnergyLightningError, PhasePlan, Plan, Schedule

BASELINE = "max frequency"
_TIE_FRACTION = 5e-4  # a relative difference under 0.05% is shown as none


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One plan against the baseline.

    Attributes:
        label: the plan's short name.
        time_s: time of one iteration.
        energy_j: energy of one iteration per GPU.
        time_change, energy_change: fraction over the baseline's (-0.1: 10% less); 0.0 for a tie.
        plan: what it runs, in words.
    """

    label: str
    time_s: float
    energy_j: float
    time_change: float
    energy_change: float
    plan: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def compare(plans: Mapping[str, FrontierPoint], *, baseline: str = BASELINE) -> list[ComparisonRow]:
    """Rows in the order of `plans` (label -> point whose choice is a Plan), relative to the one called `baseline`.

    Raises:
        EnergyLightningError: no plan has that name.
    """
    if baseline not in plans:
        raise EnergyLightningError(
            f"no plan called {baseline!r} to compare with; there are: {', '.join(plans) or 'none'}"
        )
    reference = plans[baseline]
    return [
        ComparisonRow(
            label=label,
            time_s=point.time_s,
            energy_j=point.energy_j,
            time_change=relative_change(point.time_s, reference.time_s),
            energy_change=relative_change(point.energy_j, reference.energy_j),
            plan=describe_plan(point.choice) if isinstance(point.choice, Plan) else "",
        )
        for label, point in plans.items()
    ]


def relative_change(value: float, reference: float) -> float:
    """Fraction of `value` over `reference`; 0.0 for a tie."""
    change = value / reference - 1.0
    return 0.0 if abs(change) < _TIE_FRACTION else change


def describe_plan(plan: Plan) -> str:
    """Clocks and execution modes: one line, or one for each phase where they differ; a pipeline's range of clocks."""
    if len(plan.stages) > 1 or sorted(phase.phase for phase in set(plan.stages[0])) != ["backward", "forward"]:
        return _describe_pipeline(plan)
    forward, backward = _describe_phase(plan.forward), _describe_phase(plan.backward)
    return forward if forward == backward else f"forward: {forward}\nbackward: {backward}"


def _describe_pipeline(plan: Plan) -> str:
    clocks, share = clocks_mhz(plan), nanobatched_share(plan)
    span = "clocks as they are" if not clocks else f"{clocks[0]} MHz"
    if len(clocks) > 1:
        span = f"{clocks[0]} to {clocks[-1]} MHz"
    mode = {0.0: "sequential", 1.0: "two nanobatches"}.get(share, f"two nanobatches in {share:.0%} of the phases")
    stages = f"{len(plan.stages)} pipeline stages, " if len(plan.stages) > 1 else ""
    return f"{stages}{span}, {mode}"


def clocks_mhz(plan: Plan) -> list[int]:
    """The clocks that a plan locks, ascending."""
    return sorted({phase.frequency_mhz for stage in plan.stages for phase in stage if phase.frequency_mhz})


def nanobatched_share(plan: Plan) -> float:
    """The fraction of a plan's phases that run as two nanobatches."""
    modes = [phase.nanobatched for stage in plan.stages for phase in stage]
    return sum(modes) / len(modes)


def _describe_phase(phase: PhasePlan) -> str:
    clock = "clock as it is" if phase.frequency_mhz is None else f"{phase.frequency_mhz} MHz"
    return f"{clock}, {'two nanobatches' if phase.nanobatched else 'sequential'}"


def describe_schedules(plan: Plan) -> str:
    """How the collectives of a single-stage plan's nanobatched phases are launched; "" where there are none."""
    if len(plan.stages) > 1:
        return ""
    described = [
        f"{key}: {_describe_schedule(schedule)}"
        for phase in (plan.forward, plan.backward)
        if phase.nanobatched
        for key, schedule in phase.schedules.items()
    ]
    return "; ".join(described)


def _describe_schedule(schedule: Schedule) -> str:
    sms = "default SMs" if schedule.sm_count is None else f"{schedule.sm_count} SMs"
    return f"{sms} beside {schedule.launch}" if schedule.launch else f"{sms}, not overlapped"
