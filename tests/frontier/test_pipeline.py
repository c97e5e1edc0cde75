"""Pipeline plans against exhaustive search on tiny problems, and what must hold on larger ones."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_lightning.frontier import (
    FrontierError,
    Option,
    PipelinePlan,
    PipelineProblem,
    solve_deadline,
    solve_straggler,
    trace_frontier,
)
from energy_lightning.frontier.schedules import Instruction, dependencies
from energy_lightning.types import BudgetError

BLOCKING_W = 80.0


def curve(work: float, clocks: int = 4) -> list[Option]:
    """Time falls and energy rises with the clock (900 + 150 k MHz)."""
    return [
        Option(work * (0.3 + 0.7 / (f / 1410)), work * (BLOCKING_W + 250.0 * (f / 1410) ** 2), f)
        for f in range(900, 900 + 150 * clocks, 150)
    ]


def problem(num_stages: int = 4, num_microbatches: int = 6, schedule: str = "1f1b", chunks: int = 1) -> PipelineProblem:
    """Stage s is 10% x s heavier than the first one; a backward is twice a forward."""
    options = {
        (stage, phase): curve((1.0 + 0.1 * stage) * work)
        for stage in range(num_stages * chunks)
        for phase, work in (("forward", 1.0), ("backward", 2.0))
    }
    return PipelineProblem(num_stages, num_microbatches, options, BLOCKING_W, schedule, chunks)  # type: ignore[arg-type]


def replayed(p: PipelineProblem, knobs: dict[Instruction, object]) -> tuple[float, float]:
    """Time and energy of a plan, worked out from the dependencies alone."""
    picked = {i: next(o for o in p.options[i.stage, i.phase] if o.knob == knob) for i, knob in knobs.items()}
    before: dict[Instruction, list[Instruction]] = {i: [] for i in knobs}
    for earlier, later in dependencies(p.schedule, p.shape):
        before[later].append(earlier)
    ends: dict[Instruction, float] = {}
    while len(ends) < len(knobs):
        for i in knobs:
            if i not in ends and all(b in ends for b in before[i]):
                ends[i] = max((ends[b] for b in before[i]), default=0.0) + picked[i].time_s
    time_s, busy_s = max(ends.values()), sum(o.time_s for o in picked.values())
    busy_j = sum(o.energy_j for o in picked.values())
    return time_s, busy_j + (p.num_stages * time_s - busy_s) * p.blocking_power_w


def exhaustive(p: PipelineProblem) -> list[tuple[float, float]]:
    """Time and energy of every assignment of knobs."""
    instructions = sorted({i for pair in dependencies(p.schedule, p.shape) for i in pair})
    knobs = [[o.knob for o in p.options[i.stage, i.phase]] for i in instructions]
    return [replayed(p, dict(zip(instructions, choice, strict=True))) for choice in itertools.product(*knobs)]


options = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=3, unique=True)


@st.composite
def tiny(draw: st.DrawFn) -> PipelineProblem:
    """At most 3^8 assignments: 2 stages x 2 microbatches."""
    keys = list(itertools.product(range(2), ("forward", "backward")))
    sampled = {key: [Option(t, 10.0 * e, (t, e)) for t, e in draw(options)] for key in keys}
    return PipelineProblem(2, 2, sampled, draw(st.sampled_from([0.0, 5.0])), draw(st.sampled_from(["1f1b", "gpipe"])))  # type: ignore[arg-type]


@settings(deadline=None, max_examples=25)
@given(tiny(), st.floats(1.0, 2.0))
def test_the_plan_is_the_discrete_optimum(p: PipelineProblem, stretch: float) -> None:
    everything = exhaustive(p)
    deadline_s = min(t for t, _ in everything) * stretch
    best_j = min(e for t, e in everything if t <= deadline_s * (1.0 + 1e-9))
    plan = solve_deadline(p, deadline_s)
    assert plan.time_s <= deadline_s * (1.0 + 1e-6)
    assert plan.energy_j == pytest.approx(best_j, rel=1e-6)


@pytest.mark.parametrize("p", [problem(4, 5), problem(2, 6, "gpipe"), problem(2, 4, "interleaved", 2), problem(8, 16)])
def test_plans_are_what_they_claim_and_longer_deadlines_cost_no_more(p: PipelineProblem) -> None:
    plans = trace_frontier(p, points=6)
    assert len(plans) >= 5
    for plan in plans:
        time_s, energy_j = replayed(p, dict(plan.knobs))
        assert plan.time_s == pytest.approx(time_s)
        assert plan.energy_j == pytest.approx(energy_j)
    energies = [plan.energy_j for plan in plans]
    assert energies == sorted(energies, reverse=True)
    for slack in (1.0, 1.03):  # at any deadline between, at most the rounding to 4 coarse clocks is lost
        for plan in plans[::2]:
            assert solve_deadline(p, plan.time_s * slack).energy_j <= plan.energy_j * 1.004


@settings(deadline=None, max_examples=20)
@given(tiny(), st.lists(st.floats(1.0, 3.0), min_size=2, max_size=4))
def test_a_longer_deadline_never_costs_more(p: PipelineProblem, stretches: list[float]) -> None:
    fastest_s = trace_frontier(p, points=1)[0].time_s
    fastest_s = min(fastest_s, min(plan.time_s for plan in trace_frontier(p, points=3)))
    energies = [solve_deadline(p, fastest_s * stretch).energy_j for stretch in sorted(stretches)]
    assert all(later <= sooner * (1.0 + 1e-9) for sooner, later in itertools.pairwise(energies))


def test_the_fastest_plan_runs_only_critical_instructions_at_full_clock() -> None:
    p = problem()
    full = {i: 1350 for pair in dependencies(p.schedule, p.shape) for i in pair}
    fastest_s, energy_j = replayed(p, full)
    plan = solve_deadline(p, fastest_s)
    assert plan.time_s == pytest.approx(fastest_s)
    assert plan.energy_j < 0.97 * energy_j  # the imbalance of the stages is saved at no loss of time
    assert set(plan.knobs.values()) > {1350}
    assert plan.knobs[(3, 0, "forward")] == 1350  # plain tuples are keys


def test_too_short_a_deadline_names_the_fastest_time() -> None:
    p = problem()
    fastest_s = trace_frontier(p, points=2)[0].time_s
    with pytest.raises(BudgetError, match=f"the fastest takes {fastest_s:.6g} s"):
        solve_deadline(p, 0.9 * fastest_s)
    with pytest.raises(BudgetError):
        solve_deadline(p, math.nan)


def test_a_straggler_is_used_to_slow_down() -> None:
    p = problem(4, 4)
    plans = trace_frontier(p, points=6)
    fastest_s, straggler_s = plans[0].time_s, plans[0].time_s * 1.3
    plan = solve_straggler(p, straggler_s)
    assert plan.time_s <= straggler_s * (1.0 + 1e-6)
    waits = [other.energy_when_waiting_until(straggler_s) for other in plans if other.time_s <= straggler_s]
    assert plan.energy_when_waiting_until(straggler_s) <= min(waits) * 1.001
    assert solve_straggler(p, 0.5 * fastest_s).time_s == pytest.approx(fastest_s)
    with pytest.raises(FrontierError, match="cannot end at"):
        plan.energy_when_waiting_until(0.5 * plan.time_s)
    with pytest.raises(FrontierError, match="straggler_time_s"):
        solve_straggler(p, math.nan)


def test_single_options_and_equal_times() -> None:
    one = {(0, "forward"): [Option(1.0, 5.0, "f")] * 3, (0, "backward"): [Option(2.0, 9.0, "b"), Option(2.0, 8.0, "c")]}
    plans = trace_frontier(PipelineProblem(1, 3, one, 0.0), points=20)  # type: ignore[arg-type]
    assert [(plan.time_s, plan.energy_j) for plan in plans] == [(pytest.approx(9.0), pytest.approx(39.0))]
    assert isinstance(plans[0], PipelinePlan)
    assert set(plans[0].knobs.values()) == {"f", "c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {}}, r"options\[\(0, 'forward'\)\] is missing"),
        ({"blocking_power_w": math.nan}, "blocking_power_w"),
        ({"schedule": "dualpipe"}, "known: 1f1b"),
        ({"num_microbatches": 0}, "at least 1"),
    ],
)
def test_bad_problems_are_named(change: dict[str, object], message: str) -> None:
    good = {"num_stages": 1, "num_microbatches": 1, "blocking_power_w": 1.0}
    good["options"] = {(0, "forward"): [Option(1.0, 1.0)], (0, "backward"): [Option(1.0, 1.0)]}  # type: ignore[assignment]
    with pytest.raises(FrontierError, match=message):
        PipelineProblem(**{**good, **change})  # type: ignore[arg-type]
    for value in (math.nan, math.inf, 0.0, -1.0):
        with pytest.raises(FrontierError, match="time_s > 0"):
            Option(value, 1.0)
    with pytest.raises(FrontierError, match="at least one point"):
        trace_frontier(problem(), points=0)


def test_a_frontier_without_refinement_is_nearly_as_good() -> None:
    p = problem(num_stages=2, num_microbatches=5)
    rough, fine = (trace_frontier(p, 3, refine=refine) for refine in (False, True))
    for plan in rough:
        assert replayed(p, dict(plan.knobs)) == pytest.approx((plan.time_s, plan.energy_j))
        best_j = min((q.energy_j for q in fine if q.time_s <= plan.time_s), default=math.inf)
        assert plan.energy_j <= best_j * 1.02
    assert rough[0].time_s == pytest.approx(fine[0].time_s)
    assert fine[-1].energy_j <= rough[-1].energy_j * (1 + 1e-9)
