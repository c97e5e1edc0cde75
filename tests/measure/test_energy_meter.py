import threading

import pytest

from energy_lightning.measure import EnergyMeter, PowerSampler, probe_refresh_s
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import EnergySource, MeasurementError


def test_a_counter_window_is_the_difference_of_two_readings() -> None:
    device = ScriptedDevice(power_w=lambda _: 250.0)
    meter = EnergyMeter(device)
    meter.start()
    device.work(4.0)
    reading = meter.stop()
    assert (reading.time_s, reading.energy_j, reading.source) == (4.0, pytest.approx(1000.0), "counter")
    assert reading.power_w == pytest.approx(250.0)


def test_constant_power_without_counter_is_integrated_and_labelled_power() -> None:
    device = ScriptedDevice(power_w=lambda _: 200.0, energy_source="power")
    meter = EnergyMeter(device)
    meter.start()
    device.work(10.0)
    reading = meter.stop()
    meter.close()
    assert reading.energy_j == pytest.approx(2000.0)
    assert reading.source == "power"


def test_power_is_integrated_on_a_clock_that_goes_on_while_it_is_read() -> None:
    class Ticking(ScriptedDevice):
        def now_s(self) -> float:
            self._now_s += 1e-3
            return self._now_s

    device = Ticking(power_w=lambda _: 200.0, energy_source="power")
    meter = EnergyMeter(device)
    readings = []
    for window in (meter.stop, meter.stop, meter.lap):
        meter.start()
        device.work(1.0)
        readings.append(window())
    meter.close()
    for reading in readings:
        assert reading.power_w == pytest.approx(200.0)
        assert reading.time_s >= 1.0


def test_power_that_cannot_be_read_at_an_edge_voids_that_window_only() -> None:
    class Silent(ScriptedDevice):
        silent = False

        def power_w(self) -> float | None:
            return None if self.silent else 200.0

    device = Silent(energy_source="power")
    meter = EnergyMeter(device)
    meter.start()
    readings = []
    for silent in (False, True, False, False):
        device.work(1.0)
        device.silent = silent
        readings.append(meter.lap())
    meter.close()
    assert [reading.energy_j for reading in readings] == [pytest.approx(200.0), None, None, pytest.approx(200.0)]
    assert readings[1].invalid_reason == "scripted GPU reports no power at an edge of the window"


def test_without_counter_and_power_there_is_none_and_a_reason() -> None:
    device = ScriptedDevice(energy_source="none")
    meter = EnergyMeter(device)
    meter.start()
    device.work(1.0)
    reading = meter.stop()
    assert reading.energy_j is None
    assert reading.power_w is None
    assert "scripted GPU" in str(reading.invalid_reason)


def test_a_counter_reset_voids_the_window_and_power_does_not_fill_in() -> None:
    device = ScriptedDevice()
    device.work(5.0)
    meter = EnergyMeter(device)
    meter.start()
    device.reset_counter()
    device.work(1.0)
    reading = meter.stop()
    assert reading.energy_j is None
    assert reading.source == "counter"


@pytest.mark.parametrize("source", ["counter", "power"])
def test_laps_add_up_to_the_whole_whatever_the_source(source: EnergySource) -> None:
    device = ScriptedDevice(power_w=lambda _: 200.0, energy_source=source)
    meter = EnergyMeter(device)
    meter.start()
    laps = []
    for time_s in (0.5, 1.5, 1.0):
        device.work(time_s)
        laps.append(meter.lap())
    meter.close()
    assert [lap.time_s for lap in laps] == [0.5, 1.5, 1.0]
    assert sum(lap.energy_j or 0.0 for lap in laps) == pytest.approx(600.0)


def test_laps_of_a_slow_counter_lose_nothing_and_a_reset_voids_one() -> None:
    device = ScriptedDevice(power_w=lambda _: 200.0, refresh_s=1.0)
    meter = EnergyMeter(device, refresh_s=1.0)
    meter.start()
    laps = []
    for _ in range(8):
        device.work(0.25)
        laps.append(meter.lap().energy_j)
    assert 0.0 in laps
    assert sum(lap or 0.0 for lap in laps) == pytest.approx(400.0, abs=50.0)
    device.reset_counter()
    assert meter.lap().energy_j is None
    device.work(2.0)
    assert meter.lap().energy_j is not None


def test_stop_without_start_says_what_to_do() -> None:
    with pytest.raises(MeasurementError, match="start"):
        EnergyMeter(ScriptedDevice()).stop()


def test_a_device_without_power_reading_has_no_sampler() -> None:
    with pytest.raises(MeasurementError, match="neither"):
        PowerSampler(type("Bare", (), {"name": "bare GPU"})())  # type: ignore[arg-type]


@pytest.mark.parametrize("refresh_s", [0.010, 0.100])
def test_the_refresh_of_the_counter_is_found_by_polling(refresh_s: float) -> None:
    found_s = probe_refresh_s(ScriptedDevice(refresh_s=refresh_s))
    assert found_s == pytest.approx(refresh_s, abs=0.002)


def test_a_counter_that_never_moves_needs_windows_longer_than_the_probe() -> None:
    assert probe_refresh_s(ScriptedDevice(energy_source="none"), limit_s=0.5) == 0.5


def test_background_sampling_ends_with_the_meter() -> None:
    sampled = threading.Event()

    class Watched(ScriptedDevice):
        def power_w(self) -> float | None:
            sampled.set()
            return 100.0

    sampler = PowerSampler(Watched(energy_source="power"), interval_s=0.001)
    sampler.start()
    assert sampled.wait(timeout=10.0)
    sampler.stop()
    sampler.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "power-sampler"]
