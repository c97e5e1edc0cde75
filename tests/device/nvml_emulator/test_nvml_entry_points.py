"""Unmodified pynvml on emulated boards: every entry point, which GPU it is, and pynvml as it was afterwards."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from manual_clock import ManualClock
from two_boards import SLICED, UUIDS, WHOLE, handle, one, refuses

from energy_lightning.device.nvml_emulator import DRIVER_VERSION, Code, EmulatedBoard, NvmlEmulator
from energy_lightning.device.nvml_emulator.client.library import EmulatedLibrary
from energy_lightning.device.nvml_emulator.client.signatures import SIGNATURES
from energy_lightning.device.nvml_emulator.driver import EmulatedDriver
from energy_lightning.emulation import GPU
from energy_lightning.emulation.gpu_values import packaged_values


@pytest.fixture
def nvml(clock: ManualClock) -> Iterator[NvmlEmulator]:
    with NvmlEmulator([WHOLE, SLICED], now_s=clock) as emulator:
        pynvml.nvmlInit()
        yield emulator


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


@pytest.mark.parametrize(("room", "fits"), [(0, False), (80, False), (81, True), (100, True)])
def test_arrays_that_are_too_small_are_refused_with_the_size(room: int, fits: bool, nvml: NvmlEmulator) -> None:
    count, clocks = ctypes.c_uint(room), (ctypes.c_uint * 100)()
    code = pynvml.nvmlLib.nvmlDeviceGetSupportedGraphicsClocks(handle(), 1215, ctypes.byref(count), clocks)
    assert code == (Code.SUCCESS if fits else Code.INSUFFICIENT_SIZE)
    assert count.value == 81  # 210 to 1410 MHz in steps of 15
    assert list(clocks)[:81] == (list(range(1410, 209, -15)) if fits else [0] * 81)


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


def test_pointers_of_every_kind_are_taken() -> None:
    """pynvml passes byref(); other callers pass pointer() or an array."""
    driver = EmulatedDriver([WHOLE], now_s=lambda: 0.0)
    library = EmulatedLibrary(lambda name, inputs: driver.call(name, inputs, 1))
    assert library.nvmlInit_v2() == 0
    count = ctypes.c_uint()
    assert library.nvmlDeviceGetCount_v2(ctypes.pointer(count)) == 0
    assert count.value == 1
    assert library.nvmlDeviceGetCount_v2(None) == Code.INVALID_ARGUMENT
