"""Overlapped gradient reduction against a walk over the buckets, and the ends of the scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from energy_lightning.emulation import GPU, emulate_iteration, emulate_iteration_end, emulate_phase, emulate_scheduled
from energy_lightning.emulation.gradients import BUCKET_BYTES, reduce_gradients
from energy_lightning.types import PhasePlan, Plan, Schedule
from energy_lightning.workload import Collective, Partition, Workload

A100 = GPU.load("a100-sxm4-40gb")
LLAMA = Workload.preset("llama3.2_3b_tp4_dp4", microbatch_size=4, sequence_length=4096, activation_checkpointing=True)


def gradients(num_buckets: int) -> Partition:
    return Partition("grad_bucket", (), Collective("all_reduce", num_buckets * BUCKET_BYTES, 4), 1, False)


def bucket_s(schedule: Schedule | None = None) -> float:
    return emulate_scheduled(gradients(1), A100, 1410, schedule).time_s


def walked_s(num_buckets: int, one_s: float, backward_s: float, share: float) -> float:
    """The oracle: buckets become ready through backward, the link is free again when the one before is through."""
    free_s = 0.0
    for i in range(1, num_buckets + 1):
        free_s = max(free_s, backward_s * i / num_buckets) + one_s
    exposed_s = free_s - backward_s
    return exposed_s + share * (num_buckets * one_s - exposed_s)


@pytest.mark.parametrize("backward_in_buckets", [0.0, 0.3, 4.0, 7.9, 8.1, 100.0])
@pytest.mark.parametrize("num_buckets", [1, 2, 8])
def test_buckets_are_reduced_as_they_fill(num_buckets: int, backward_in_buckets: float) -> None:
    one_s = bucket_s()
    found = reduce_gradients(gradients(num_buckets), A100, 1410, None, backward_in_buckets * one_s)
    pace = (1 - A100.collective.default_sms / A100.num_sms) / (1 + A100.collective.product_slowdown)
    expected_s = walked_s(num_buckets, one_s, backward_in_buckets * one_s, 1 - pace)
    assert found.time_s == pytest.approx(expected_s)


def test_nothing_to_hide_behind_costs_all_of_it_and_held_back_too() -> None:
    everything = emulate_scheduled(gradients(1), A100, 1410, None).times(5)
    found = reduce_gradients(gradients(5), A100, 1410, None, 0.0)
    assert (found.time_s, found.energy_j) == pytest.approx((everything.time_s, everything.energy_j))
    held = Schedule(launch="end")
    assert reduce_gradients(gradients(5), A100, 1410, held, 10.0).time_s == pytest.approx(everything.time_s)


def test_hidden_reduction_draws_its_own_energy_only() -> None:
    schedule = Schedule(sm_count=4)
    one = emulate_scheduled(gradients(1), A100, 1410, schedule)
    power, wire_bytes = A100.power, 2 * 3 / 4 * BUCKET_BYTES
    own_j = power.joule_per_link_byte * wire_bytes + power.sm_collective_w * 4 * one.time_s
    drawn_anyway_w = power.static_w + power.idle_clock_w
    hidden = reduce_gradients(gradients(40), A100, 1410, schedule, 10.0)
    slowed_s = hidden.time_s - one.time_s  # 39 buckets are hidden, the last is not
    assert hidden.energy_j == pytest.approx(39 * own_j + one.energy_j + drawn_anyway_w * slowed_s)


def test_fewer_sms_disturb_less_where_the_backward_is_long() -> None:
    few, many = (reduce_gradients(gradients(8), A100, 1410, Schedule(sm_count=n), 1.0).time_s for n in (8, 40))
    share = [few - bucket_s(Schedule(sm_count=8)), many - bucket_s(Schedule(sm_count=40))]
    assert 0 < share[0] < share[1]


def test_an_iteration_hides_all_but_a_little_behind_the_last_backward() -> None:
    last = PhasePlan("backward", 1410)
    bucket, optimizer = LLAMA.partitions("iteration", nanobatched=False)
    backward_s = emulate_phase(LLAMA, A100, last).time_s
    held_s = reduce_gradients(bucket, A100, 1410, Schedule(launch="end"), backward_s).time_s
    added_s = emulate_iteration_end(LLAMA, A100, last).time_s - emulate_scheduled(optimizer, A100, 1410, None).time_s
    assert 0 < added_s < 0.4 * held_s
    expected = reduce_gradients(bucket, A100, 1410, None, backward_s)
    assert added_s == pytest.approx(expected.time_s)


def test_held_back_reduction_makes_the_iteration_longer() -> None:
    plan = Plan.sequential(1410)
    held = replace(plan.backward, schedules={"grad_bucket": Schedule(launch="end")})
    late = emulate_iteration(LLAMA, A100, Plan.single_stage(plan.forward, held))
    early = emulate_iteration(LLAMA, A100, plan)
    assert early.time_s < late.time_s
    assert early.energy_j < late.energy_j
