"""Entry points about clocks and why they are what they are."""

from __future__ import annotations

from collections.abc import Mapping

from energy_lightning.device.nvml_emulator.client.codes import Code
from energy_lightning.device.nvml_emulator.identity import Serve
from energy_lightning.device.nvml_emulator.live import LiveBoard, require

_GRAPHICS, _SM, _MEMORY, _VIDEO = range(4)  # nvmlClockType_t
_CURRENT = 0  # nvmlClockId_t
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}
"""Clock event reasons (nvml.h) by the names that nvidia-smi gives them."""


def _clock(live: LiveBoard, kind: int) -> tuple[int]:
    require(kind in (_GRAPHICS, _SM, _MEMORY, _VIDEO))
    if kind == _MEMORY:
        return (live.memory_locked_mhz[1] if live.memory_locked_mhz else max(live.board.product.memory_mhz),)
    return (live.chip.clock_mhz(),)


def _max_clock(live: LiveBoard, kind: int) -> tuple[int]:
    require(kind in (_GRAPHICS, _SM, _MEMORY, _VIDEO))
    return (max(live.board.product.memory_mhz) if kind == _MEMORY else live.chip.clocks_mhz[-1],)


def _clock_by_id(live: LiveBoard, kind: int, which: int) -> tuple[int]:
    require(which == _CURRENT, Code.NOT_SUPPORTED)
    return _clock(live, kind)


def _supported_memory(live: LiveBoard) -> tuple[list[int]]:
    require(live.board.has_clock_control, Code.NOT_SUPPORTED)
    return (sorted(live.board.product.memory_mhz, reverse=True),)


def _supported_graphics(live: LiveBoard, memory_mhz: int) -> tuple[list[int]]:
    require(live.board.has_clock_control, Code.NOT_SUPPORTED)
    require(memory_mhz in live.board.product.memory_mhz, Code.NOT_FOUND)
    return (list(reversed(live.chip.clocks_mhz)),)


def _lock(live: LiveBoard, least_mhz: int, most_mhz: int) -> tuple[()]:
    live.allow(live.board.has_clock_control, "sm_clock")
    require(0 < least_mhz <= most_mhz)
    live.chip.lock((least_mhz, most_mhz))
    return ()


def _unlock(live: LiveBoard) -> tuple[()]:
    live.allow(live.board.has_clock_control, "sm_clock")
    live.chip.lock(None)
    return ()


def _lock_memory(live: LiveBoard, least_mhz: int, most_mhz: int) -> tuple[()]:
    live.allow(live.board.has_clock_control, "memory_clock")
    require(0 < least_mhz <= most_mhz)
    live.memory_locked_mhz = (least_mhz, most_mhz)
    return ()


def _unlock_memory(live: LiveBoard) -> tuple[()]:
    live.allow(live.board.has_clock_control, "memory_clock")
    live.memory_locked_mhz = None
    return ()


def _reasons(live: LiveBoard) -> tuple[int]:
    chip = live.chip
    reasons = live.extra_reasons
    if chip.is_idle():
        reasons |= REASONS["gpu_idle"]
    elif chip.is_power_limited():
        reasons |= REASONS["sw_power_cap"]
    return (reasons,)


def _performance_state(live: LiveBoard) -> tuple[int]:
    return (0,)


CLOCKS: Mapping[str, Serve] = {
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetMaxClockInfo": _max_clock,
    "nvmlDeviceGetClock": _clock_by_id,
    "nvmlDeviceGetSupportedMemoryClocks": _supported_memory,
    "nvmlDeviceGetSupportedGraphicsClocks": _supported_graphics,
    "nvmlDeviceSetGpuLockedClocks": _lock,
    "nvmlDeviceResetGpuLockedClocks": _unlock,
    "nvmlDeviceSetMemoryLockedClocks": _lock_memory,
    "nvmlDeviceResetMemoryLockedClocks": _unlock_memory,
    "nvmlDeviceGetPowerState": _performance_state,
    "nvmlDeviceGetPerformanceState": _performance_state,
    "nvmlDeviceGetCurrentClocksEventReasons": _reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": _reasons,
    "nvmlDeviceGetSupportedClocksEventReasons": lambda live: (sum(REASONS.values()),),
    "nvmlDeviceGetSupportedClocksThrottleReasons": lambda live: (sum(REASONS.values()),),
}
"""C function -> what it answers for a whole GPU."""
