"""Energy, power, clocks and temperatures that NVML shows, against closed forms and a plain integration of the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.emulation import GPU
from energy_lightning.emulation.gpu_values import packaged_values

A100 = packaged_values("a100-sxm4-40gb")
SM, MEMORY = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def nvml(clock: ManualClock) -> Iterator[NvmlEmulator]:
    with NvmlEmulator([EmulatedBoard()], now_s=clock) as emulator:
        pynvml.nvmlInit()
        yield emulator


def started(clock: ManualClock, board: EmulatedBoard) -> NvmlEmulator:
    return NvmlEmulator([board], now_s=clock)


def gpu() -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def counter_j() -> float:
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) / 1e3


def field(number: int, scope: int = 0) -> Any:
    return pynvml.nvmlDeviceGetFieldValues(gpu(), [(number, scope)])[0]


def reference_w(clock_mhz: float, load: float, values: dict[str, Any] = A100) -> float:
    """The documented formula from the YAML file's constants, written a second time."""
    power, compute, most = values["power"], values["compute"], values["clocks"]["max_mhz"]
    ratio = clock_mhz / most

    def voltage(r: float) -> float:
        above = (1 - power["voltage_slope"] * (1 - r) - power["voltage_floor"]) / power["voltage_rounding"]
        return float(power["voltage_floor"] + power["voltage_rounding"] * math.log1p(math.exp(above)))

    scale = ratio * (voltage(ratio) / voltage(1.0)) ** 2
    products_w = compute["peak_flops_per_s"]["bf16"] * compute["linear_efficiency"] * power["joule_per_flop"]
    return float(power["static_w"] + scale * (power["idle_clock_w"] + load * (power["sm_active_w"] + products_w)))


def integrated(pieces: list[tuple[float, float]], start_c: float, step_s: float = 1e-3) -> tuple[float, float]:
    """Energy and temperature after (time, reference power) pieces: midpoint steps of the heat equation."""
    heat = A100["thermal"]
    energy_j, temperature_c = 0.0, start_c

    def flow(temperature_c: float, power_w: float) -> tuple[float, float]:
        power_w += heat["leakage_w_per_c"] * (temperature_c - heat["reference_c"])
        lost_w = (temperature_c - heat["ambient_c"]) / heat["resistance_c_per_w"]
        return power_w, (power_w - lost_w) / heat["capacity_j_per_c"]

    for time_s, power_w in pieces:
        steps = max(round(time_s / step_s), 1)
        for _ in range(steps):
            middle_c = temperature_c + flow(temperature_c, power_w)[1] * time_s / steps / 2
            drawn_w, slope = flow(middle_c, power_w)
            energy_j, temperature_c = energy_j + drawn_w * time_s / steps, temperature_c + slope * time_s / steps
    return energy_j, temperature_c


# the counter


def test_a_constant_power_for_ten_seconds(nvml: NvmlEmulator, clock: ManualClock) -> None:
    nvml.hold_power(0, 200.0)
    clock.time_s += 10.0
    assert counter_j() == pytest.approx(2000.0, abs=1e-3)
    assert nvml.state(0).energy_j == pytest.approx(2000.0)


@pytest.mark.parametrize("refresh_s", [0.01, 0.1, 0.25, 1.0])
@pytest.mark.parametrize("step_s", [0.003, 0.07, 0.33])
def test_the_counter_moves_at_its_refresh_only(refresh_s: float, step_s: float, clock: ManualClock) -> None:
    with started(clock, EmulatedBoard(counter_refresh_s=refresh_s)) as nvml:
        pynvml.nvmlInit()
        nvml.hold_power(0, 100.0)
        for step in range(1, 40):
            clock.time_s = 50.0 + step * step_s
            shown_s = math.floor(round(step * step_s / refresh_s, 6)) * refresh_s
            assert counter_j() == pytest.approx(100.0 * shown_s, abs=2e-3)
            assert nvml.state(0).energy_j == pytest.approx(100.0 * step * step_s)


def test_without_refresh_the_counter_is_exact(clock: ManualClock) -> None:
    with started(clock, EmulatedBoard(counter_refresh_s=0.0)) as nvml:
        pynvml.nvmlInit()
        nvml.hold_power(0, 100.0)
        for step in range(1, 20):
            clock.time_s = 50.0 + step * 0.0123
            assert counter_j() == pytest.approx(1.23 * step, abs=1e-3)


def test_a_reading_changes_nothing(clock: ManualClock) -> None:
    """Energy is the same whether it is looked at a thousand times or once."""
    totals = []
    for looks in (1, 1000):
        clock.time_s = 50.0
        with started(clock, EmulatedBoard()) as nvml:
            pynvml.nvmlInit()
            nvml.load(0, 0.8)
            for look in range(1, looks + 1):
                clock.time_s = 50.0 + 30.0 * look / looks
                counter_j()
            totals.append((counter_j(), nvml.state(0).temperature_c))
    assert totals[0] == pytest.approx(totals[1], rel=1e-9)


def test_a_reset_of_the_counter_is_seen_and_counts_on(nvml: NvmlEmulator, clock: ManualClock) -> None:
    """[1.0, 1.8, 0.3, 0.9] J as a meter sees them when the driver is reloaded in between."""
    nvml.reset_counter(0, 1.0)
    nvml.hold_power(0, 0.8)
    seen = [counter_j()]
    clock.time_s += 1.0
    seen.append(counter_j())
    nvml.reset_counter(0, 0.3)
    seen.append(counter_j())
    nvml.hold_power(0, 0.6)
    clock.time_s += 1.0
    seen.append(counter_j())
    assert seen == pytest.approx([1.0, 1.8, 0.3, 0.9], abs=2e-3)
    assert nvml.state(0).energy_j == pytest.approx(1.4)


def test_the_counter_may_start_anywhere_and_shows_whole_millijoules(clock: ManualClock) -> None:
    with started(clock, EmulatedBoard(counter_j=12345.678)) as nvml:
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == 12345678
        nvml.hold_power(0, 1e-4)
        clock.time_s += 9.0  # 0.9 mJ
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == 12345678
        clock.time_s += 2.0
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == 12345679


def test_a_clock_that_stands_still_or_falls_back_draws_nothing(nvml: NvmlEmulator, clock: ManualClock) -> None:
    nvml.hold_power(0, 100.0)
    clock.time_s += 5.0
    before = counter_j()
    clock.time_s -= 3.0
    assert counter_j() == before
    clock.time_s += 3.0
    assert counter_j() == before


@given(
    pieces=st.lists(st.tuples(st.floats(0.001, 3.0), st.floats(0.0, 400.0), st.integers(1, 4)), min_size=1, max_size=8)
)
@settings(max_examples=60, deadline=None)
def test_energy_of_pieces_of_constant_power_is_their_sum(pieces: list[tuple[float, float, int]]) -> None:
    clock = ManualClock()
    with started(clock, EmulatedBoard(counter_refresh_s=0.0)) as nvml:
        pynvml.nvmlInit()
        for time_s, power_w, looks in pieces:
            nvml.hold_power(0, power_w)
            for _ in range(looks):
                clock.time_s += time_s / looks
                counter_j()
        assert counter_j() == pytest.approx(sum(time_s * power_w for time_s, power_w, _ in pieces), abs=2e-3)


# power as the model has it


@pytest.mark.parametrize("load", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("locked_mhz", [210, 900, 1410])
def test_power_is_the_documented_formula(load: float, locked_mhz: int, clock: ManualClock) -> None:
    with started(clock, EmulatedBoard(locked_mhz=(locked_mhz, locked_mhz), temperature_c=55.0)) as nvml:
        pynvml.nvmlInit()
        nvml.load(0, load)
        assert nvml.state(0).power_w == pytest.approx(reference_w(locked_mhz, load), rel=1e-9)


def test_heat_and_energy_follow_the_heat_equation(clock: ManualClock) -> None:
    with started(clock, EmulatedBoard(locked_mhz=(1200, 1200), clock_lag_s=0.0)) as nvml:
        pynvml.nvmlInit()
        start_c = nvml.state(0).temperature_c
        expected_j, expected_c = integrated([(20.0, reference_w(1200, 0.9)), (15.0, reference_w(1200, 0.1))], start_c)
        nvml.load(0, 0.9)
        clock.time_s += 20.0
        nvml.load(0, 0.1)
        clock.time_s += 15.0
        assert counter_j() == pytest.approx(expected_j, rel=1e-6)
        assert nvml.state(0).temperature_c == pytest.approx(expected_c, rel=1e-6)
        assert pynvml.nvmlDeviceGetTemperature(gpu(), 0) == round(expected_c)
        assert pynvml.nvmlDeviceGetTemperatureV(gpu(), 0) == round(expected_c)


def test_an_idle_board_is_settled(nvml: NvmlEmulator, clock: ManualClock) -> None:
    before = nvml.state(0)
    clock.time_s += 3600.0
    after = nvml.state(0)
    assert after.temperature_c == pytest.approx(before.temperature_c, abs=1e-6)
    assert after.energy_j == pytest.approx(3600.0 * before.power_w, rel=1e-6)
    assert before.sm_mhz == 210


@pytest.mark.parametrize("averages", [False, True], ids=["a100", "a40"])
def test_power_now_and_on_average(averages: bool, clock: ManualClock) -> None:
    """The mean over the last second moves as a ramp, the power now at the next refresh."""
    with started(clock, EmulatedBoard(gpu="a40" if averages else "a100-sxm4-40gb", counter_refresh_s=0.1)) as nvml:
        pynvml.nvmlInit()
        nvml.hold_power(0, 100.0)
        clock.time_s += 5.0
        assert field(pynvml.NVML_FI_DEV_POWER_INSTANT).value.uiVal == 100_000
        nvml.hold_power(0, 300.0)
        for tenths in range(1, 15):
            clock.time_s = 55.0 + tenths / 10 + 0.05
            mean_mw = 1e3 * (100.0 + 200.0 * min(tenths, 10) / 10)
            assert field(pynvml.NVML_FI_DEV_POWER_INSTANT).value.uiVal == 300_000
            assert field(pynvml.NVML_FI_DEV_POWER_AVERAGE).value.uiVal == pytest.approx(mean_mw, abs=2)
            usage_mw = pynvml.nvmlDeviceGetPowerUsage(gpu())
            assert usage_mw == pytest.approx(mean_mw if averages else 300_000, abs=2)


def test_power_is_as_old_as_the_last_refresh(nvml: NvmlEmulator, clock: ManualClock) -> None:
    nvml.hold_power(0, 100.0)
    clock.time_s += 0.15
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 100_000
    nvml.hold_power(0, 300.0)
    clock.time_s += 0.04
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 100_000
    clock.time_s += 0.02
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 300_000


def test_average_after_a_long_silence_is_of_the_last_second(nvml: NvmlEmulator, clock: ManualClock) -> None:
    nvml.hold_power(0, 100.0)
    clock.time_s += 7.0
    nvml.hold_power(0, 300.0)
    clock.time_s += 100.0
    assert field(pynvml.NVML_FI_DEV_POWER_AVERAGE).value.uiVal == 300_000


def test_field_values(nvml: NvmlEmulator, clock: ManualClock) -> None:
    nvml.hold_power(0, 123.0)
    clock.time_s += 2.0
    wanted = {
        pynvml.NVML_FI_DEV_POWER_MIN_LIMIT: 100_000,
        pynvml.NVML_FI_DEV_POWER_MAX_LIMIT: 400_000,
        pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT: 400_000,
        pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: 250_000,
        pynvml.NVML_FI_DEV_POWER_INSTANT: 123_000,
    }
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 250_000)
    values = pynvml.nvmlDeviceGetFieldValues(gpu(), list(wanted))
    assert [value.value.uiVal for value in values] == list(wanted.values())
    assert {value.valueType for value in values} == {pynvml.NVML_VALUE_TYPE_UNSIGNED_INT}
    energy = field(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION)
    assert energy.value.ullVal == pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) > 0
    assert energy.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    for number, scope in ((1, 0), (185, pynvml.NVML_POWER_SCOPE_MODULE), (186, pynvml.NVML_POWER_SCOPE_MEMORY)):
        assert field(number, scope).nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_boards_without_power_fields_and_counter(clock: ManualClock) -> None:
    with started(clock, EmulatedBoard(gpu="v100", has_power_fields=False, has_counter=False)):
        pynvml.nvmlInit()
        for number in (pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION):
            assert field(number).nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert pynvml.nvmlDeviceGetPowerUsage(gpu()) > 0


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


def test_noise_is_on_power_readings_only_and_seeded(clock: ManualClock) -> None:
    readings = []
    for seed in (1, 1, 2):
        clock.time_s = 50.0
        with started(clock, EmulatedBoard(power_noise_w=2.0, seed=seed)) as nvml:
            pynvml.nvmlInit()
            nvml.hold_power(0, 200.0)
            taken = []
            for _ in range(400):
                clock.time_s += 0.1
                taken.append(field(pynvml.NVML_FI_DEV_POWER_INSTANT).value.uiVal / 1e3)
            assert counter_j() == pytest.approx(200.0 * 40.0, abs=1e-3)
            readings.append(taken)
    assert readings[0] == readings[1] != readings[2]
    mean_w = sum(readings[0]) / 400
    spread_w = math.sqrt(sum((w - mean_w) ** 2 for w in readings[0]) / 399)
    assert mean_w == pytest.approx(200.0, abs=4 * 2.0 / 20)  # four standard errors
    assert spread_w == pytest.approx(2.0, rel=0.15)
