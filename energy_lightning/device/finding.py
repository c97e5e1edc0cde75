"""Which NVML GPU a torch device is: by UUID, else by PCI bus id, never by index.

CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER renumber what CUDA shows and leave NVML alone, so torch's `cuda:0` may be any
GPU of NVML. Where torch has CUDA it is asked for the UUID of its device. Where it has not (another framework drives the
GPU, or an emulated NVML stands in) the variable is read as CUDA reads it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from energy_lightning.device.host import Host
from energy_lightning.device.visible import match_uuid, visible_gpus
from energy_lightning.types import DeviceError

_log = logging.getLogger(__name__)
_LEGACY_MIG = re.compile(r"MIG-(GPU-[^/]+)/")  # MIG-GPU-<uuid of the whole GPU>/<instances>, drivers before R470


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A whole GPU.

    Attributes:
        handle: its NVML handle.
        index: NVML's index, which Zeus and zeusd count in too.
        uuid: "GPU-...".
        is_mig: the process sees a slice of it: energy and power are the whole GPU's, control would hit the others.
        cuda_index: torch's index of it; None where torch has no CUDA.
    """

    handle: Any
    index: int
    uuid: str
    is_mig: bool
    cuda_index: int | None


def find_gpu(nvml: Any, torch_device: Any, host: Host) -> FoundGpu:
    """The GPU of `torch_device` among NVML's.

    Args:
        nvml: module pynvml, started.
        torch_device: torch.device, "cuda:1", an index among the visible GPUs, or "GPU-..." (a unique prefix is enough);
            None: torch's current device, or the only visible GPU.
        host: the process, with torch and CUDA_VISIBLE_DEVICES.

    Raises:
        DeviceError: no such GPU, or several that cannot be told apart. NVMLError: it does not answer.
    """
    cuda_index = None
    if isinstance(torch_device, str) and torch_device.startswith("GPU-"):
        uuids = gpu_uuids(nvml)
        handle, is_slice = nvml.nvmlDeviceGetHandleByIndex(match_uuid(torch_device, uuids, "torch_device")), False
    elif host.has_cuda:
        cuda = host.torch.cuda
        cuda_index = _index_of(torch_device)
        cuda_index = cuda.current_device() if cuda_index is None else cuda_index
        handle, is_slice = _by_properties(nvml, cuda.get_device_properties(cuda_index))
    else:
        handle, is_slice = _by_visible_index(nvml, _index_of(torch_device), host.environment)
    return FoundGpu(
        handle,
        int(nvml.nvmlDeviceGetIndex(handle)),
        text(nvml.nvmlDeviceGetUUID(handle)),
        is_slice or _has_mig_enabled(nvml, handle),
        cuda_index,
    )


def gpu_uuids(nvml: Any) -> list[str | None]:
    """UUIDs of the machine's GPUs in NVML's order; None for one that is lost: the others are not."""
    return _of_each(nvml, nvml.nvmlDeviceGetUUID)


def _of_each(nvml: Any, read: Callable[[Any], Any]) -> list[str | None]:
    found: list[str | None] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found.append(text(read(nvml.nvmlDeviceGetHandleByIndex(index))))
        except nvml.NVMLError as error:
            _log.info("GPU %d of this machine does not answer: %s", index, error)
            found.append(None)
    return found


def text(value: Any) -> str:
    """A string from NVML: older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _index_of(torch_device: Any) -> int | None:
    """Index in a torch.device, a "cuda:1" or a whole number; None where none is given."""
    if torch_device is None or (isinstance(torch_device, int) and not isinstance(torch_device, bool)):
        return torch_device
    kind, _, index = str(torch_device).partition(":")
    if kind != "cuda" or not (index.isdigit() or index == ""):
        raise DeviceError(
            f"{torch_device!r} is no NVIDIA GPU; give a CUDA device, the index of a visible GPU, or a UUID ('GPU-...')"
        )
    return int(index) if index else None


def _by_properties(nvml: Any, properties: Any) -> tuple[Any, bool]:
    """(handle of the whole GPU, whether torch's device is a slice), from torch's properties of its device."""
    uuid = str(getattr(properties, "uuid", "")).removeprefix("GPU-").removeprefix("MIG-")
    for kind in ("GPU-", "MIG-") if uuid else ():
        try:
            return _whole(nvml, kind + uuid)
        except nvml.NVMLError as error:
            _log.debug("NVML does not know %s%s: %s", kind, uuid, error)
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if bus is None or slot is None:
        raise DeviceError(
            f"torch tells neither a UUID that NVML knows ({uuid or 'none'}) nor a PCI bus id of {properties.name}; "
            "name the GPU by its UUID, as nvidia-smi -L lists it"
        )
    address = f"{domain or 0:08x}:{bus:02x}:{slot:02x}.0"
    try:
        return nvml.nvmlDeviceGetHandleByPciBusId(address), False
    except nvml.NVMLError as error:
        raise DeviceError(f"NVML has no GPU at PCI {address}, where torch sees {properties.name}: {error}") from error


def _by_visible_index(nvml: Any, index: int | None, environment: Mapping[str, str]) -> tuple[Any, bool]:
    """(handle of the whole GPU, whether it is a slice) of the index-th GPU that CUDA_VISIBLE_DEVICES shows."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is not None and value.strip().startswith("MIG-"):  # CUDA takes one slice a process
        return _slice(nvml, value.split(",")[0].strip(), index or 0)
    visible = visible_gpus(value, gpu_uuids(nvml))
    if index is None and len(visible) != 1:
        raise DeviceError(f"{len(visible)} visible GPUs and no torch device to tell which; give torch_device")
    place = index or 0
    if not 0 <= place < len(visible):
        shown = "" if value is None else f" (CUDA_VISIBLE_DEVICES={value})"
        raise DeviceError(f"there is no GPU {place} among the {len(visible)} visible ones{shown}, counted from 0")
    _warn_of_order(nvml, value, environment)
    return nvml.nvmlDeviceGetHandleByIndex(visible[place]), False


def _warn_of_order(nvml: Any, value: str | None, environment: Mapping[str, str]) -> None:
    """CUDA's own order is the fastest GPU first, which only CUDA knows; among equal GPUs it is NVML's."""
    counted = value is None or not value.strip().startswith("GPU-")
    if not counted or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return
    names = sorted({name for name in _of_each(nvml, nvml.nvmlDeviceGetName) if name is not None})
    if len(names) > 1:
        _log.warning(
            "energy_lightning: this machine has different GPUs (%s), which CUDA may count in another order than NVML; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID",
            ", ".join(names),
        )


def _slice(nvml: Any, uuid: str, index: int) -> tuple[Any, bool]:
    if index != 0:
        raise DeviceError(
            f"there is no GPU {index}: CUDA shows one MIG slice to a process, CUDA_VISIBLE_DEVICES={uuid}"
        )
    legacy = _LEGACY_MIG.match(uuid)
    try:
        return _whole(nvml, legacy[1] if legacy else uuid)[0], True
    except nvml.NVMLError as error:
        raise DeviceError(
            f"CUDA_VISIBLE_DEVICES={uuid}: NVML knows no such slice ({error}); see nvidia-smi -L"
        ) from error


def _whole(nvml: Any, uuid: str) -> tuple[Any, bool]:
    """(handle of the whole GPU, whether `uuid` is a slice's)."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    if uuid.startswith("MIG-"):
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle), True
    return handle, False


def _has_mig_enabled(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # GPUs that cannot be sliced have no such mode
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)
