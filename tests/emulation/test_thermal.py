"""The closed form of the thermal RC against small Euler steps, and its limits."""

from __future__ import annotations

import dataclasses

import pytest

from energy_lightning.emulation import GPU
from energy_lightning.emulation.thermal import heat, leakage_w
from energy_lightning.types import DeviceError

THERMAL = GPU.load("a100-sxm4-40gb").thermal


@pytest.mark.parametrize("time_s", [0.0, 0.5, 20.0, 300.0])
@pytest.mark.parametrize("power_w", [40.0, 350.0])
def test_closed_form_equals_euler_steps(time_s: float, power_w: float) -> None:
    temperature_c, energy_j, step_s = 45.0, 0.0, 0.01
    for _ in range(round(time_s / step_s)):
        drawn_w = power_w + leakage_w(THERMAL, temperature_c)
        energy_j += drawn_w * step_s
        out_w = (temperature_c - THERMAL.ambient_c) / THERMAL.resistance_c_per_w
        temperature_c += (drawn_w - out_w) * step_s / THERMAL.capacity_j_per_c
    assert heat(THERMAL, 45.0, power_w, time_s) == pytest.approx((temperature_c, energy_j), rel=1e-3)


def test_steady_state_balances() -> None:
    end_c, _ = heat(THERMAL, 30.0, 300.0, 1e5)
    assert (end_c - THERMAL.ambient_c) / THERMAL.resistance_c_per_w == pytest.approx(300.0 + leakage_w(THERMAL, end_c))


def test_two_halves_are_the_whole() -> None:
    middle_c, first_j = heat(THERMAL, 40.0, 250.0, 3.0)
    end_c, second_j = heat(THERMAL, middle_c, 250.0, 3.0)
    assert (end_c, first_j + second_j) == pytest.approx(heat(THERMAL, 40.0, 250.0, 6.0))


def test_runaway_is_refused() -> None:
    with pytest.raises(DeviceError, match="outruns cooling"):
        heat(dataclasses.replace(THERMAL, leakage_w_per_c=20.0), 40.0, 200.0, 1.0)
