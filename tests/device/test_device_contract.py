"""What every device must do: one suite for the emulated one and for NvidiaDevice over the NVML emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from nvidia_boards import AAAA, machine

from energy_lightning.device import Device, EmulatedDevice, describe_mode
from energy_lightning.device.nvml_emulator import EmulatedBoard
from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError, DeviceMode, EnergySource, PhasePlan
from energy_lightning.workload import Workload

WORKLOAD = Workload.preset("bert_base")
BUSY_S = 0.5

Busy = Callable[[], None]
"""Keeps the device's GPU working for at least BUSY_S."""


@pytest.fixture(params=["emulated", "nvidia"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Device, Busy]]:
    """A fresh device whose counter is exact, and a way to keep it busy."""
    if request.param == "emulated":
        device = EmulatedDevice(GPU.load("a100-sxm4-40gb"), WORKLOAD)

        def run() -> None:
            end_s = device.now_s() + BUSY_S
            while device.now_s() < end_s:
                device.run_phase(PhasePlan("forward"), repeats=10)

        yield device, run
        return
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, counter_refresh_s=0.0)) as m:

        def load() -> None:
            m.nvml.load(0, 1.0)
            m.wait(BUSY_S)
            m.nvml.load(0, 0.0)

        yield m.open(), load


@pytest.fixture
def device(opened: tuple[Device, Busy]) -> Device:
    return opened[0]


def test_it_has_every_member_of_the_protocol(device: Device) -> None:
    assert isinstance(device, Device)
    assert device.mode in get_args(DeviceMode)
    assert device.energy_source in get_args(EnergySource)
    assert "\n" not in describe_mode(device)
    assert device.name in describe_mode(device)


def test_clocks_ascend_and_powers_are_ordered(device: Device) -> None:
    assert list(device.frequencies_mhz) == sorted(set(device.frequencies_mhz))
    assert 0.0 < device.static_power_w < device.blocking_power_w < device.power_limit_w
    assert device.power_limit_range_w is not None
    least_w, most_w = device.power_limit_range_w
    assert 0.0 < least_w <= device.power_limit_w <= most_w
    assert device.num_sms > 0


def test_time_and_energy_never_fall_and_work_takes_both(opened: tuple[Device, Busy]) -> None:
    device, busy = opened
    readings = [(device.now_s(), device.energy_j())]
    for _ in range(3):
        device.idle(0.1)
        readings.append((device.now_s(), device.energy_j()))
        busy()
        device.synchronize()
        readings.append((device.now_s(), device.energy_j()))
    times_s, energies_j = zip(*readings, strict=True)
    assert list(times_s) == sorted(times_s)
    assert times_s[-1] - times_s[0] >= 3 * (0.1 + BUSY_S) - 1e-6
    assert list(energies_j) == sorted(energies_j)
    idle_w = (energies_j[1] - energies_j[0]) / (times_s[1] - times_s[0])
    busy_w = (energies_j[2] - energies_j[1]) / (times_s[2] - times_s[1])
    assert device.static_power_w * 0.5 < idle_w < busy_w <= device.power_limit_w * 1.001


def test_a_rest_lasts_as_long_as_asked(device: Device) -> None:
    start_s = device.now_s()
    device.idle(0.25)
    assert device.now_s() - start_s == pytest.approx(0.25)


def test_a_locked_clock_runs_and_comes_back(opened: tuple[Device, Busy]) -> None:
    device, busy = opened
    assert device.requested_frequency_mhz() is None
    device.reset_frequency()  # nothing was locked
    for mhz in (900, 1200, 1200):
        device.lock_frequency(mhz)
        busy()
        assert (device.requested_frequency_mhz(), device.frequency_mhz()) == (mhz, mhz)
        assert device.throttle_reasons() == ()
    device.reset_frequency()
    assert device.requested_frequency_mhz() is None


def test_a_lower_clock_draws_less(opened: tuple[Device, Busy]) -> None:
    device, busy = opened

    def busy_w(mhz: int) -> float:
        device.lock_frequency(mhz)
        device.idle(1.0)
        start_s, start_j = device.now_s(), device.energy_j()
        busy()
        end_j = device.energy_j()
        assert start_j is not None
        assert end_j is not None
        return (end_j - start_j) / (device.now_s() - start_s)

    assert busy_w(900) < busy_w(1410)


def test_a_clock_it_lacks_is_an_error_that_names_the_nearest_and_changes_nothing(device: Device) -> None:
    device.lock_frequency(900)
    with pytest.raises(DeviceError, match=r"has no SM clock of 1402 MHz; nearest: 1395, 1410"):
        device.lock_frequency(1402)
    assert device.requested_frequency_mhz() == 900


def test_a_power_limit_is_reported_back_and_the_earlier_one_returns(device: Device) -> None:
    before_w = device.power_limit_w
    device.reset_power_limit()  # nothing was set
    assert device.set_power_limit(250.0) == device.power_limit_w == 250.0
    assert device.set_power_limit(300.0) == device.power_limit_w == 300.0
    device.reset_power_limit()
    assert device.power_limit_w == before_w


@pytest.mark.parametrize("limit_w", [1.0, 1e4, float("nan")])
def test_a_power_limit_outside_the_range_is_an_error_that_names_it(device: Device, limit_w: float) -> None:
    before_w = device.power_limit_w
    with pytest.raises(DeviceError, match="takes power limits of 100 to 400 W, got"):
        device.set_power_limit(limit_w)
    assert device.power_limit_w == before_w


def test_a_power_limit_holds_the_clock_down_and_says_so(opened: tuple[Device, Busy]) -> None:
    device, busy = opened
    device.lock_frequency(1410)
    device.set_power_limit(100.0)
    start_s, start_j = device.now_s(), device.energy_j()
    busy()
    end_j = device.energy_j()
    assert start_j is not None
    assert end_j is not None
    assert (end_j - start_j) / (device.now_s() - start_s) <= 101.0
    assert device.requested_frequency_mhz() == 1410


def test_temperature_and_power_are_plausible(opened: tuple[Device, Busy]) -> None:
    device, busy = opened
    for _ in range(10):
        busy()
    temperature_c, power_w = device.temperature_c(), device.power_w()
    assert temperature_c is not None
    assert power_w is not None
    assert 20.0 < temperature_c < 100.0
    assert 0.0 < power_w <= device.power_limit_w


def test_an_exact_counter_refreshes_at_once(device: Device) -> None:
    assert 0.0 <= device.counter_refresh_s < 0.01


def test_close_gives_back_and_is_idempotent(device: Device) -> None:
    before_w = device.power_limit_w
    device.lock_frequency(900)
    device.set_power_limit(250.0)
    device.close()
    device.close()
    assert (device.requested_frequency_mhz(), device.power_limit_w) == (None, before_w)
