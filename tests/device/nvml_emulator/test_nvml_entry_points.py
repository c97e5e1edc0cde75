"""Unmodified pynvml on emulated boards: every entry point, NVML's errors, and pynvml as it was afterwards."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml
from manual_clock import ManualClock

from energy_lightning.device.nvml_emulator import DRIVER_VERSION, PERMISSIONS, Code, EmulatedBoard, NvmlEmulator
from energy_lightning.device.nvml_emulator.client.library import EmulatedLibrary
from energy_lightning.device.nvml_emulator.client.signatures import SIGNATURES
from energy_lightning.device.nvml_emulator.driver import EmulatedDriver
from energy_lightning.emulation import GPU
from energy_lightning.emulation.gpu_values import packaged_values
from energy_lightning.types import DeviceError

UUIDS = ("GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-bbbbbbbb-0000-0000-0000-000000000002")
SLICES = ("MIG-11111111-0000-0000-0000-000000000001", "MIG-22222222-0000-0000-0000-000000000002")
WHOLE = EmulatedBoard(uuid=UUIDS[0], serial="1234", pci_bus_id="00000000:3B:00.0", counter_j=7.5)
SLICED = EmulatedBoard(gpu="h100-sxm", uuid=UUIDS[1], mig_uuids=SLICES)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def nvml(clock: ManualClock) -> Iterator[NvmlEmulator]:
    with NvmlEmulator([WHOLE, SLICED], now_s=clock) as emulator:
        pynvml.nvmlInit()
        yield emulator


def one(clock: ManualClock, board: EmulatedBoard) -> NvmlEmulator:
    return NvmlEmulator([board], now_s=clock)


def handle(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def refuses(code: str, function: Any, *arguments: Any) -> None:
    with pytest.raises(pynvml.NVMLError) as caught:
        function(*arguments)
    assert caught.value.value == getattr(pynvml, f"NVML_ERROR_{code}")


# the table of functions


@pytest.mark.parametrize("code", list(Code), ids=lambda code: code.name)
def test_codes_are_those_of_pynvml(code: Code) -> None:
    name = "NVML_SUCCESS" if code is Code.SUCCESS else f"NVML_ERROR_{code.name}"
    assert getattr(pynvml, name) == code


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_served_function_is_called_by_pynvml(name: str) -> None:
    source = Path(pynvml.__file__).read_text(encoding="utf-8")
    assert f'"{name}"' in source or name == "nvmlInit_v2"


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name.startswith("nvmlDevice")])
def test_every_served_function_of_a_device_is_answered(name: str) -> None:
    """No name of the table is without an answer, whatever the arguments: a KeyError would end here."""
    driver = EmulatedDriver([EmulatedBoard()], now_s=lambda: 0.0)
    (first,) = driver.call("nvmlDeviceGetHandleByIndex_v2", [0], 1)[1]
    words = [word for word in SIGNATURES[name].split() if word.startswith(("value", "text", "struct:", "fields"))]
    values = {"value": 1, "text": "x", "struct:sensorType": 0, "fields": [(186, 0)]}
    inputs: list[Any] = [first] * SIGNATURES[name].startswith("handle")
    code, outputs = driver.call(name, inputs + [values[word] for word in words], 1)
    writers = len(SIGNATURES[name].split()) - sum(
        word in ("handle", "value", "text") for word in SIGNATURES[name].split()
    )
    assert len(outputs) == (writers if code == 0 else 0)


def test_other_functions_are_not_found(nvml: NvmlEmulator) -> None:
    refuses("FUNCTION_NOT_FOUND", pynvml.nvmlDeviceGetFanSpeed, handle())
    refuses("FUNCTION_NOT_FOUND", pynvml.nvmlUnitGetCount)
    assert not hasattr(pynvml.nvmlLib, "no such function")


# start and end


def test_pynvml_is_as_before_afterwards() -> None:
    before = (pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache), pynvml._nvmlLib_refcount)
    with NvmlEmulator([WHOLE]):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1
        with NvmlEmulator([WHOLE, SLICED]):
            refuses("UNINITIALIZED", pynvml.nvmlDeviceGetCount)
            pynvml.nvmlInit()
            assert pynvml.nvmlDeviceGetCount() == 2
        assert pynvml.nvmlDeviceGetCount() == 1
    assert (pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache), pynvml._nvmlLib_refcount) == before


def test_pynvml_is_as_before_when_the_block_raises() -> None:
    before = pynvml.nvmlLib
    with pytest.raises(ZeroDivisionError), NvmlEmulator([WHOLE]):
        raise ZeroDivisionError
    assert pynvml.nvmlLib is before


def test_initialisation_counts(clock: ManualClock) -> None:
    with one(clock, WHOLE):
        refuses("UNINITIALIZED", pynvml.nvmlDeviceGetCount)
        refuses("UNINITIALIZED", pynvml.nvmlShutdown)
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()
        refuses("UNINITIALIZED", pynvml.nvmlDeviceGetCount)


@pytest.mark.parametrize("code", [Code.DRIVER_NOT_LOADED, Code.NO_PERMISSION, Code.UNKNOWN], ids=lambda c: c.name)
def test_the_driver_may_refuse_to_start(code: Code, clock: ManualClock) -> None:
    with NvmlEmulator([WHOLE], now_s=clock, init_error=code):
        refuses(code.name, pynvml.nvmlInit)
        refuses("UNINITIALIZED", pynvml.nvmlDeviceGetCount)


def test_anyone_can_tell_that_it_is_emulated(nvml: NvmlEmulator) -> None:
    assert pynvml.nvmlSystemGetDriverVersion() == DRIVER_VERSION
    assert "EMULATED" in DRIVER_VERSION
    assert pynvml.nvmlLib.emulated is True
    assert pynvml.nvmlSystemGetNVMLVersion()
    assert pynvml.nvmlSystemGetCudaDriverVersion() == pynvml.nvmlSystemGetCudaDriverVersion_v2() >= 12000


def test_error_strings(nvml: NvmlEmulator) -> None:
    assert pynvml.nvmlErrorString(pynvml.NVML_ERROR_NO_PERMISSION) == "Insufficient Permissions"
    assert pynvml.nvmlErrorString(777) == "Unknown Error"


# which GPU


def test_handles_lead_to_the_same_board(nvml: NvmlEmulator) -> None:
    for index in (0, 1):
        found = handle(index)
        assert pynvml.nvmlDeviceGetIndex(found) == pynvml.nvmlDeviceGetMinorNumber(found) == index
        assert pynvml.nvmlDeviceGetUUID(found) == UUIDS[index]
        bus_id = pynvml.nvmlDeviceGetPciInfo(found).busId
        serial = pynvml.nvmlDeviceGetSerial(found)
        for other in (
            pynvml.nvmlDeviceGetHandleByUUID(UUIDS[index]),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus_id),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.lower().removeprefix("0000")),
            pynvml.nvmlDeviceGetHandleBySerial(serial),
        ):
            assert pynvml.nvmlDeviceGetIndex(other) == index
    assert (pynvml.nvmlDeviceGetSerial(handle(0)), pynvml.nvmlDeviceGetCount()) == ("1234", 2)


def test_pci_information(nvml: NvmlEmulator) -> None:
    info = pynvml.nvmlDeviceGetPciInfo(handle())
    assert (info.domain, info.bus, info.device, info.busId) == (0, 0x3B, 0, "00000000:3B:00.0")
    assert info.busIdLegacy == "0000:3B:00.0"


@pytest.mark.parametrize("bus_id", ["", "x", "3B", "0000:3C:00.0", "0:0:0:3B:00.0", "00000001:3B:00.0", "3B:01.0"])
def test_unknown_bus_ids_are_not_found(bus_id: str, nvml: NvmlEmulator) -> None:
    refuses("NOT_FOUND", pynvml.nvmlDeviceGetHandleByPciBusId, bus_id)


def test_unknown_boards_are_refused(nvml: NvmlEmulator) -> None:
    refuses("INVALID_ARGUMENT", pynvml.nvmlDeviceGetHandleByIndex, 2)
    for uuid in ("GPU-", UUIDS[0][:12], UUIDS[0].lower().replace("gpu", "Gpu"), ""):
        refuses("NOT_FOUND", pynvml.nvmlDeviceGetHandleByUUID, uuid)
    refuses("NOT_FOUND", pynvml.nvmlDeviceGetHandleBySerial, "9")
    refuses("INVALID_ARGUMENT", pynvml.nvmlDeviceGetUUID, None)
    refuses("INVALID_ARGUMENT", pynvml.nvmlDeviceGetUUID, pynvml.c_nvmlDevice_t())


def test_buffers_that_are_too_small_are_refused(nvml: NvmlEmulator) -> None:
    library = pynvml.nvmlLib
    text = ctypes.create_string_buffer(96)
    length = len("NVIDIA A100-SXM4-40GB")
    assert library.nvmlDeviceGetName(handle(), text, ctypes.c_uint(length)) == Code.INSUFFICIENT_SIZE
    assert library.nvmlDeviceGetName(handle(), text, ctypes.c_uint(length + 1)) == Code.SUCCESS
    assert text.value == b"NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize("name", GPU.names())
def test_packaged_boards_tell_what_their_models_hold(name: str, clock: ManualClock) -> None:
    """Against the YAML files read plainly, and NVIDIA's names of architectures."""
    architectures = {"a100": 7, "a40": 7, "h100": 9, "h200": 9, "v100": 5, "rtx2080ti": 6}
    values = packaged_values(name)
    while "based_on" in values:
        base = packaged_values(values.pop("based_on"))
        values = {
            key: {**base.get(key, {}), **value} if isinstance(value, dict) else value for key, value in values.items()
        }
        values = {**base, **values}
    with one(clock, EmulatedBoard(gpu=name)):
        pynvml.nvmlInit()
        gpu = handle()
        assert pynvml.nvmlDeviceGetName(gpu) == f"NVIDIA {values['display_name']}"
        assert pynvml.nvmlDeviceGetArchitecture(gpu) == architectures[name.split("-")[0]]
        (memory_mhz,) = pynvml.nvmlDeviceGetSupportedMemoryClocks(gpu)
        clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, memory_mhz)
        assert (clocks[0], clocks[-1]) == (values["clocks"]["max_mhz"], values["clocks"]["min_mhz"])
        assert clocks[0] - clocks[1] == values["clocks"]["step_mhz"]
        assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) == 1000 * values["power"]["limit_w"]
        least_mw, most_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)
        assert (least_mw, most_mw) == (1000 * values["power"]["least_limit_w"], 1000 * values["power"]["limit_w"])
        assert pynvml.nvmlDeviceGetMemoryInfo(gpu).total == values["memory_bytes"]
        assert pynvml.nvmlDeviceGetNumGpuCores(gpu) % values["num_sms"] == 0
        assert max(pynvml.nvmlDeviceGetCudaComputeCapability(gpu)) > 0


def test_cores_of_known_products(clock: ManualClock) -> None:
    cores = {"a100-sxm4-40gb": 6912, "h100-sxm": 16896, "a40": 10752, "v100": 5120, "rtx2080ti": 4352}  # data sheets
    for name, expected in cores.items():
        with one(clock, EmulatedBoard(gpu=name)):
            pynvml.nvmlInit()
            assert pynvml.nvmlDeviceGetNumGpuCores(handle()) == expected


def test_default_identities_differ_and_are_the_same_everywhere(clock: ManualClock) -> None:
    with NvmlEmulator([EmulatedBoard()] * 3, now_s=clock):
        pynvml.nvmlInit()
        uuids = [pynvml.nvmlDeviceGetUUID(handle(index)) for index in range(3)]
        buses = [pynvml.nvmlDeviceGetPciInfo(handle(index)).busId for index in range(3)]
        assert len(set(uuids)) == len(set(buses)) == len({pynvml.nvmlDeviceGetSerial(handle(i)) for i in range(3)}) == 3
    with NvmlEmulator([EmulatedBoard()] * 2, now_s=clock):
        pynvml.nvmlInit()
        assert [pynvml.nvmlDeviceGetUUID(handle(index)) for index in range(2)] == uuids[:2]


def test_processes(nvml: NvmlEmulator) -> None:
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle()) == []
    nvml.occupy(0, 41, 10**9)
    nvml.occupy(0, 42, 2 * 10**9)
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
    assert [(process.pid, process.usedGpuMemory) for process in listed] == [(41, 10**9), (42, 2 * 10**9)]
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle())
    assert (memory.used, memory.total - memory.free) == (3 * 10**9, 3 * 10**9)
    nvml.occupy(0, 41, 0)
    assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle())) == 1


def test_utilisation_is_the_load(nvml: NvmlEmulator) -> None:
    nvml.load(0, 0.37)
    assert pynvml.nvmlDeviceGetUtilizationRates(handle()).gpu == 37


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
        assert calls == [(100.0, (900, 900), 0), (101.0, (1200, 1200), Code.NO_PERMISSION)]


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


def test_pointers_of_every_kind_are_taken() -> None:
    """pynvml passes byref(); other callers pass pointer() or an array."""
    driver = EmulatedDriver([WHOLE], now_s=lambda: 0.0)
    library = EmulatedLibrary(lambda name, inputs: driver.call(name, inputs, 1))
    assert library.nvmlInit_v2() == 0
    count = ctypes.c_uint()
    assert library.nvmlDeviceGetCount_v2(ctypes.pointer(count)) == 0
    assert count.value == 1
    assert library.nvmlDeviceGetCount_v2(None) == Code.INVALID_ARGUMENT
