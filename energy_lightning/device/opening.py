"""open_device: a device by name, from a table that others may extend."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from energy_lightning.device.emulated import EmulatedDevice
from energy_lightning.device.modes import describe_mode
from energy_lightning.device.protocol import Device
from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError
from energy_lightning.workload import Workload

_log = logging.getLogger(__name__)


def _open_emulated(
    *, gpu: str | GPU, workload: Workload, torch_device: Any = None, job: str | None = None, **options: Any
) -> Device:
    model = gpu if isinstance(gpu, GPU) else GPU.load(gpu)
    return EmulatedDevice(model, workload, **options)


def _open_nvidia(*, gpu: str | GPU, workload: Workload, torch_device: Any = None, **options: Any) -> Device:
    from energy_lightning.device.nvidia import NvidiaDevice

    return NvidiaDevice(torch_device, **options)


def _cuda_is_available() -> bool:
    torch = sys.modules.get("torch")  # who trains has imported it; floor 2 does not
    return bool(torch is not None and torch.cuda.is_available())


def _open_auto(
    *, gpu: str | GPU, workload: Workload, torch_device: Any = None, job: str | None = None, **options: Any
) -> Device:
    if _cuda_is_available():
        found = _open_nvidia(gpu=gpu, workload=workload, torch_device=torch_device, job=job)
        _log.info("%s", describe_mode(found))
        return found
    device = _open_emulated(gpu=gpu, workload=workload, **options)
    _log.warning(
        "No NVIDIA GPU: time and energy below are EMULATED (%s model)", device.name.removesuffix(" (emulated)")
    )
    return device


DEVICES: Mapping[str, Callable[..., Device]] = {
    "auto": _open_auto,
    "emulated": _open_emulated,
    "nvidia": _open_nvidia,
}


def open_device(
    name: str = "auto",
    *,
    gpu: str | GPU = "a100-sxm4-40gb",
    workload: Workload,
    torch_device: Any = None,
    devices: Mapping[str, Callable[..., Device]] = DEVICES,
    **options: Any,
) -> Device:
    """Open a device.

    Args:
        name: "nvidia", "emulated", or "auto": an NVIDIA GPU if torch sees one, else emulated with one prominent line.
            Either choice is logged in one line; what a GPU permits: `describe_mode`.
        gpu: GPU model of an emulated device.
        workload: the job that an emulated device executes.
        torch_device: the torch device to find among the NVIDIA GPUs.
        devices: table of openers, for devices of your own.
        options: passed on: `job` (what the ranks have in common that may share a GPU) to a real GPU; seed, noise_std,
            counter_refresh_s, stage to an emulated one; asked for by name, "nvidia" takes all that NvidiaDevice does.

    Raises:
        DeviceError: unknown name or GPU model, or a GPU that cannot be opened.
    """
    if name not in devices:
        raise DeviceError(f"unknown device {name!r}; known: {', '.join(devices)}")
    return devices[name](gpu=gpu, workload=workload, torch_device=torch_device, **options)
