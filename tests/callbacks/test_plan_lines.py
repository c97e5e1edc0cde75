"""The line in which a run says what it chose."""

from __future__ import annotations

import pytest

from energy_lightning.callbacks.composition import MAX_FREQUENCY, Outcome
from energy_lightning.callbacks.frontier_optimizer import summary_line
from energy_lightning.frontier import FrontierPoint
from energy_lightning.types import Budget, PhasePlan, Plan


@pytest.mark.parametrize(
    ("energy_j", "clock_mhz", "budget", "hinted"),
    [
        (2.0, 1410, Budget("max_slowdown"), True),
        (1.5, 1200, Budget("max_slowdown", 0.05), False),
        (2.0, 1410, Budget("max_throughput"), False),
        (2.0, None, Budget("max_slowdown"), False),
    ],
)
def test_a_budget_that_saves_nothing_where_clocks_can_be_set_is_pointed_at(
    energy_j: float, clock_mhz: int | None, budget: Budget, hinted: bool
) -> None:
    plan = Plan(((PhasePlan("forward", clock_mhz), PhasePlan("backward", clock_mhz)),), emulated=True)
    chosen, base = FrontierPoint(1.0, energy_j, plan), FrontierPoint(1.0, 2.0, plan)
    line = summary_line(Outcome(chosen, {}, {MAX_FREQUENCY: base}), budget)
    assert line.startswith(f"plan for {budget} (EMULATED, per iteration and GPU): 1 s, {energy_j:.4g} J (+0.0% time")
    assert ("a larger max_slowdown lets clocks go lower" in line) == hinted
