"""Energy, power and temperature that NVML shows, against closed forms and a plain integration of the model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pynvml
import pytest
from chip_model import counter_j, field, gpu, integrated, reference_w, started
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator


@pytest.fixture
def nvml(clock: ManualClock) -> Iterator[NvmlEmulator]:
    with NvmlEmulator([EmulatedBoard()], now_s=clock) as emulator:
        pynvml.nvmlInit()
        yield emulator


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


def test_average_while_warming_is_of_the_last_second(clock: ManualClock) -> None:
    """One look after 20 s of warming gives what a closed form of the last second's energy gives."""
    with started(clock, EmulatedBoard(locked_mhz=(1200, 1200), clock_lag_s=0.0)) as nvml:
        pynvml.nvmlInit()
        start_c, power_w = nvml.state(0).temperature_c, reference_w(1200, 1.0)
        nvml.load(0, 1.0)
        clock.time_s += 20.0
        expected_w = integrated([(20.0, power_w)], start_c)[0] - integrated([(19.0, power_w)], start_c)[0]
        mean_w = integrated([(20.0, power_w)], start_c)[0] / 20.0
        assert abs(expected_w - mean_w) > 0.5
        assert field(pynvml.NVML_FI_DEV_POWER_AVERAGE).value.uiVal == pytest.approx(1e3 * expected_w, abs=5)


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
