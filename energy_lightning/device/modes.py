"""What a device permits, in one word and one line, for logs and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from energy_lightning.types import DeviceMode, EnergySource

if TYPE_CHECKING:
    from energy_lightning.device.protocol import Device

_WORDS: dict[DeviceMode, str] = {"full": "full control", "measure-only": "measuring only", "time-only": "time only"}
_SOURCES: dict[EnergySource, str] = {
    "counter": "energy from the board's counter",
    "power": "energy integrated from power readings",
    "emulated": "energy from a GPU model",
    "none": "no energy",
}


def mode_of(source: EnergySource, *, has_control: bool) -> DeviceMode:
    """The mode of a device with this energy source, and with or without control of clocks or limits."""
    if source == "none":
        return "time-only"
    return "full" if has_control else "measure-only"


def describe_mode(device: Device) -> str:
    """One line: which GPU, what it permits, where its energy comes from, and what would permit more."""
    uuid = f" ({device.uuid})" if device.uuid else ""
    return f"{device.name}{uuid}: {_WORDS[device.mode]}, {_SOURCES[device.energy_source]}; {device.mode_reason}"


def device_facts(device: Device) -> dict[str, str]:
    """The same for files: name, mode, mode_reason and energy_source."""
    names = ("name", "mode", "mode_reason", "energy_source")
    return {name: str(getattr(device, name)) for name in names}


def has_emulated_figures(device: Device) -> bool:
    """Whether its figures are a model's: an emulated device, or a real one's code on an emulated NVML."""
    return device.emulated or bool(getattr(device, "emulated_hardware", False))
