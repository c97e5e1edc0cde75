"""Entry points about energy, power, its limit, and temperature. NVML speaks mJ, mW, MHz and C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energy_lightning.device.nvml_emulator.client.codes import Code, Fault
from energy_lightning.device.nvml_emulator.identity import Serve
from energy_lightning.device.nvml_emulator.live import LiveBoard, require

_UNSIGNED_INT, _UNSIGNED_LONG_LONG = 1, 3  # nvmlValueType_t
_SCOPE_GPU = 0
_ENERGY, _AVERAGE, _INSTANT = 83, 185, 186  # nvmlFieldId
_LEAST, _MOST, _DEFAULT, _CURRENT, _REQUESTED = 187, 188, 189, 190, 192
_GPU_SENSOR = 0
_THRESHOLDS_C = {0: 92, 1: 89}  # shutdown, slowdown; an A100's


def _milli(value: float) -> int:
    return round(1e3 * value)


def _energy(live: LiveBoard) -> tuple[int]:
    require(live.board.has_counter, Code.NOT_SUPPORTED)
    return (int(1e3 * live.chip.sample.counter_j + 1e-6),)


def _power(live: LiveBoard) -> tuple[int]:
    require(live.board.has_power, Code.NOT_SUPPORTED)
    sample = live.chip.sample
    return (_milli(sample.average_w if live.board.product.averages_power else sample.instant_w),)


def _field(live: LiveBoard, field: int, scope: int) -> tuple[int, int, int]:
    if field == _ENERGY:
        return Code.SUCCESS.value, _UNSIGNED_LONG_LONG, _energy(live)[0]
    require(live.board.has_power_fields and scope == _SCOPE_GPU, Code.NOT_SUPPORTED)
    (least_w, most_w), chip = live.board.limits_w, live.chip
    values_w = {_AVERAGE: chip.sample.average_w, _INSTANT: chip.sample.instant_w, _LEAST: least_w, _MOST: most_w}
    values_w |= {_DEFAULT: live.board.shipped_limit_w, _CURRENT: chip.limit_w, _REQUESTED: chip.limit_w}
    require(field in values_w, Code.NOT_SUPPORTED)
    return Code.SUCCESS.value, _UNSIGNED_INT, _milli(values_w[field])


def _fields(live: LiveBoard, fields: list[tuple[int, int]]) -> tuple[list[tuple[int, int, int]]]:
    require(bool(fields))
    answers = []
    for field, scope in fields:
        try:
            answers.append(_field(live, field, scope))
        except Fault as fault:
            answers.append((fault.code, _UNSIGNED_INT, 0))
    return (answers,)


def _limit(live: LiveBoard) -> tuple[int]:
    return (_milli(live.chip.limit_w),)


def _limits(live: LiveBoard) -> tuple[int, ...]:
    return tuple(_milli(limit_w) for limit_w in live.board.limits_w)


def _set_limit(live: LiveBoard, limit_mw: int) -> tuple[()]:
    board = live.board
    live.allow(board.has_power_control, "power_limit")
    (least_w, most_w), limit_w = board.limits_w, limit_mw / 1e3
    require(least_w <= limit_w <= most_w)
    if step_w := board.limit_granularity_w:
        limit_w = min(max(round(limit_w / step_w) * step_w, least_w), most_w)
    live.chip.set_limit(limit_w)
    return ()


def _temperature(live: LiveBoard, sensor: int) -> int:
    require(sensor == _GPU_SENSOR)
    return round(live.chip.temperature_c)


def _threshold(live: LiveBoard, threshold: int) -> tuple[int]:
    require(threshold in _THRESHOLDS_C, Code.NOT_SUPPORTED)
    return (_THRESHOLDS_C[threshold],)


def _temperature_structure(live: LiveBoard, sensor: int) -> tuple[dict[str, Any]]:
    return ({"temperature": _temperature(live, sensor)},)


SENSORS: Mapping[str, Serve] = {
    "nvmlDeviceGetTotalEnergyConsumption": _energy,
    "nvmlDeviceGetPowerUsage": _power,
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlDeviceGetPowerManagementMode": lambda live: (1,),
    "nvmlDeviceGetPowerManagementLimit": _limit,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda live: (_milli(live.board.shipped_limit_w),),
    "nvmlDeviceGetPowerManagementLimitConstraints": _limits,
    "nvmlDeviceGetEnforcedPowerLimit": _limit,
    "nvmlDeviceSetPowerManagementLimit": _set_limit,
    "nvmlDeviceGetTemperature": lambda live, sensor: (_temperature(live, sensor),),
    "nvmlDeviceGetTemperatureV": _temperature_structure,
    "nvmlDeviceGetTemperatureThreshold": _threshold,
}
"""C function -> what it answers for a whole GPU."""
