"""Clocks, locks and power limits that NVML shows: lags, throttling, ranges, reasons."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pynvml
import pytest
from chip_model import counter_j, gpu, integrated, reference_w, started
from manual_clock import ManualClock

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.emulation import GPU

SM, MEMORY = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM


@pytest.fixture
def nvml(clock: ManualClock) -> Iterator[NvmlEmulator]:
    with NvmlEmulator([EmulatedBoard()], now_s=clock) as emulator:
        pynvml.nvmlInit()
        yield emulator


# clocks


def test_clocks_follow_load(nvml: NvmlEmulator) -> None:
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == 210
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) == pynvml.nvmlClocksEventReasonGpuIdle
    nvml.load(0, 0.5)
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == pynvml.nvmlDeviceGetMaxClockInfo(gpu(), SM) == 1410
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_GRAPHICS) == 1410
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), MEMORY) == pynvml.nvmlDeviceGetMaxClockInfo(gpu(), MEMORY) == 1215
    assert pynvml.nvmlDeviceGetClock(gpu(), SM, pynvml.NVML_CLOCK_ID_CURRENT) == 1410
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) == pynvml.nvmlClocksEventReasonNone
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu()) == 0


@pytest.mark.parametrize("load", [0.0, 0.5])
@pytest.mark.parametrize("lag_s", [0.0, 0.005, 0.25])
def test_a_lock_is_followed_after_the_lag(load: float, lag_s: float, clock: ManualClock) -> None:
    with started(clock, EmulatedBoard(clock_lag_s=lag_s)) as nvml:
        pynvml.nvmlInit()
        nvml.load(0, load)
        before_mhz = 1410 if load else 210
        pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 900, 900)
        assert nvml.state(0).target_mhz == 900
        if lag_s:
            clock.time_s += 0.9 * lag_s
            assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == before_mhz
            clock.time_s += 0.2 * lag_s
        assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == 900
        pynvml.nvmlDeviceResetGpuLockedClocks(gpu())
        clock.time_s += 1.1 * lag_s
        assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == before_mhz
        assert nvml.state(0).locked_mhz is None


def test_energy_over_a_lag_is_that_of_both_clocks(clock: ManualClock) -> None:
    board = EmulatedBoard(clock_lag_s=0.4, counter_refresh_s=0.0, temperature_c=55.0)
    with started(clock, board) as nvml:
        pynvml.nvmlInit()
        nvml.load(0, 0.5)
        pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 600, 600)
        clock.time_s += 1.0
        expected_j, _ = integrated([(0.4, reference_w(1410, 0.5)), (0.6, reference_w(600, 0.5))], 55.0)
        assert counter_j() == pytest.approx(expected_j, rel=1e-5)


def test_a_second_lock_within_the_lag_starts_it_again(clock: ManualClock) -> None:
    with started(clock, EmulatedBoard(clock_lag_s=1.0)) as nvml:
        pynvml.nvmlInit()
        nvml.load(0, 0.5)
        pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 900, 900)
        clock.time_s += 0.6
        pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 1200, 1200)
        clock.time_s += 0.6
        assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == 1410
        clock.time_s += 0.6
        assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == 1200


@pytest.mark.parametrize(
    ("least_mhz", "most_mhz", "idle_mhz", "busy_mhz"),
    [
        (210, 1410, 210, 1410),
        (600, 1200, 600, 1200),
        (907, 907, 900, 900),
        (1, 5000, 210, 1410),
        (1500, 1500, 1410, 1410),
    ],
)
def test_ranges_are_taken_to_clocks_that_exist(
    least_mhz: int, most_mhz: int, idle_mhz: int, busy_mhz: int, nvml: NvmlEmulator, clock: ManualClock
) -> None:
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), least_mhz, most_mhz)
    clock.time_s += 1.0
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == idle_mhz
    nvml.load(0, 0.1)
    clock.time_s += 1.0
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == busy_mhz
    assert nvml.state(0).locked_mhz == (least_mhz, most_mhz)


@pytest.mark.parametrize(("least_mhz", "most_mhz"), [(1200, 900), (0, 0), (0, 900)])
def test_impossible_ranges_are_refused(least_mhz: int, most_mhz: int, nvml: NvmlEmulator) -> None:
    for lock in (pynvml.nvmlDeviceSetGpuLockedClocks, pynvml.nvmlDeviceSetMemoryLockedClocks):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            lock(gpu(), least_mhz, most_mhz)
    assert (nvml.state(0).locked_mhz, nvml.state(0).memory_locked_mhz) == (None, None)


def test_memory_clocks_lock_apart(nvml: NvmlEmulator) -> None:
    pynvml.nvmlDeviceSetMemoryLockedClocks(gpu(), 1215, 1215)
    assert nvml.state(0).memory_locked_mhz == (1215, 1215)
    assert nvml.state(0).locked_mhz is None
    pynvml.nvmlDeviceResetMemoryLockedClocks(gpu())
    assert nvml.state(0).memory_locked_mhz is None


def test_supported_clocks_belong_to_a_memory_clock(nvml: NvmlEmulator) -> None:
    assert pynvml.nvmlDeviceGetSupportedMemoryClocks(gpu()) == [1215]
    assert pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu(), 1215) == list(range(1410, 209, -15))
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu(), 1216)


# power limits


@pytest.mark.parametrize(
    ("step_w", "asked_w", "reported_w"),
    [(5.0, 183, 185), (5.0, 182, 180), (5.0, 185, 185), (25.0, 183, 175), (0.0, 183, 183), (7.0, 101, 100)],
)
def test_limits_are_rounded_to_what_the_board_can(
    step_w: float, asked_w: int, reported_w: int, clock: ManualClock
) -> None:
    with started(clock, EmulatedBoard(limit_granularity_w=step_w)) as nvml:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 1000 * asked_w)
        assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu()) == 1000 * reported_w
        assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu()) == 1000 * reported_w
        assert nvml.state(0).power_limit_w == reported_w
        assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu()) == 400_000


@pytest.mark.parametrize("limit_mw", [0, 99_999, 400_001, 2**32 - 1])
def test_limits_outside_the_range_are_refused(limit_mw: int, nvml: NvmlEmulator) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), limit_mw)
    assert nvml.state(0).power_limit_w == 400.0


def test_a_limit_of_one_s_own_at_the_start(clock: ManualClock) -> None:
    board = EmulatedBoard(power_limit_w=250.0, default_limit_w=300.0, limit_range_w=(150.0, 350.0))
    with started(clock, board):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu()) == 250_000
        assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu()) == 300_000
        assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu()) == [150_000, 350_000]


@pytest.mark.parametrize("limit_w", [100, 150, 183, 250, 300, 350, 399])
def test_under_a_limit_the_highest_clock_that_fits_is_held(limit_w: int, clock: ManualClock) -> None:
    """By trying every clock with the formula above."""
    with started(clock, EmulatedBoard(temperature_c=55.0)) as nvml:
        pynvml.nvmlInit()
        nvml.load(0, 1.0)
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 1000 * limit_w)
        fitting = [mhz for mhz in range(210, 1411, 15) if reference_w(mhz, 1.0) <= limit_w]
        expected_mhz = max(fitting, default=210)
        assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == expected_mhz
        throttled = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) & pynvml.nvmlClocksEventReasonSwPowerCap
        assert bool(throttled) == (expected_mhz < 1410)
        assert nvml.state(0).target_mhz == 1410


def test_a_limit_counts_for_a_locked_clock_too(nvml: NvmlEmulator, clock: ManualClock) -> None:
    nvml.load(0, 1.0)
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 1200, 1200)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 150_000)
    clock.time_s += 1.0
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) < 1200
    assert nvml.state(0).power_w <= 150.0
    nvml.load(0, 0.0)
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == 1200


def test_a_board_that_warms_up_throttles_more(clock: ManualClock) -> None:
    """Leakage takes power from the work: the held clock falls on the way, mean power stays at the limit."""
    with started(clock, EmulatedBoard()) as nvml:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 300_000)
        nvml.load(0, 1.0)
        cold_mhz = nvml.state(0).sm_mhz
        clock.time_s += 1000.0
        warm = nvml.state(0)
        assert warm.sm_mhz < cold_mhz
        assert 290.0 < warm.energy_j / 1000.0 <= 300.0


def test_a_clock_held_down_is_told_with_its_reason(nvml: NvmlEmulator) -> None:
    nvml.load(0, 0.5)
    nvml.cap_clock(0, 1207, "hw_slowdown")
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == 1200
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) == pynvml.nvmlClocksEventReasonHwSlowdown
    assert nvml.state(0).target_mhz == 1410
    nvml.cap_clock(0, None)
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), SM) == 1410
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) == 0


def test_all_packaged_models_run_busy_within_their_limits(clock: ManualClock) -> None:
    for name, load in itertools.product(GPU.names(), (0.0, 0.5, 1.0)):
        with started(clock, EmulatedBoard(gpu=name)) as nvml:
            pynvml.nvmlInit()
            nvml.load(0, load)
            clock.time_s += 600.0
            state = nvml.state(0)
            assert 0.0 < state.power_w <= GPU.load(name).power_limit_w
            assert 20.0 < state.temperature_c < 95.0
