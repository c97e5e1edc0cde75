"""Slices, permissions, what a board lacks, what fails, and mistakes in describing a board."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pynvml
import pytest
import yaml
from manual_clock import ManualClock
from two_boards import SLICED, SLICES, UUIDS, WHOLE, handle, one, refuses

from energy_lightning.device.nvml_emulator import PERMISSIONS, Code, EmulatedBoard, NvmlEmulator
from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError


@pytest.fixture
def nvml(clock: ManualClock) -> Iterator[NvmlEmulator]:
    with NvmlEmulator([WHOLE, SLICED], now_s=clock) as emulator:
        pynvml.nvmlInit()
        yield emulator


# slices


def test_slices(nvml: NvmlEmulator) -> None:
    whole, sliced = handle(0), handle(1)
    assert pynvml.nvmlDeviceGetMigMode(whole) == [0, 0]
    assert pynvml.nvmlDeviceGetMigMode(sliced) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(sliced) == 7
    for part, uuid in enumerate(SLICES):
        for found in (
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(sliced, part),
            pynvml.nvmlDeviceGetHandleByUUID(uuid),
        ):
            assert pynvml.nvmlDeviceGetUUID(found) == uuid
            assert pynvml.nvmlDeviceIsMigDeviceHandle(found).value == 1
            parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found)
            assert pynvml.nvmlDeviceGetUUID(parent) == UUIDS[1]
            assert pynvml.nvmlDeviceIsMigDeviceHandle(parent).value == 0
            assert pynvml.nvmlDeviceGetAttributes(found).multiprocessorCount == 16
            assert "MIG 1g.10gb" in pynvml.nvmlDeviceGetName(found)
    ids = {
        pynvml.nvmlDeviceGetGpuInstanceId(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(sliced, part)) for part in (0, 1)
    }
    assert len(ids) == 2
    refuses("NOT_FOUND", pynvml.nvmlDeviceGetMigDeviceHandleByIndex, sliced, 2)
    refuses("NOT_SUPPORTED", pynvml.nvmlDeviceGetMigDeviceHandleByIndex, whole, 0)
    refuses("NOT_SUPPORTED", pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, whole)
    refuses("NOT_SUPPORTED", pynvml.nvmlDeviceGetUtilizationRates, sliced)
    refuses("NOT_SUPPORTED", pynvml.nvmlDeviceGetAttributes, whole)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(sliced) >= 0


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (pynvml.nvmlDeviceGetTotalEnergyConsumption, ()),
        (pynvml.nvmlDeviceGetPowerUsage, ()),
        (pynvml.nvmlDeviceGetFieldValues, ([186],)),
        (pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,)),
        (pynvml.nvmlDeviceSetGpuLockedClocks, (900, 900)),
        (pynvml.nvmlDeviceResetGpuLockedClocks, ()),
        (pynvml.nvmlDeviceSetPowerManagementLimit, (300_000,)),
        (pynvml.nvmlDeviceGetPowerManagementLimit, ()),
        (pynvml.nvmlDeviceGetTemperature, (0,)),
        (pynvml.nvmlDeviceGetMigMode, ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_slices_have_no_sensors_and_no_control(function: Any, arguments: tuple[Any, ...], nvml: NvmlEmulator) -> None:
    refuses("NOT_SUPPORTED", function, pynvml.nvmlDeviceGetHandleByUUID(SLICES[0]), *arguments)
    assert nvml.state(1).locked_mhz is None


@pytest.mark.parametrize("name", ["v100", "a40", "rtx2080ti"])
def test_boards_that_cannot_be_sliced(name: str, clock: ManualClock) -> None:
    with one(clock, EmulatedBoard(gpu=name)):
        pynvml.nvmlInit()
        refuses("NOT_SUPPORTED", pynvml.nvmlDeviceGetMigMode, handle())
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle()) == 0


# what cannot be done, is not permitted, or fails

SETTERS = {
    "sm_clock": [
        ("nvmlDeviceSetGpuLockedClocks", lambda gpu: pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 900, 900)),
        ("nvmlDeviceResetGpuLockedClocks", pynvml.nvmlDeviceResetGpuLockedClocks),
    ],
    "memory_clock": [
        ("nvmlDeviceSetMemoryLockedClocks", lambda gpu: pynvml.nvmlDeviceSetMemoryLockedClocks(gpu, 1215, 1215)),
        ("nvmlDeviceResetMemoryLockedClocks", pynvml.nvmlDeviceResetMemoryLockedClocks),
    ],
    "power_limit": [
        ("nvmlDeviceSetPowerManagementLimit", lambda gpu: pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 200_000)),
    ],
    "persistence": [
        ("nvmlDeviceSetPersistenceMode", lambda gpu: pynvml.nvmlDeviceSetPersistenceMode(gpu, 0)),
    ],
}


@pytest.mark.parametrize("granted", PERMISSIONS)
def test_each_permission_covers_its_setters_only(granted: str, clock: ManualClock) -> None:
    with one(clock, EmulatedBoard(permissions=(granted,))) as nvml:
        pynvml.nvmlInit()
        for permission, setters in SETTERS.items():
            for name, call in setters:
                before = nvml.state(0)
                if permission == granted:
                    call(handle())
                else:
                    refuses("NO_PERMISSION", call, handle())
                    assert settings(nvml) == (before.locked_mhz, before.memory_locked_mhz, before.power_limit_w, True)
                last = nvml.state(0).sets[-1]
                assert last.function == name
                assert last.code == (Code.SUCCESS if permission == granted else Code.NO_PERMISSION)


def settings(nvml: NvmlEmulator) -> tuple[Any, ...]:
    state = nvml.state(0)
    return state.locked_mhz, state.memory_locked_mhz, state.power_limit_w, state.persistence


def test_permissions_may_change_on_the_way(nvml: NvmlEmulator) -> None:
    pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 900, 900)
    nvml.permit(0)
    refuses("NO_PERMISSION", pynvml.nvmlDeviceSetGpuLockedClocks, handle(), 1200, 1200)
    assert nvml.state(0).locked_mhz == (900, 900)
    nvml.permit(0, "sm_clock")
    pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 1200, 1200)
    assert nvml.state(0).locked_mhz == (1200, 1200)


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.GPU_IS_LOST, Code.TIMEOUT], ids=lambda code: code.name)
def test_a_function_may_fail_from_its_nth_call_on(code: Code, clock: ManualClock) -> None:
    with one(clock, EmulatedBoard(fail_after={"nvmlDeviceGetPowerUsage": (3, code)})) as nvml:
        pynvml.nvmlInit()
        for _ in range(3):
            assert pynvml.nvmlDeviceGetPowerUsage(handle()) > 0
        for _ in range(2):
            refuses(code.name, pynvml.nvmlDeviceGetPowerUsage, handle())
        assert pynvml.nvmlDeviceGetTemperature(handle(), 0) > 0  # others go on
        nvml.fail(0, "nvmlDeviceGetPowerUsage", Code.SUCCESS)
        assert pynvml.nvmlDeviceGetPowerUsage(handle()) > 0
        nvml.fail(0, "nvmlDeviceGetPowerUsage", Code.NOT_SUPPORTED, after=1)
        assert pynvml.nvmlDeviceGetPowerUsage(handle()) > 0
        refuses("NOT_SUPPORTED", pynvml.nvmlDeviceGetPowerUsage, handle())


def test_a_function_may_always_fail(clock: ManualClock) -> None:
    with one(clock, EmulatedBoard(errors={"nvmlDeviceGetTotalEnergyConsumption": Code.UNKNOWN})):
        pynvml.nvmlInit()
        refuses("UNKNOWN", pynvml.nvmlDeviceGetTotalEnergyConsumption, handle())


def test_a_failing_setter_changes_nothing_and_is_logged(clock: ManualClock) -> None:
    board = EmulatedBoard(fail_after={"nvmlDeviceSetGpuLockedClocks": (1, Code.NO_PERMISSION)})
    with one(clock, board) as nvml:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 900, 900)
        clock.time_s += 1.0
        refuses("NO_PERMISSION", pynvml.nvmlDeviceSetGpuLockedClocks, handle(), 1200, 1200)
        assert nvml.state(0).locked_mhz == (900, 900)
        calls = [(call.time_s, call.arguments, call.code) for call in nvml.boards[0].state.sets]
        assert calls == [(50.0, (900, 900), 0), (51.0, (1200, 1200), Code.NO_PERMISSION)]


def test_a_lost_board_answers_nothing(nvml: NvmlEmulator) -> None:
    gpu = handle(0)
    nvml.lose(0)
    refuses("GPU_IS_LOST", pynvml.nvmlDeviceGetPowerUsage, gpu)
    refuses("GPU_IS_LOST", pynvml.nvmlDeviceGetUUID, gpu)
    refuses("GPU_IS_LOST", pynvml.nvmlDeviceSetGpuLockedClocks, gpu, 900, 900)
    refuses("GPU_IS_LOST", pynvml.nvmlDeviceGetHandleByIndex, 0)
    refuses("GPU_IS_LOST", pynvml.nvmlDeviceGetHandleByUUID, UUIDS[0])
    assert pynvml.nvmlDeviceGetPowerUsage(handle(1)) > 0
    nvml.lose(0, False)
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) > 0


@pytest.mark.parametrize(
    ("missing", "functions"),
    [
        ("has_counter", [pynvml.nvmlDeviceGetTotalEnergyConsumption]),
        ("has_power", [pynvml.nvmlDeviceGetPowerUsage]),
        (
            "has_clock_control",
            [call for name in ("sm_clock", "memory_clock") for _, call in SETTERS[name]]
            + [
                pynvml.nvmlDeviceGetSupportedMemoryClocks,
                lambda gpu: pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, 1215),
            ],
        ),
        ("has_power_control", [call for _, call in SETTERS["power_limit"]]),
    ],
)
def test_what_a_board_lacks_is_not_supported(missing: str, functions: list[Any], clock: ManualClock) -> None:
    with one(clock, EmulatedBoard(permissions=(), **{missing: False})):
        pynvml.nvmlInit()
        for function in functions:
            refuses("NOT_SUPPORTED", function, handle())


def test_persistence(nvml: NvmlEmulator) -> None:
    assert pynvml.nvmlDeviceGetPersistenceMode(handle()) == pynvml.NVML_FEATURE_ENABLED
    pynvml.nvmlDeviceSetPersistenceMode(handle(), pynvml.NVML_FEATURE_DISABLED)
    assert pynvml.nvmlDeviceGetPersistenceMode(handle()) == pynvml.NVML_FEATURE_DISABLED
    refuses("INVALID_ARGUMENT", pynvml.nvmlDeviceSetPersistenceMode, handle(), 7)


# mistakes in describing a board


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "a1000"}, "unknown GPU 'a1000'"),
        ({"permissions": ("clock",)}, "unknown permission 'clock'.*sm_clock"),
        ({"errors": {"nvmlDeviceGetFanSpeed": 3}}, "no function 'nvmlDeviceGetFanSpeed'; did you mean nvmlDevice"),
        ({"fail_after": {"power": (1, 3)}}, "no function 'power'; give the C name"),
        ({"counter_refresh_s": -0.1}, "counter_refresh_s .* got -0.1"),
        ({"clock_lag_s": float("nan")}, "clock_lag_s .* got nan"),
        ({"average_s": float("inf")}, "average_s .* got inf"),
        ({"power_limit_w": 401.0}, "power_limit_w must be within 100 to 400 W.*got 401"),
        ({"power_limit_w": float("nan")}, "power_limit_w must be within"),
        ({"limit_range_w": (100.0, 300.0)}, "default_limit_w must be within 100 to 300 W"),
    ],
)
def test_boards_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        EmulatedBoard(**options)


def test_two_boards_of_one_uuid_cannot_be() -> None:
    with pytest.raises(DeviceError, match=f"two emulated GPUs have the UUID {UUIDS[0]}"):
        NvmlEmulator([WHOLE, WHOLE])


def test_controls_refuse_what_makes_no_sense(nvml: NvmlEmulator) -> None:
    for call, message in (
        (lambda: nvml.load(0, 1.5), "share from 0 to 1, got 1.5"),
        (lambda: nvml.load(0, float("nan")), "got nan"),
        (lambda: nvml.load(2, 0.5), "no emulated GPU 2; there are 2"),
        (lambda: nvml.hold_power(0, -1.0), "power >= 0 W, got -1.0"),
        (lambda: nvml.permit(0, "everything"), "unknown permission 'everything'"),
        (lambda: nvml.fail(0, "everything", 3), "no function 'everything'"),
        (lambda: nvml.cap_clock(0, 900, "because"), "unknown clock event reason 'because'; known: gpu_idle"),
        (lambda: nvml.state(-1), "no emulated GPU -1"),
    ):
        with pytest.raises(DeviceError, match=message):
            call()


def test_yaml_gpu_of_your_own(clock: ManualClock, tmp_path: Any) -> None:
    file = tmp_path / "mine.yaml"
    values = {"based_on": "a40", "name": "mine", "display_name": "Mine", "clocks": {"max_mhz": 1500}}
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    with one(clock, EmulatedBoard(gpu=GPU.from_file(file))):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetName(handle()) == "NVIDIA Mine"
        assert pynvml.nvmlDeviceGetMaxClockInfo(handle(), pynvml.NVML_CLOCK_SM) == 1500
