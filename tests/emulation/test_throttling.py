"""The power limit and the temperature: against a search over every clock, and what must not move below the limit."""

from __future__ import annotations

import time

import numpy as np
import pytest

from energy_lightning.emulation import (
    GPU,
    at_temperature,
    emulate_partition,
    emulate_partitions,
    emulate_phase,
    emulate_scheduled,
    unlimited,
)
from energy_lightning.emulation.thermal import leakage_w
from energy_lightning.types import DeviceError, PhasePlan
from energy_lightning.workload import Operator, Workload

A100 = GPU.load("a100-sxm4-40gb")
PRODUCT = (Operator("linear_0", "linear", 1e13, 1e8),)
LLAMA = Workload.preset("llama3.2_3b_tp8", microbatch_size=8, sequence_length=4096, activation_checkpointing=True)
ATTENTION = LLAMA.partitions("forward", nanobatched=True)[0]


def highest_clock_within(gpu: GPU, limit_w: float, asked_mhz: int) -> int:
    """The oracle: every clock is tried from the top."""
    free = unlimited(gpu)
    for clock in reversed([f for f in gpu.frequencies_mhz if f <= asked_mhz]):
        if emulate_partition(PRODUCT, None, free, frequency_mhz=clock).power_w <= limit_w:
            return clock
    return gpu.frequencies_mhz[0]


@pytest.mark.parametrize("limit_w", [40.0, 110.0, 150.0, 213.0, 300.0, 380.0, 1000.0])
@pytest.mark.parametrize("asked_mhz", [210, 900, 1410])
def test_a_partition_runs_at_the_highest_clock_within_the_limit(limit_w: float, asked_mhz: int) -> None:
    limited = A100.with_constants(power__limit_w=limit_w)
    held_mhz = highest_clock_within(A100, limit_w, asked_mhz)
    expected = emulate_partition(PRODUCT, None, unlimited(A100), frequency_mhz=held_mhz)
    assert emulate_partition(PRODUCT, None, limited, frequency_mhz=asked_mhz) == expected


def test_many_configurations_are_throttled_as_one_by_one() -> None:
    limited = A100.with_constants(power__limit_w=230.0)
    clocks, counts = np.meshgrid(range(900, 1411, 30), range(2, 21, 6))
    options = {"frequency_mhz": clocks.ravel(), "sm_count": counts.ravel(), "launch": "linear_0"}
    time_s, energy_j = emulate_partitions(ATTENTION.operators, ATTENTION.collective, limited, **options)
    one_by_one = [
        emulate_partition(
            ATTENTION.operators, ATTENTION.collective, limited, frequency_mhz=f, sm_count=n, launch="linear_0"
        )
        for f, n in zip(clocks.ravel(), counts.ravel(), strict=True)
    ]
    np.testing.assert_allclose(time_s, [e.time_s for e in one_by_one])
    np.testing.assert_allclose(energy_j, [e.energy_j for e in one_by_one])
    assert (energy_j <= 230.0 * time_s).all()
    free_s, _ = emulate_partitions(ATTENTION.operators, ATTENTION.collective, unlimited(A100), **options)
    assert (time_s > free_s).any()
    assert (time_s == free_s).any()


def test_720_throttled_configurations_take_no_time() -> None:
    names = [ATTENTION.launch_points[i % 4] for i in range(720)]
    clocks = np.repeat(np.arange(900, 1411, 30), 40)
    limited = A100.with_constants(power__limit_w=200.0)
    took_s = []
    for _ in range(3):  # the best of three: other processes may share the cores
        start_s = time.perf_counter()
        emulate_partitions(ATTENTION.operators, ATTENTION.collective, limited, frequency_mhz=clocks, launch=names)
        took_s.append(time.perf_counter() - start_s)
    assert min(took_s) < 0.2


def test_a_phase_is_judged_by_its_mean_power() -> None:
    parts = [
        (p, emulate_scheduled(p, unlimited(A100), 1410, None).times(p.count))
        for p in LLAMA.partitions("backward", nanobatched=False)
    ]
    mean_w = sum(e.energy_j for _, e in parts) / sum(e.time_s for _, e in parts)
    peak_w = max(e.power_w for _, e in parts)
    between = A100.with_constants(power__limit_w=(mean_w + peak_w) / 2)
    whole = emulate_phase(LLAMA, between, PhasePlan("backward", 1410))
    assert whole.time_s == pytest.approx(sum(e.time_s for _, e in parts))
    below = A100.with_constants(power__limit_w=mean_w - 10.0)
    slowed = emulate_phase(LLAMA, below, PhasePlan("backward", 1410))
    assert slowed.time_s > whole.time_s
    assert slowed.power_w <= mean_w - 10.0


def test_heat_leaks_and_leaves_less_to_the_work() -> None:
    hot = at_temperature(A100, 85.0)
    more_w = leakage_w(A100.thermal, 85.0)
    cold_run, hot_run = (emulate_phase(LLAMA, gpu, PhasePlan("forward", 1200)) for gpu in (A100, hot))
    assert hot_run.time_s == cold_run.time_s
    assert hot_run.energy_j == pytest.approx(cold_run.energy_j + more_w * cold_run.time_s)
    assert leakage_w(hot.thermal, 85.0) == 0.0
    limit_w = emulate_partition(PRODUCT, None, unlimited(A100), frequency_mhz=1200).power_w + 0.5 * more_w
    cool, warm = (
        emulate_partition(PRODUCT, None, gpu.with_constants(power__limit_w=limit_w), frequency_mhz=1200)
        for gpu in (A100, hot)
    )
    assert warm.time_s > cool.time_s


@pytest.mark.parametrize("temperature_c", [float("nan"), -300.0, 500.0])
def test_no_such_temperature(temperature_c: float) -> None:
    with pytest.raises(DeviceError, match="give 0 to 110"):
        at_temperature(A100, temperature_c)
