"""The emulated device: what it charges for runs, rests and clock switches."""

from __future__ import annotations

import numpy as np
import pytest

from energy_lightning.device import Device, EmulatedDevice
from energy_lightning.emulation import GPU, emulate_iteration, emulate_phase, emulate_scheduled
from energy_lightning.emulation.thermal import leakage_w
from energy_lightning.types import DeviceError, PhasePlan, Plan, Schedule
from energy_lightning.workload import Workload

A100 = GPU.load("a100-sxm4-40gb")
COLD = A100.with_constants(thermal__leakage_w_per_c=0.0)  # no leakage: energies are the estimates'
LLAMA = Workload.preset("llama3.2_1b_tp4", microbatch_size=4, sequence_length=1024)
ATTENTION = LLAMA.partitions("forward", nanobatched=True)[0]


def test_it_is_a_device() -> None:
    assert isinstance(EmulatedDevice(A100, LLAMA), Device)


def test_a_step_takes_what_emulate_iteration_says() -> None:
    device = EmulatedDevice(COLD, LLAMA)
    plan = Plan.sequential(1410)
    device.run_phase(plan.forward)
    device.run_phase(plan.backward)
    device.run_iteration_end(plan.backward)
    expected = emulate_iteration(LLAMA, COLD, plan)
    assert device.now_s() == pytest.approx(expected.time_s)
    assert device.energy_j() == pytest.approx(expected.energy_per_gpu_j)


def test_partitions_add_up_to_a_step_of_data_parallel_replicas() -> None:
    w = LLAMA.with_sizes(data_parallel=4)
    device = EmulatedDevice(COLD, w)
    for phase in ("forward", "backward", "iteration"):
        for partition in w.partitions(phase, nanobatched=False):  # type: ignore[arg-type]
            device.run_partition(partition, repeats=partition.count)
    expected = emulate_iteration(w, COLD, Plan.sequential(1410))
    assert device.now_s() == pytest.approx(expected.time_s)
    assert device.energy_j() == pytest.approx(expected.energy_per_gpu_j)


def test_a_partition_runs_its_schedule_at_the_locked_clock() -> None:
    device = EmulatedDevice(COLD, LLAMA)
    device.lock_frequency(900)
    schedule = Schedule(sm_count=8, launch="linear_0")
    found = device.run_partition(ATTENTION, schedule, repeats=100)
    expected = emulate_scheduled(ATTENTION, COLD, 900, schedule)
    assert (found.time_s, found.energy_j) == pytest.approx((expected.time_s, expected.energy_j))


def test_repeats_are_one_after_the_other() -> None:
    one, many = EmulatedDevice(A100, LLAMA), EmulatedDevice(A100, LLAMA)
    for _ in range(50):
        one.run_partition(ATTENTION)
    many.run_partition(ATTENTION, repeats=50)
    assert (many.now_s(), many.energy_j()) == pytest.approx((one.now_s(), one.energy_j()))
    assert many.temperature_c() == pytest.approx(one.temperature_c())


def test_a_clock_switch_costs_time_at_blocking_power_and_locking_the_same_clock_nothing() -> None:
    device = EmulatedDevice(COLD, LLAMA)
    device.lock_frequency(1200)
    device.lock_frequency(1200)
    assert device.now_s() == pytest.approx(COLD.switch_time_s)
    assert device.energy_j() == pytest.approx(85.0 * COLD.switch_time_s)
    device.reset_frequency()
    assert device.now_s() == pytest.approx(2 * COLD.switch_time_s)
    assert device.frequency_mhz() == 1410
    device.reset_frequency()
    assert device.now_s() == pytest.approx(2 * COLD.switch_time_s)


def test_a_clock_it_lacks_is_refused_and_nothing_changes() -> None:
    device = EmulatedDevice(A100, LLAMA)
    with pytest.raises(DeviceError, match="nearest: 1395, 1410"):
        device.lock_frequency(1402)
    assert (device.now_s(), device.frequency_mhz()) == (0.0, 1410)


def test_work_heats_rest_cools_and_heat_leaks() -> None:
    device = EmulatedDevice(A100, LLAMA)
    idle_c = device.temperature_c()
    device.run_phase(PhasePlan("forward"), repeats=2000)
    hot_c = device.temperature_c()
    device.idle(5.0)
    assert idle_c < device.temperature_c() < hot_c
    cold_j = emulate_phase(LLAMA, A100, PhasePlan("forward")).energy_j
    hot = device.run_phase(PhasePlan("forward"))
    expected = cold_j + leakage_w(A100.thermal, device.temperature_c()) * hot.time_s
    assert hot.energy_j == pytest.approx(expected, rel=1e-3)


def test_the_power_limit_throttles_to_a_clock_within_it() -> None:
    device = EmulatedDevice(COLD.with_constants(power__limit_w=200.0), LLAMA)
    found = device.run_phase(PhasePlan("forward"))
    assert device.frequency_mhz() < 1410
    assert found.power_w <= 200.0
    higher = COLD.frequencies_mhz[COLD.frequencies_mhz.index(device.frequency_mhz()) + 1]
    assert emulate_phase(LLAMA, COLD, PhasePlan("forward", higher)).power_w > 200.0


def test_a_power_limit_that_is_set_acts_like_a_board_with_that_limit() -> None:
    limited, board = EmulatedDevice(COLD, LLAMA), EmulatedDevice(COLD.with_constants(power__limit_w=200.0), LLAMA)
    assert limited.set_power_limit(200.0) == limited.power_limit_w == 200.0
    forward = PhasePlan("forward")
    assert limited.run_phase(forward) == board.run_phase(forward)
    assert limited.frequency_mhz() == board.frequency_mhz() < 1410
    assert limited.throttle_reasons() == ("sw_power_cap",)
    assert limited.requested_frequency_mhz() is None
    limited.reset_power_limit()
    unlimited = EmulatedDevice(COLD, LLAMA)
    assert limited.run_phase(forward) == unlimited.run_phase(forward)
    assert (limited.power_limit_w, limited.throttle_reasons()) == (400.0, ())


@pytest.mark.parametrize("limit_w", [99.9, 400.1, float("nan")])
def test_a_power_limit_outside_the_range_is_refused_and_nothing_changes(limit_w: float) -> None:
    device = EmulatedDevice(A100, LLAMA)
    with pytest.raises(DeviceError, match="takes power limits of 100 to 400 W"):
        device.set_power_limit(limit_w)
    assert device.power_limit_w == 400.0


def test_the_counter_moves_every_refresh_and_catches_up() -> None:
    exact, coarse = EmulatedDevice(A100, LLAMA), EmulatedDevice(A100, LLAMA, counter_refresh_s=0.1)
    readings = []
    for device in (exact, coarse):
        for _ in range(60):
            device.idle(0.013)
            readings.append(device.energy_j())
    seen = np.array(readings[60:])
    assert len(set(seen.tolist())) == 8  # 0 and the refreshes at 0.1 to 0.7 s of 0.78 s
    assert seen[-1] == pytest.approx(exact.energy_j() * 0.7 / 0.78)


def test_noise_is_seeded_and_has_the_asked_spread() -> None:
    def times(seed: int | None) -> list[float]:
        device = EmulatedDevice(A100, LLAMA, seed=seed, noise_std=0.02)
        return [device.run_partition(ATTENTION).time_s for _ in range(300)]

    assert times(1) == times(1) != times(2)
    assert len(set(times(None))) == 1
    assert np.std(times(3)) / np.mean(times(3)) == pytest.approx(0.02, rel=0.15)


def test_another_batch_size_is_another_workload() -> None:
    device = EmulatedDevice(A100, LLAMA)
    small = device.run_phase(PhasePlan("forward"))
    device.set_workload(LLAMA.with_sizes(microbatch_size=8))
    assert device.run_phase(PhasePlan("forward")).time_s > 1.5 * small.time_s


@pytest.mark.parametrize(
    ("options", "message"),
    [({"noise_std": float("nan")}, "noise_std must be"), ({"counter_refresh_s": -1.0}, "counter_refresh_s must be")],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        EmulatedDevice(A100, LLAMA, **options)  # type: ignore[arg-type]


def test_bad_times_and_repeats() -> None:
    device = EmulatedDevice(A100, LLAMA)
    for time_s in (-1.0, float("nan")):
        with pytest.raises(DeviceError, match="cannot idle"):
            device.idle(time_s)
    with pytest.raises(DeviceError, match="repeats must be at least 1"):
        device.run_partition(ATTENTION, repeats=0)
