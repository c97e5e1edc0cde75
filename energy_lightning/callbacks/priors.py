"""What a real GPU's emulated namesake expects of a partition, so that a search need not begin knowing nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from energy_lightning.callbacks.spaces import PartitionTask
from energy_lightning.emulation import GPU, emulate_scheduled
from energy_lightning.types import DeviceError

if TYPE_CHECKING:
    from energy_lightning.device import Device

Prior = Callable[[Mapping[str, Any]], tuple[float, float]]
_EMULATED_NVML = " (emulated NVML)"


def namesake(device: Device) -> GPU | None:
    """The packaged model of a real device's GPU; None where there is none, and for an emulated device.

    An emulated device is measured on that very model: its figures must come from measuring alone.
    """
    if device.emulated:
        return None
    name = device.name.removesuffix(_EMULATED_NVML)
    return next((gpu for gpu in map(GPU.load, GPU.names()) if gpu.display_name == name), None)


def prior_of(task: PartitionTask, gpu: GPU | None) -> Prior | None:
    """Candidate of the task's space -> expected (time in s, energy in J); None where no model can say."""
    if gpu is None or task.space is None:
        return None
    expected: dict[tuple[Any, ...], tuple[float, float]] = {}
    try:
        for number in range(len(task.space)):
            candidate = task.space[number]
            config = task.config(candidate)
            estimate = emulate_scheduled(task.partition, gpu, config.frequency_mhz, config.schedule)
            expected[_key(candidate)] = estimate.time_s, estimate.energy_j
    except DeviceError:
        return None
    return lambda candidate: expected[_key(candidate)]


def _key(candidate: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, str(value)) for name, value in candidate.items()))
