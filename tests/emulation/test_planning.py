"""plan_frontier: every point is what its plan takes, against exhaustive search in small cases, and bad arguments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from energy_lightning.emulation import (
    GPU,
    emulate_instruction,
    emulate_iteration,
    emulate_phase,
    emulate_scheduled,
    plan_frontier,
    unlimited,
)
from energy_lightning.emulation.planning import METHODS
from energy_lightning.emulation.planning_options import PhaseSpace, lower_hull, saving, scheduled
from energy_lightning.frontier import FrontierError, Option
from energy_lightning.types import DeviceError, Phase, PhasePlan, Plan, PlanError, Schedule, WorkloadError
from energy_lightning.workload import Workload

A100 = GPU.load("a100-sxm4-40gb")
CLOCKS = (1110, 1260, 1410)
PIPELINE = Workload.preset(
    "llama3.2_3b",
    tensor_parallel=8,
    pipeline_parallel=2,
    microbatch_size=8,
    num_microbatches=3,
    sequence_length=4096,
    activation_checkpointing=True,
    layers_per_stage=(15, 13),
)
SINGLE = Workload.preset("llama3.2_1b_tp4", microbatch_size=4, sequence_length=2048, num_microbatches=1)

SHARDED = SINGLE.with_sizes(data_parallel=2, data_parallel_kind="fully_sharded", num_microbatches=2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workload", [PIPELINE, SHARDED], ids=["pipeline", "fully sharded"])
def test_points_are_what_their_plans_take_and_none_dominates_another(method: str, workload: Workload) -> None:
    found = plan_frontier(workload, A100, method, CLOCKS, points=5)
    assert 1 <= len(found) <= 5
    for point in found:
        result = emulate_iteration(workload, A100, point.plan)
        assert point.time_s == pytest.approx(result.time_s, rel=1e-6)
        assert point.energy_j == pytest.approx(result.energy_j, rel=1e-6)
        assert point.plan.time_s == point.time_s
        assert point.plan.energy_j == pytest.approx(point.energy_j / workload.num_gpus)
        assert point.plan.emulated
        stages = workload.pipeline_parallel
        length = 2 if stages == 1 else 2 * workload.num_microbatches  # one stage: a pair for every microbatch
        assert [len(stage) for stage in point.plan.stages] == [length] * stages
    for before, after in itertools.pairwise(found):
        assert before.time_s < after.time_s
        assert before.energy_j > after.energy_j


def test_max_frequency_is_one_plan_at_the_highest_clock_given() -> None:
    (point,) = plan_frontier(PIPELINE, A100, "max_frequency", CLOCKS)
    expected = emulate_iteration(PIPELINE, A100, Plan.sequential(1410))
    assert (point.time_s, point.energy_j) == pytest.approx((expected.time_s, expected.energy_j))


@pytest.mark.parametrize(("method", "mode"), [("perseus", False), ("nanobatch_perseus", True)])
def test_one_microbatch_without_pipeline_against_every_pair_of_clocks(method: str, mode: bool) -> None:
    clocks = range(900, 1411, 60)
    plans = [
        Plan.single_stage(PhasePlan("forward", f, mode), PhasePlan("backward", b, mode))
        for f, b in itertools.product(clocks, clocks)
    ]
    every = [emulate_iteration(SINGLE, A100, plan) for plan in plans]
    found = plan_frontier(SINGLE, A100, method, clocks, points=30)
    assert found[0].time_s == pytest.approx(min(r.time_s for r in every))
    assert found[-1].energy_j == pytest.approx(min(r.energy_j for r in every), rel=1e-4)
    for point in found:  # the optimizer, at the backward's clock, is not planned for: hence the tolerance
        best_j = min(r.energy_j for r in every if r.time_s <= point.time_s * (1 + 1e-9))
        assert point.energy_j <= best_j * 1.002


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_options_hold_the_best_schedule_of_every_type_for_any_price_of_time(phase: str) -> None:
    free = unlimited(A100)  # what the limit does to a phase, the parts alone do not tell
    space = PhaseSpace(PIPELINE, free, phase, 0, (1050, 1410))  # type: ignore[arg-type]
    options = scheduled(space)
    received = emulate_instruction(PIPELINE, free, PhasePlan(space.phase, 1410), stage=0).time_s
    received -= emulate_phase(PIPELINE, free, PhasePlan(space.phase, 1410), stage=0).time_s
    parts = PIPELINE.partitions(space.phase, stage=0, nanobatched=True)

    def once(part, frequency_mhz: int):  # type: ignore[no-untyped-def]
        launches = (*part.launch_points, None)
        tried = [Schedule(n, name) for n in range(3, 31, 3) for name in launches] if part.collective else [None]
        return [emulate_scheduled(part, free, frequency_mhz, schedule).times(part.count) for schedule in tried]

    for price_w in (100.0, 300.0, 1000.0):  # more than blocking power: what a second is worth in a pipeline
        per_clock = [
            sum(min(e.energy_j + price_w * e.time_s for e in once(part, f)) for part in parts)
            for f in space.frequencies_mhz
        ]
        whole = [emulate_phase(PIPELINE, free, PhasePlan(space.phase, f), stage=0) for f in space.frequencies_mhz]
        best = min(*per_clock, *(e.energy_j + price_w * e.time_s for e in whole))
        best += received * (A100.blocking_power_w + price_w)
        assert min(o.energy_j + price_w * o.time_s for o in options) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("limit_w", [400.0, 250.0, 60.0])
def test_options_are_what_their_plans_take_under_the_power_limit(limit_w: float) -> None:
    gpu = A100.with_constants(power__limit_w=limit_w)
    for option in scheduled(PhaseSpace(PIPELINE, gpu, "backward", 0, (1050, 1410))):
        taken = emulate_instruction(PIPELINE, gpu, option.knob, stage=0)
        assert (option.time_s, option.energy_j) == pytest.approx((taken.time_s, taken.energy_j))


def test_small_groups_search_every_sm_count() -> None:
    w = SINGLE.with_sizes(tensor_parallel=2)
    options = scheduled(PhaseSpace(w, A100, "forward", 0, (1410,)))
    counts = {schedule.sm_count for option in options for schedule in option.knob.schedules.values()}
    assert counts <= set(range(1, 21))
    assert any(count % 3 for count in counts)


def test_a_saving_is_that_of_the_stage_that_gains_most() -> None:
    def both(time_s: float, energy_j: float, stage: int) -> dict[tuple[int, Phase], list[Option]]:
        return {(stage, "forward"): [Option(time_s, energy_j)], (stage, "backward"): [Option(time_s, energy_j)]}

    baseline = both(1.0, 300.0, 0) | both(1.0, 300.0, 1)
    options = both(1.0, 300.0, 0) | both(0.9, 270.0, 1)  # a tenth of everything, at any price
    assert saving(options, baseline, 85.0) == pytest.approx(0.1)
    assert saving(baseline, baseline, 85.0) == 0.0


def test_a_tie_goes_to_sequential_execution() -> None:
    w = SINGLE.with_sizes(tensor_parallel=1)  # nothing to hide
    for point in plan_frontier(w, A100, "kareus", CLOCKS, points=4):
        assert not any(phase.nanobatched for stage in point.plan.stages for phase in stage)


def test_methods_are_ordered_where_communication_weighs() -> None:
    fronts = {method: plan_frontier(PIPELINE, A100, method, CLOCKS, points=3) for method in METHODS}
    fastest = {method: points[0].time_s for method, points in fronts.items()}
    least = {method: points[-1].energy_j for method, points in fronts.items()}
    assert fastest["kareus"] < fastest["nanobatch_perseus"] < fastest["perseus"]
    assert least["kareus"] < least["nanobatch_perseus"] < least["perseus"] < least["max_frequency"]
    assert fastest["perseus"] == pytest.approx(fastest["max_frequency"], rel=1e-3)


def test_lower_hull_against_all_weighted_sums() -> None:
    values = np.random.default_rng(3).integers(0, 12, size=(60, 2)).astype(np.float64)
    corners = {tuple(values[i]) for i in lower_hull(values[:, 0], values[:, 1])}
    for angle in np.linspace(0.01, np.pi / 2 - 0.01, 101):
        score = values @ (np.cos(angle), np.sin(angle))
        assert min(np.cos(angle) * t + np.sin(angle) * c for t, c in corners) == pytest.approx(score.min())
    assert len(corners) == len(lower_hull(values[:, 0], values[:, 1]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "zeus"}, PlanError, "'zeus'; known: max_frequency, perseus, nanobatch_perseus, kareus"),
        ({"frequencies_mhz": (1000,)}, DeviceError, "no SM clock of 1000 MHz; nearest: 990, 1005"),
        ({"frequencies_mhz": ()}, FrontierError, "frequencies_mhz is empty: give at least one clock"),
        ({"points": 0}, FrontierError, "points=0"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_frontier(SINGLE, A100, **arguments)  # type: ignore[arg-type]


def test_a_job_over_the_memory_is_refused_unless_asked_for() -> None:
    large = Workload.preset("llama3.3_70b_tp8", microbatch_size=1, sequence_length=4096)
    with pytest.raises(WorkloadError, match=r"more than the 42\.4 GB"):
        plan_frontier(large, A100, "max_frequency")
    assert len(plan_frontier(large, A100, "max_frequency", allow_over_memory=True)) == 1
