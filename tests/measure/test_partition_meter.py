"""Measuring configurations on a scripted device: times and energies are known in closed form."""

from collections.abc import Callable

import numpy as np
import pytest

from energy_lightning.measure import CallableRunner, PartitionConfig, PartitionMeter, WindowSettings
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import DeviceError, EnergyLightningError, Schedule
from energy_lightning.workload import Partition

PARTITION = Partition("fwd_attn", (), None, 1, True)


def runner_on(device: ScriptedDevice, time_s: float = 0.003) -> CallableRunner:
    return CallableRunner(lambda partition, schedule: lambda: device.work(time_s))


def meter_on(device: ScriptedDevice, **settings: float) -> PartitionMeter:
    return PartitionMeter(device, runner_on(device), WindowSettings(**settings))  # type: ignore[arg-type]


def test_a_configuration_is_measured_at_its_clock_over_a_whole_window() -> None:
    device = ScriptedDevice(power_w=lambda frequency_mhz: float(frequency_mhz))
    meter = meter_on(device)
    measured = meter.measure(PARTITION, PartitionConfig("fwd_attn", 900))
    assert measured.valid
    assert measured.time_s == pytest.approx(0.003)
    assert measured.energy_j == pytest.approx(0.003 * 900)
    assert (measured.requested_mhz, measured.actual_mhz, measured.temperature_c) == (900, 900, 40.0)
    assert meter.window_time_s >= 5.0


def test_every_window_is_followed_by_its_cool_down() -> None:
    device = ScriptedDevice()
    meter_on(device, cool_down_s=7.0).measure(PARTITION, PartitionConfig("fwd_attn", 900))
    assert device.calls[-1] == ("idle", 7.0)


def test_a_clock_that_cannot_be_had_is_unreachable_after_bounded_retries() -> None:
    device = ScriptedDevice(clock_cap_mhz=1200)
    measured = meter_on(device, max_retries=3).measure(PARTITION, PartitionConfig("fwd_attn", 1410))
    assert measured.invalid_reason == "unreachable: asked for 1410 MHz, seen 1200 MHz (sw_power_cap)"
    assert device.calls.count(("lock", 1410)) == 4
    assert (measured.requested_mhz, measured.actual_mhz) == (1410, 1200)
    assert measured.energy_j == pytest.approx(0.003 * (100.0 + 120.0))  # as it ran, at 1200 MHz


def test_a_clock_known_to_be_too_high_is_tried_once_and_only_for_that_partition() -> None:
    device = ScriptedDevice((900, 1380, 1395, 1410), clock_cap_mhz=1300)
    meter, other = meter_on(device, max_retries=2), Partition("fwd_mlp", (), None, 1, True)
    meter.measure(PARTITION, PartitionConfig("fwd_attn", 1395))
    meter.measure(PARTITION, PartitionConfig("fwd_attn", 1410))  # above the known cap: once
    meter.measure(PARTITION, PartitionConfig("fwd_attn", 1380))  # below it: all tries
    meter.measure(other, PartitionConfig("fwd_mlp", 1410))
    assert [device.calls.count(("lock", mhz)) for mhz in (1395, 1410, 1380)] == [3, 1 + 3, 3]
    assert meter.cool_down_time_s == pytest.approx(10 * 5.0)


def test_the_neighbouring_clock_does_not_pass_for_the_one_asked_for() -> None:
    device = ScriptedDevice((1380, 1395, 1410), clock_cap_mhz=1395)
    measured = meter_on(device).measure(PARTITION, PartitionConfig("fwd_attn", 1410))
    assert measured.invalid_reason == "unreachable: asked for 1410 MHz, seen 1395 MHz (sw_power_cap)"


def test_a_void_window_is_measured_again() -> None:
    device = ScriptedDevice()
    num_runs = 0

    def make(partition: Partition, schedule: Schedule | None) -> Callable[[], None]:
        def run() -> None:
            nonlocal num_runs
            num_runs += 1
            device.work(1.0)
            if num_runs == 9:  # in the first window: 1 + 5 warm-up runs come before it
                device.reset_counter()

        return run

    measured = PartitionMeter(device, CallableRunner(make)).measure(PARTITION, PartitionConfig("fwd_attn", 900))
    assert measured.valid
    assert num_runs == 2 * (1 + 5 + 5)


def test_windows_under_the_refresh_are_invalid_too_short() -> None:
    device = ScriptedDevice(refresh_s=0.1)
    meter = PartitionMeter(device, runner_on(device), WindowSettings(window_s=0.01), refresh_s=0.1)
    measured = meter.measure(PARTITION, PartitionConfig("fwd_attn", 900))
    assert str(measured.invalid_reason).startswith("too short")


def test_time_is_still_measured_where_there_is_no_energy() -> None:
    device = ScriptedDevice(energy_source="none")
    measured = meter_on(device).measure(PARTITION, PartitionConfig("fwd_attn", 900))
    assert measured.valid
    assert measured.energy_j is None
    assert measured.source == "none"


def test_results_keep_the_order_of_the_requests_while_the_runs_are_shuffled() -> None:
    frequencies_mhz = tuple(range(900, 1411, 30))
    device = ScriptedDevice(frequencies_mhz)
    requests = [(PARTITION, PartitionConfig("fwd_attn", f)) for f in frequencies_mhz]
    results = meter_on(device).measure_all(requests, np.random.default_rng(0))
    assert [measured.requested_mhz for measured in results] == list(frequencies_mhz)
    locked = [value for name, value in device.calls if name == "lock"]
    assert sorted(locked) == list(frequencies_mhz)
    assert locked != list(frequencies_mhz)


def test_the_clock_is_given_back_when_the_work_raises() -> None:
    device = ScriptedDevice()

    def fail() -> None:
        raise KeyboardInterrupt

    meter = PartitionMeter(device, CallableRunner(lambda partition, schedule: fail))
    with pytest.raises(KeyboardInterrupt):
        meter.measure_all([(PARTITION, PartitionConfig("fwd_attn", 900))], np.random.default_rng(0))
    assert device.calls[-1] == ("reset", 0)


@pytest.mark.parametrize("at_run", [0, 1, 8])
def test_nothing_is_learned_once_a_signal_has_given_the_clock_back(at_run: int) -> None:
    """Before the lock, which then is none; in the warm-up; in the window. Other clocks would seem to be unreachable."""
    device, num_runs = ScriptedDevice(), 0

    def give_back() -> None:
        device.reset_frequency()
        device.lock_frequency = lambda frequency_mhz: None  # type: ignore[method-assign]  # as of a closed device

    def run() -> None:
        nonlocal num_runs
        num_runs += 1
        device.work(1.0)
        if num_runs == at_run:
            give_back()

    if at_run == 0:
        give_back()
    meter = PartitionMeter(device, CallableRunner(lambda partition, schedule: run))
    with pytest.raises(DeviceError, match="given back"):
        meter.measure(PARTITION, PartitionConfig("fwd_attn", 1410))  # which the GPU runs at by itself as well
    assert num_runs <= 11  # one warm-up and one window


def test_a_clock_that_stands_still_is_a_named_error() -> None:
    device = ScriptedDevice()
    meter = PartitionMeter(device, CallableRunner(lambda partition, schedule: lambda: None))
    with pytest.raises(DeviceError, match="stood still"):
        meter.measure(PARTITION, PartitionConfig("fwd_attn", 900))


def test_without_permission_the_clock_is_left_alone() -> None:
    device = ScriptedDevice()
    device.can_lock_frequency = False
    measured = meter_on(device).measure(PARTITION, PartitionConfig("fwd_attn", 1410))
    assert measured.valid
    assert not [call for call in device.calls if call[0] == "lock"]


@pytest.mark.parametrize(
    "bad",
    [{"window_s": 0.0}, {"window_s": float("nan")}, {"cool_down_s": -1.0}, {"warmup_runs": 0}, {"max_retries": -1}],
)
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(EnergyLightningError, match="need"):
        WindowSettings(**bad)  # type: ignore[arg-type]
