"""Devices: the GPU whose time and energy are measured and whose clock is set; NVIDIA or emulated."""

from energy_lightning.device.emulated import EmulatedDevice
from energy_lightning.device.modes import describe_mode, device_facts, has_emulated_figures
from energy_lightning.device.opening import DEVICES, open_device
from energy_lightning.device.protocol import Device
from energy_lightning.device.switching import ClockChange, FrequencySwitcher, measure_switch_time_s

__all__ = [
    "DEVICES",
    "ClockChange",
    "Device",
    "EmulatedDevice",
    "FrequencySwitcher",
    "describe_mode",
    "device_facts",
    "has_emulated_figures",
    "measure_switch_time_s",
    "open_device",
]
