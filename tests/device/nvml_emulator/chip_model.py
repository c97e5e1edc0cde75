"""What the emulated chip should do, written a second time, and short names for the readings."""

from __future__ import annotations

import math
from typing import Any

import pynvml
from manual_clock import ManualClock

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.emulation.gpu_values import packaged_values

A100 = packaged_values("a100-sxm4-40gb")


def started(clock: ManualClock, board: EmulatedBoard) -> NvmlEmulator:
    return NvmlEmulator([board], now_s=clock)


def gpu() -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def counter_j() -> float:
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) / 1e3


def field(number: int, scope: int = 0) -> Any:
    return pynvml.nvmlDeviceGetFieldValues(gpu(), [(number, scope)])[0]


def reference_w(clock_mhz: float, load: float, values: dict[str, Any] = A100) -> float:
    """The documented formula from the YAML file's constants, written a second time."""
    power, compute, most = values["power"], values["compute"], values["clocks"]["max_mhz"]
    ratio = clock_mhz / most

    def voltage(r: float) -> float:
        above = (1 - power["voltage_slope"] * (1 - r) - power["voltage_floor"]) / power["voltage_rounding"]
        return float(power["voltage_floor"] + power["voltage_rounding"] * math.log1p(math.exp(above)))

    scale = ratio * (voltage(ratio) / voltage(1.0)) ** 2
    products_w = compute["peak_flops_per_s"]["bf16"] * compute["linear_efficiency"] * power["joule_per_flop"]
    return float(power["static_w"] + scale * (power["idle_clock_w"] + load * (power["sm_active_w"] + products_w)))


def integrated(pieces: list[tuple[float, float]], start_c: float, step_s: float = 1e-3) -> tuple[float, float]:
    """Energy and temperature after (time, reference power) pieces: midpoint steps of the heat equation."""
    heat = A100["thermal"]
    energy_j, temperature_c = 0.0, start_c

    def flow(temperature_c: float, power_w: float) -> tuple[float, float]:
        power_w += heat["leakage_w_per_c"] * (temperature_c - heat["reference_c"])
        lost_w = (temperature_c - heat["ambient_c"]) / heat["resistance_c_per_w"]
        return power_w, (power_w - lost_w) / heat["capacity_j_per_c"]

    for time_s, power_w in pieces:
        steps = max(round(time_s / step_s), 1)
        for _ in range(steps):
            middle_c = temperature_c + flow(temperature_c, power_w)[1] * time_s / steps / 2
            drawn_w, slope = flow(middle_c, power_w)
            energy_j, temperature_c = energy_j + drawn_w * time_s / steps, temperature_c + slope * time_s / steps
    return energy_j, temperature_c
