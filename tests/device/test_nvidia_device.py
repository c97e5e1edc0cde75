"""NvidiaDevice on a small stand-in for NVML and torch: mapping, units, permissions, restoring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from energy_lightning.device import Device
from energy_lightning.device.guard import RestoreGuard
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.types import DeviceError


class FakeNvml:
    """The NVML calls that NvidiaDevice makes, on two boards."""

    class NVMLError(RuntimeError):
        pass

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    def __init__(self, *, refuse: frozenset[str] = frozenset(), name: Any = "NVIDIA A100-SXM4-40GB") -> None:
        self.refuse, self.name = refuse, name
        self.calls: list[tuple[Any, ...]] = []

    def _call(self, name: str, *arguments: Any) -> None:
        if name in self.refuse:
            raise self.NVMLError("Insufficient Permissions")
        self.calls.append((name, *arguments))

    def nvmlInit(self) -> None:
        self._call("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return f"handle of {uuid}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle.removeprefix("handle of ")

    def nvmlDeviceGetName(self, handle: str) -> Any:
        return self.name

    def nvmlDeviceGetSupportedMemoryClocks(self, handle: str) -> list[int]:
        self._call("clocks")
        return [810, 1215]

    def nvmlDeviceGetSupportedGraphicsClocks(self, handle: str, memory_mhz: int) -> list[int]:
        assert memory_mhz == 1215
        return [1410, 1395, 1380]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 400_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self._call("energy")
        return 1_500

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self._call("power")
        return 61_000

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 41

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return 1395

    def nvmlDeviceSetGpuLockedClocks(self, handle: str, low_mhz: int, high_mhz: int) -> None:
        self._call("lock", low_mhz, high_mhz)

    def nvmlDeviceResetGpuLockedClocks(self, handle: str) -> None:
        self._call("unlock")


def fake_torch(uuid: str = "bbbb", available: bool = True) -> Any:
    properties = SimpleNamespace(uuid=uuid, multi_processor_count=108)
    cuda = SimpleNamespace(
        is_available=lambda: available,
        current_device=lambda: 0,
        get_device_properties=lambda index: properties,
        synchronize=lambda device: None,
    )
    return SimpleNamespace(cuda=cuda)


def open_fake(nvml: FakeNvml, **options: Any) -> NvidiaDevice:
    return NvidiaDevice(nvml=nvml, torch=options.pop("torch", fake_torch()), sleep=lambda s: None, **options)


def locks(nvml: FakeNvml) -> list[tuple[Any, ...]]:
    return [call for call in nvml.calls if call[0] in ("lock", "unlock")]


def test_readings_are_in_our_units() -> None:
    device = open_fake(FakeNvml())
    assert isinstance(device, Device)
    assert (device.energy_j(), device.power_w(), device.power_limit_w) == (1.5, 61.0, 400.0)
    assert (device.temperature_c(), device.frequency_mhz()) == (41.0, 1395)
    assert device.frequencies_mhz == (1380, 1395, 1410)
    assert (device.name, device.energy_source, device.num_sms) == ("A100-SXM4-40GB", "counter", 108)


def test_the_gpu_is_found_by_uuid() -> None:
    assert open_fake(FakeNvml())._handle == "handle of GPU-bbbb"


def test_two_gpus_and_no_torch_device_cannot_be_told_apart() -> None:
    with pytest.raises(DeviceError, match="2 GPUs and no torch device to tell which"):
        open_fake(FakeNvml(), torch=fake_torch(available=False))


def test_lock_and_restore() -> None:
    nvml = FakeNvml()
    device = open_fake(nvml)
    device.lock_frequency(1380)
    device.lock_frequency(1395)
    device.close()
    device.close()
    assert locks(nvml) == [("lock", 1380, 1380), ("lock", 1395, 1395), ("unlock",)]


def test_nothing_is_undone_that_was_not_done() -> None:
    nvml = FakeNvml()
    open_fake(nvml).reset_frequency()
    assert locks(nvml) == []


def test_without_permission_it_measures_only_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(refuse=frozenset({"lock"}))
    device = open_fake(nvml)
    device.lock_frequency(1380)
    device.lock_frequency(1395)
    device.close()
    assert not device.can_lock_frequency
    assert locks(nvml) == []
    assert [r.message for r in caplog.records if "CAP_SYS_ADMIN" in r.message] == [caplog.records[-1].message]
    assert device.energy_j() == 1.5


def test_a_clock_it_lacks() -> None:
    with pytest.raises(DeviceError, match="no SM clock of 1400 MHz; nearest: 1395, 1410"):
        open_fake(FakeNvml()).lock_frequency(1400)


@pytest.mark.parametrize(
    ("refuse", "source", "energy_j"),
    [({"energy"}, "power", None), ({"energy", "power"}, "none", None), (set(), "counter", 1.5)],
)
def test_energy_falls_back_to_power_then_to_nothing(refuse: set[str], source: str, energy_j: float | None) -> None:
    device = open_fake(FakeNvml(refuse=frozenset(refuse)))
    assert (device.energy_source, device.energy_j()) == (source, energy_j)


def test_no_clock_list_means_no_control() -> None:
    device = open_fake(FakeNvml(refuse=frozenset({"clocks"})))
    assert (device.frequencies_mhz, device.can_lock_frequency) == ((), False)


def test_an_unknown_board_takes_its_idle_power() -> None:
    device = open_fake(FakeNvml(name=b"NVIDIA Something New"))
    assert (device.name, device.static_power_w) == ("Something New", 61.0)


def test_no_driver() -> None:
    with pytest.raises(DeviceError, match="is the NVIDIA driver loaded"):
        open_fake(FakeNvml(refuse=frozenset({"nvmlInit"})))


def test_the_guard_restores_in_reverse_and_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    exits: list[Any] = []

    def fails() -> None:
        raise OSError("gone")

    guard = RestoreGuard(register=exits.append)

    def work() -> None:
        with guard:
            guard.remember("limit", lambda: done.append("limit"))
            guard.remember("clock", lambda: done.append("clock"))
            guard.remember("clock", lambda: done.append("clock, second"))
            guard.remember("mode", fails)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert done == ["clock", "limit"]
    assert "could not restore mode: gone" in caplog.text
    exits[0]()
    assert done == ["clock", "limit"]
