"""From a frontier and a budget to one point of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from energy_lightning.frontier.pareto import FrontierError
from energy_lightning.types import Budget, BudgetError

_ROUNDING = 1e-9  # relative: a deadline equal to a plan's own time, computed by another route, still admits the plan


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One reachable trade-off: time (s), energy per GPU (J, static power included), and what to choose for it."""

    time_s: float
    energy_j: float
    choice: object = None

    def __post_init__(self) -> None:
        if not (0.0 < self.time_s < math.inf and 0.0 < self.energy_j < math.inf):  # NaN fails too
            raise FrontierError(f"a frontier point needs finite time_s > 0 and energy_j > 0, got {self}")


def choose(points: Sequence[FrontierPoint], budget: Budget, *, baseline_time_s: float | None = None) -> FrontierPoint:
    """The point that serves the budget best.

    max_throughput: the fastest; min_energy: the least energy; max_slowdown and deadline: the least energy within the
    time; energy_budget: the fastest within the energy. Equal values are decided by the other objective.
    `baseline_time_s` is the time (s) of plain execution at maximum frequency, which max_slowdown refers to; None means
    the fastest point. Raises BudgetError when no point meets the budget, naming what is reachable.
    """
    if baseline_time_s is not None and not 0.0 < baseline_time_s < math.inf:
        raise BudgetError(f"baseline_time_s must be finite and > 0, got {baseline_time_s!r}")
    if not points:
        raise BudgetError("there are no plans to choose from: measure at least one configuration of every partition")
    fastest = min(points, key=lambda p: (p.time_s, p.energy_j))
    if budget.kind == "max_throughput":
        return fastest
    if budget.kind == "min_energy":
        return min(points, key=_by_energy)
    assert budget.value is not None  # Budget guarantees it for the other kinds
    if budget.kind == "energy_budget":
        return _within_energy(points, budget.value)
    base_s = fastest.time_s if baseline_time_s is None else baseline_time_s
    limit_s = budget.value if budget.kind == "deadline" else base_s * (1.0 + budget.value)
    within = [p for p in points if p.time_s <= limit_s * (1.0 + _ROUNDING)]
    if not within:
        slowdown = "" if budget.kind == "deadline" else f", a slow-down of {fastest.time_s / base_s - 1.0:.2%}"
        raise BudgetError(
            f"no plan meets the budget {budget} ({limit_s:.6g} s per iteration); the fastest takes "
            f"{fastest.time_s:.6g} s{slowdown}. Raise the budget to at least that, or use max_throughput"
        )
    return min(within, key=_by_energy)


def _within_energy(points: Sequence[FrontierPoint], limit_j: float) -> FrontierPoint:
    within = [p for p in points if p.energy_j <= limit_j * (1.0 + _ROUNDING)]
    if not within:
        least = min(points, key=_by_energy)
        raise BudgetError(
            f"no plan meets the budget energy_budget={limit_j:.6g} J per iteration and GPU; the least is "
            f"{least.energy_j:.6g} J (at {least.time_s:.6g} s). Raise the budget to at least that, or use min_energy"
        )
    return min(within, key=lambda p: (p.time_s, p.energy_j))


def _by_energy(point: FrontierPoint) -> tuple[float, float]:
    return point.energy_j, point.time_s
