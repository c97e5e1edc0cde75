"""Phases and iterations: additivity, pipelines against a diagram drawn by hand, plans that do not fit."""

from __future__ import annotations

import pytest

from energy_lightning.emulation import (
    GPU,
    emulate_instruction,
    emulate_iteration,
    emulate_iteration_end,
    emulate_phase,
    emulate_scheduled,
    receive_time_s,
)
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
    phases = {p: emulate_instruction(w, A100, PhasePlan(p, 1410), stage=0) for p in ("forward", "backward")}  # type: ignore[arg-type]
    end = emulate_iteration_end(w, A100, PhasePlan("backward", 1410), stage=0)
    busy_j = sum(phases[p].energy_j for p in plan) + end.energy_j
    idle_s = result.time_s - sum(phases[p].time_s for p in plan) - end.time_s
    assert result.stages[0].energy_j == pytest.approx(busy_j + 85.0 * idle_s)


def test_stages_add_up_to_the_job() -> None:
    w = Workload.preset("llama3.2_3b_tp2_pp3", num_microbatches=5, sequence_length=1024, data_parallel=2)
    result = emulate_iteration(w, A100, Plan.sequential(1200))
    assert result.energy_j == pytest.approx(4 * sum(stage.energy_j for stage in result.stages))
    assert result.dynamic_energy_j == pytest.approx(4 * sum(stage.dynamic_energy_j for stage in result.stages))
    for s, stage in enumerate(result.stages):
        end = emulate_iteration_end(w, A100, PhasePlan("backward", 1200), stage=s)
        assert stage.time_s == result.time_s
        assert stage.busy_s == pytest.approx(sum(p.end_s - p.start_s for p in stage.phases) + end.time_s)
        waiting_j = 85.0 * (stage.time_s - stage.busy_s)
        assert stage.energy_j == pytest.approx(sum(p.energy_j for p in stage.phases) + end.energy_j + waiting_j)
        assert 85.0 < stage.power_w < 400.0


def test_activations_between_stages_take_their_time() -> None:
    # 4 sequences x 2048 tokens x 2048 hidden x 2 bytes, an eighth of it from each of 8 GPUs, over 12.5 GB/s: 0.336 ms
    w = Workload.preset("llama3.2_1b_tp8_pp2", microbatch_size=4, num_microbatches=3, sequence_length=2048)
    slow = A100.with_constants(collective__p2p_bytes_per_s=12.5e9, collective__latency_s=0.0)
    expected_s = 4 * 2048 * 2048 * 2 / 8 / 12.5e9
    received = {(p, s): receive_time_s(w, slow, p, s) for p in ("forward", "backward") for s in (0, 1)}  # type: ignore[arg-type]
    assert received == {
        ("forward", 0): 0.0,
        ("forward", 1): pytest.approx(expected_s),
        ("backward", 0): pytest.approx(expected_s),
        ("backward", 1): 0.0,
    }
    # F0 on stage 0, then stage 1 receives and computes in turn, then stage 0's last backward receives
    plan = Plan.sequential(1410)
    last_stage = [emulate_phase(w, slow, p, stage=1).time_s for p in plan.stages[0]]
    first_stage = [emulate_phase(w, slow, p).time_s for p in plan.stages[0]]
    assert all(first < last for first, last in zip(first_stage, last_stage, strict=True))
    path_s = sum(first_stage) + 3 * sum(last_stage) + 4 * expected_s
    end_s = max(emulate_iteration_end(w, slow, plan.backward, stage=s).time_s for s in (0, 1))
    assert emulate_iteration(w, slow, plan).time_s == pytest.approx(path_s + end_s)


def test_transfers_draw_blocking_power_and_cost_a_planner_nothing() -> None:
    w = Workload.preset("llama3.2_1b_tp8_pp2", microbatch_size=4, sequence_length=2048)
    phase = emulate_phase(w, A100, PhasePlan("forward", 1200), stage=1)
    whole = emulate_instruction(w, A100, PhasePlan("forward", 1200), stage=1)
    assert whole.time_s > phase.time_s
    assert whole.energy_j - 85.0 * whole.time_s == pytest.approx(phase.energy_j - 85.0 * phase.time_s)


@pytest.mark.parametrize(("name", "parallel"), [("llama3.2_3b", (8, 1)), ("qwen3_1.7b", (4, 2))])
def test_transfers_over_nvlink_are_a_thousandth_of_the_iteration(name: str, parallel: tuple[int, int]) -> None:
    job = {"microbatch_size": 8, "num_microbatches": 8, "pipeline_parallel": 2, "layers_per_stage": (15, 13)}
    groups = {"tensor_parallel": parallel[0], "context_parallel": parallel[1]}
    w = Workload.preset(name, sequence_length=4096, activation_checkpointing=True, **job, **groups)
    at_once = A100.with_constants(collective__p2p_bytes_per_s=1e30)
    plan = Plan.sequential(1410)
    assert emulate_iteration(w, A100, plan).time_s < 1.001 * emulate_iteration(w, at_once, plan).time_s


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
    halves, whole = (
        emulate_iteration(
            w, A100, Plan.single_stage(PhasePlan("forward", 1410, mode), PhasePlan("backward", 1410, mode))
        )
        for mode in (True, False)
    )
    assert halves.time_s > 1.02 * whole.time_s  # published: 20% longer
    assert halves.energy_j > whole.energy_j
