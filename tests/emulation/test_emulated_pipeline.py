"""Phases and iterations: additivity, pipelines against a diagram drawn by hand, plans that do not fit."""

from __future__ import annotations

import pytest

from energy_lightning.emulation import GPU, emulate_iteration, emulate_iteration_end, emulate_phase, emulate_scheduled
from energy_lightning.emulation.pipeline import one_f_one_b, place_phases
from energy_lightning.types import DeviceError, PhasePlan, Plan, PlanError, Schedule
from energy_lightning.workload import Workload

A100 = GPU.load("a100-sxm4-40gb")
LLAMA = Workload.preset("llama3.2_1b_tp4", microbatch_size=4, sequence_length=2048, activation_checkpointing=True)


@pytest.mark.parametrize("nanobatched", [False, True])
def test_a_phase_is_the_sum_of_its_partitions(nanobatched: bool) -> None:
    schedule = Schedule(sm_count=6, launch="linear_0")
    phase = emulate_phase(LLAMA, A100, PhasePlan("forward", 1200, nanobatched, {"fwd_mlp": schedule}))
    parts = [
        emulate_scheduled(p, A100, 1200, schedule if p.key == "fwd_mlp" else None).times(p.count)
        for p in LLAMA.partitions("forward", nanobatched=nanobatched)
    ]
    assert phase.time_s == pytest.approx(sum(p.time_s for p in parts))
    assert phase.energy_j == pytest.approx(sum(p.energy_j for p in parts))


def test_an_iteration_without_pipeline_is_its_phases_and_its_end() -> None:
    w = LLAMA.with_sizes(num_microbatches=3, data_parallel=2)
    plan = Plan.single_stage(PhasePlan("forward", 1410), PhasePlan("backward", 1200, True))
    result = emulate_iteration(w, A100, plan)
    forward, backward = (emulate_phase(w, A100, p) for p in plan.stages[0])
    end = emulate_iteration_end(w, A100, plan.backward)
    assert result.time_s == pytest.approx(3 * (forward.time_s + backward.time_s) + end.time_s)
    assert result.energy_per_gpu_j == pytest.approx(3 * (forward.energy_j + backward.energy_j) + end.energy_j)
    assert result.energy_j == pytest.approx(8 * result.energy_per_gpu_j)
    assert result.dynamic_energy_j == pytest.approx(result.energy_j - 8 * 85.0 * result.time_s)


def test_one_f_one_b_by_hand() -> None:
    short = {"forward": "F", "backward": "B"}
    drawn = ["".join(short[p] for p in one_f_one_b(3, s, 4)) for s in range(3)]
    assert drawn == ["FFFBFBBB"[:2] + "FBFBBB", "FFBFBFBB", "FBFBFBFB"]


def test_pipeline_times_by_hand() -> None:
    # forward 1 s, backward 2 s, two stages, two microbatches:
    #   stage 0   F0 F1 . B0 B0 . . B1 B1        starts 0 1 4 7... (B0 waits for stage 1's, done at 4)
    #   stage 1   .  F0 B0 B0 F1 B1 B1
    durations = [[(p, {"forward": 1.0, "backward": 2.0}[p]) for p in one_f_one_b(2, s, 2)] for s in range(2)]
    placed = place_phases(durations)
    assert [start for _, start, _ in placed[1]] == [1.0, 2.0, 4.0, 5.0]
    assert [start for _, start, _ in placed[0]] == [0.0, 1.0, 4.0, 7.0]
    assert placed[0][-1][2] == 9.0


def test_balanced_stages_take_the_closed_form_of_1f1b() -> None:
    durations = [[(p, {"forward": 1.0, "backward": 2.0}[p]) for p in one_f_one_b(4, s, 16)] for s in range(4)]
    assert max(p[-1][2] for p in place_phases(durations)) == pytest.approx((16 + 4 - 1) * 3.0)


def test_stages_that_wait_for_each_other_are_refused() -> None:
    backward_first = [("backward", 1.0), ("forward", 1.0)]
    with pytest.raises(PlanError, match="wait for each other: stage 0 cannot start its phase 0"):
        place_phases([backward_first])


def test_waiting_stages_draw_blocking_power() -> None:
    w = Workload.preset("llama3.2_1b_tp4", pipeline_parallel=2, num_microbatches=4, sequence_length=2048)
    result = emulate_iteration(w, A100, Plan.sequential(1410))
    for stage in result.stages:
        assert stage.busy_s < result.time_s
    plan = one_f_one_b(2, 0, 4)
    phases = {p: emulate_phase(w, A100, PhasePlan(p, 1410), stage=0) for p in ("forward", "backward")}  # type: ignore[arg-type]
    end = emulate_iteration_end(w, A100, PhasePlan("backward", 1410), stage=0)
    busy_j = sum(phases[p].energy_j for p in plan) + end.energy_j
    idle_s = result.time_s - sum(phases[p].time_s for p in plan) - end.time_s
    assert result.stages[0].energy_j == pytest.approx(busy_j + 85.0 * idle_s)


def test_a_plan_in_execution_order_is_taken_as_it_is() -> None:
    w = Workload.preset("llama3.2_1b_tp4", pipeline_parallel=2, num_microbatches=2, sequence_length=2048)
    orders = [[(p, 1410) for p in one_f_one_b(2, s, 2)] for s in range(2)]
    explicit = emulate_iteration(w, A100, Plan.from_stage_frequencies(orders))  # type: ignore[arg-type]
    assert explicit.time_s == pytest.approx(emulate_iteration(w, A100, Plan.sequential(1410)).time_s)


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        (
            Plan.from_stage_frequencies([[("forward", 1410), ("backward", 1410)]] * 2),
            PlanError,
            "2 stages, the workload 1",
        ),
        (
            Plan.from_stage_frequencies([[("forward", 1410)] * 2 + [("backward", 1410)] * 2]),
            PlanError,
            "2 forwards and 2 backwards; the workload needs 1 of each",
        ),
        (Plan.sequential(1000), DeviceError, "nearest: 990, 1005"),
    ],
)
def test_plans_that_do_not_fit(plan: Plan, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        emulate_iteration(LLAMA, A100, plan)


def test_slower_clocks_cost_time_and_save_energy_down_to_a_point() -> None:
    curve = [emulate_iteration(LLAMA, A100, Plan.sequential(f)) for f in (1410, 1110, 600)]
    assert curve[0].time_s < curve[1].time_s < curve[2].time_s
    assert curve[1].energy_j < curve[0].energy_j
    assert curve[1].energy_j < curve[2].energy_j


def test_nanobatches_do_not_pay_where_the_exchange_is_hidden_anyway() -> None:
    job = {"microbatch_size": 8, "num_microbatches": 8, "pipeline_parallel": 2, "layers_per_stage": (15, 13)}
    w = Workload.preset("qwen3_1.7b_tp4_cp2", sequence_length=4096, activation_checkpointing=True, **job)
    for phase in ("forward", "backward"):
        halves = emulate_phase(w, A100, PhasePlan(phase, 1410, True))  # type: ignore[arg-type]
        whole = emulate_phase(w, A100, PhasePlan(phase, 1410))  # type: ignore[arg-type]
        assert halves.time_s > whole.time_s, phase
