"""Entry points about which GPU it is, its slices and who uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from energy_lightning.device.nvml_emulator.client.codes import Code
from energy_lightning.device.nvml_emulator.live import LiveBoard, require

Serve = Callable[..., tuple[Any, ...]]
_MAX_SLICES = 7  # of one A100 or H100
_BRANDS = {"Tesla": 2, "GeForce": 5}  # nvmlBrandType_t; data centre boards since Ampere: 14
_NVIDIA_BRAND = 14
_PCI_DEVICE_ID = 0x20B010DE


def _pci(live: LiveBoard) -> tuple[dict[str, Any]]:
    domain, bus, rest = live.pci_bus_id.split(":")
    values = {"domain": int(domain, 16), "bus": int(bus, 16), "device": int(rest.split(".")[0], 16)}
    texts = {"busId": live.pci_bus_id, "busIdLegacy": f"{domain[-4:]}:{bus}:{rest}"}
    return ({**values, **texts, "pciDeviceId": _PCI_DEVICE_ID, "pciSubSystemId": 0},)


def _brand(live: LiveBoard) -> tuple[int]:
    return (next((brand for word, brand in _BRANDS.items() if word in live.board.name), _NVIDIA_BRAND),)


def _memory(live: LiveBoard) -> dict[str, int]:
    total, used = int(live.board.model.memory_bytes), sum(live.processes.values())
    return {"total": total, "free": total - used, "used": used}


def _processes(live: LiveBoard) -> tuple[list[dict[str, int]]]:
    whole = 0xFFFFFFFF  # no slice
    return (
        [
            {"pid": pid, "usedGpuMemory": used, "gpuInstanceId": whole, "computeInstanceId": whole}
            for pid, used in live.processes.items()
        ],
    )


def _utilization(live: LiveBoard) -> tuple[dict[str, int]]:
    require(not live.board.mig_uuids, Code.NOT_SUPPORTED)
    return ({"gpu": round(100 * live.chip.load), "memory": 0},)


def _set_persistence(live: LiveBoard, mode: int) -> tuple[()]:
    live.allow(True, "persistence")
    require(mode in (0, 1))
    live.persistence = bool(mode)
    return ()


def _mig_mode(live: LiveBoard) -> tuple[int, int]:
    require(live.board.can_slice, Code.NOT_SUPPORTED)
    on = int(bool(live.board.mig_uuids))
    return on, on


def _none_supported(live: LiveBoard) -> tuple[()]:
    require(False, Code.NOT_SUPPORTED)
    return ()


IDENTITY: Mapping[str, Serve] = {
    "nvmlDeviceGetName": lambda live: (live.board.name,),
    "nvmlDeviceGetSerial": lambda live: (live.serial,),
    "nvmlDeviceGetUUID": lambda live: (live.uuid,),
    "nvmlDeviceGetIndex": lambda live: (live.index,),
    "nvmlDeviceGetMinorNumber": lambda live: (live.index,),
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetArchitecture": lambda live: (live.board.nvml_architecture,),
    "nvmlDeviceGetBrand": _brand,
    "nvmlDeviceGetCudaComputeCapability": lambda live: live.board.product.compute_capability,
    "nvmlDeviceGetNumGpuCores": lambda live: (live.board.model.num_sms * live.board.product.sm_cores,),
    "nvmlDeviceGetAttributes_v2": _none_supported,  # of slices only
    "nvmlDeviceGetMemoryInfo": lambda live: (_memory(live),),
    "nvmlDeviceGetMemoryInfo_v2": lambda live: ({**_memory(live), "reserved": 0},),
    "nvmlDeviceGetC2cModeInfoV": _none_supported,  # no superchips here
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": lambda live: ([],),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": lambda live: ([],),
    "nvmlDeviceGetPersistenceMode": lambda live: (int(live.persistence),),
    "nvmlDeviceSetPersistenceMode": _set_persistence,
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceIsMigDeviceHandle": lambda live: (0,),
    "nvmlDeviceGetMaxMigDeviceCount": lambda live: (_MAX_SLICES if live.board.can_slice else 0,),
    "nvmlDeviceGetGpuInstanceId": _none_supported,
    "nvmlDeviceGetComputeInstanceId": _none_supported,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _none_supported,
}
"""C function -> what it answers for a whole GPU."""


def _slice_memory(live: LiveBoard) -> tuple[dict[str, int]]:
    total = int(live.board.model.memory_bytes) // (_MAX_SLICES + 1)  # memory comes in eighths
    return ({"total": total, "free": total, "used": 0},)


def _slice_attributes(live: LiveBoard, part: int) -> tuple[dict[str, int]]:
    ones = {"sharedCopyEngineCount": 1, "gpuInstanceSliceCount": 1, "computeInstanceSliceCount": 1}
    memory_mb = _slice_memory(live)[0]["total"] >> 20
    return ({"multiprocessorCount": live.board.product.slice_sms, "memorySizeMB": memory_mb, **ones},)


def _slice_name(live: LiveBoard) -> str:
    return f"{live.board.name} MIG 1g.{live.board.model.memory_bytes // 8e9:.0f}gb"


SLICES: Mapping[str, Serve] = {
    "nvmlDeviceGetName": lambda live, part: (_slice_name(live),),
    "nvmlDeviceGetUUID": lambda live, part: (live.board.mig_uuids[part],),
    "nvmlDeviceIsMigDeviceHandle": lambda live, part: (1,),
    "nvmlDeviceGetAttributes_v2": _slice_attributes,
    "nvmlDeviceGetMemoryInfo": lambda live, part: _slice_memory(live),
    "nvmlDeviceGetGpuInstanceId": lambda live, part: (part + 7,),
    "nvmlDeviceGetComputeInstanceId": lambda live, part: (0,),
    "nvmlDeviceGetArchitecture": lambda live, part: (live.board.nvml_architecture,),
    "nvmlDeviceGetCudaComputeCapability": lambda live, part: live.board.product.compute_capability,
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda live, part: ([],),
}
"""C function -> what it answers for a slice; all others answer NOT_SUPPORTED."""
