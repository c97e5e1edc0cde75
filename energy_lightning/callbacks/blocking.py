"""What a real GPU draws while it waits for its peers: measured once a GPU, when profiling begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energy_lightning.callbacks.job import FAILURES, report
from energy_lightning.device import has_emulated_figures
from energy_lightning.device.blocking_cache import load_blocking_power_w
from energy_lightning.measure import EnergyMeter, EnergyTotal
from energy_lightning.measure.blocking_power import blocking_power_w


def learn_blocking_power(
    trainer: Any, device: Any, spent: EnergyTotal, *, spin: Callable[[float], None] | None = None
) -> None:
    """Measure it unless it is known already (3 s); what goes wrong is one line, and the value so far stays.

    Args:
        device: this rank's GPU; nothing happens where torch's CUDA does not drive it.
        spent: gets the time and energy that it took.
        spin: as for `blocking_power_w`; keeps the GPU busy in the place of torch's CUDA.
    """
    if device.emulated or (spin is None and getattr(device, "cuda_index", None) is None):
        return
    try:
        if load_blocking_power_w(device.state_dir, device.uuid) is not None:
            return
        meter = EnergyMeter(device)
        try:
            meter.start()
            power_w = blocking_power_w(device, device.state_dir, spin=spin)
        finally:
            spent.add(meter.lap())
            meter.close()
    except FAILURES as error:
        report(trainer, f"the power of a waiting GPU is taken to be {device.blocking_power_w:.0f} W: {error}")
        return
    label = "EMULATED: " if has_emulated_figures(device) else ""
    report(trainer, f"{label}{device.name} draws {power_w:.0f} W while it waits for others (measured once, kept)")
