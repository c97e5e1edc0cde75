"""Devices: the GPU whose time and energy are measured and whose clock is set; NVIDIA or emulated."""

from energy_lightning.device.emulated import EmulatedDevice
from energy_lightning.device.opening import DEVICES, open_device
from energy_lightning.device.protocol import Device

__all__ = ["DEVICES", "Device", "EmulatedDevice", "open_device"]
