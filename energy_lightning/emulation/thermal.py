"""One-node thermal RC with leakage linear in temperature; constant power over an interval has a closed form.

    C dT/dt = P(T) - (T - T_ambient) / R,    P(T) = P_ref + k (T - T_ref)

T: chip temperature (C), P_ref: power at the reference temperature (W), k: leakage (W/C), R (C/W), C (J/C).
Source of the form: any thermal-network text; fans that change speed and hot spots are not modelled.
"""

from __future__ import annotations

import math

from energy_lightning.emulation.gpu import GPU, Thermal
from energy_lightning.types import DeviceError


def leakage_w(thermal: Thermal, temperature_c: float) -> float:
    """Power (W) beyond that at the reference temperature."""
    return thermal.leakage_w_per_c * (temperature_c - thermal.reference_c)


def at_temperature(gpu: GPU, temperature_c: float) -> GPU:
    """The GPU held at `temperature_c`: its static and blocking power hold the leakage at that temperature.

    Every emulate_* function works with it; the power limit leaves that much less to the work.

    Raises:
        DeviceError: no temperature at which a chip works.
    """
    if not 0.0 <= temperature_c <= 110.0:  # NaN fails too
        raise DeviceError(f"{gpu.display_name} does not run at {temperature_c!r} C; give 0 to 110")
    more_w = leakage_w(gpu.thermal, temperature_c)
    return gpu.with_constants(
        power__static_w=max(gpu.power.static_w + more_w, 0.0),
        power__blocking_w=max(gpu.power.blocking_w + more_w, 0.0),
        thermal__reference_c=temperature_c,
    )


def heat(thermal: Thermal, temperature_c: float, reference_power_w: float, time_s: float) -> tuple[float, float]:
    """Temperature (C) after `time_s` at constant reference power, and the energy (J) drawn meanwhile, leakage included.

    Raises:
        DeviceError: leakage grows faster than cooling (thermal runaway): the constants make no sense.
    """
    cooling_w_per_c = 1.0 / thermal.resistance_c_per_w - thermal.leakage_w_per_c
    if cooling_w_per_c <= 0.0:
        raise DeviceError(
            f"leakage_w_per_c = {thermal.leakage_w_per_c} W/C outruns cooling of {1 / thermal.resistance_c_per_w:g} W/C"
        )
    base_w = reference_power_w - thermal.leakage_w_per_c * thermal.reference_c
    steady_c = (base_w + thermal.ambient_c / thermal.resistance_c_per_w) / cooling_w_per_c
    decay_s = thermal.capacity_j_per_c / cooling_w_per_c
    gone = -math.expm1(-time_s / decay_s)
    end_c = temperature_c + (steady_c - temperature_c) * gone
    degree_seconds = steady_c * time_s - (steady_c - temperature_c) * decay_s * gone
    energy_j = base_w * time_s + thermal.leakage_w_per_c * degree_seconds
    return end_c, energy_j
