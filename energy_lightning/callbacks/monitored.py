"""A device that callbacks watch under any strategy, and who accounts for an emulated one's work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from energy_lightning.callbacks.job import FAILURES, log
from energy_lightning.device import EmulatedDevice, open_device
from energy_lightning.device.modes import describe_mode
from energy_lightning.types import DeviceError, DeviceMode, EnergySource, Plan
from energy_lightning.workload import Workload


class ClockOnly:
    """Stands in where no GPU can be measured: wall time, and no energy."""

    name = "this machine"
    emulated = virtual_clock = False
    energy_source: EnergySource = "none"
    mode: DeviceMode = "time-only"
    counter_refresh_s = 0.0

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.now_s = clock_s

    def energy_j(self) -> float | None:
        """Not known."""
        return None

    def temperature_c(self) -> float | None:
        """Not known."""
        return None

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to give back."""


@dataclass(frozen=True, slots=True)
class Monitored:
    """A device and how it is used.

    Attributes:
        device: what is read.
        owned: opened here, so closed here.
        driven: an emulated device that nobody else gives work to: each batch and step is accounted here, as plain
            execution at the highest clock.
        note: one line for the user, or "".
    """

    device: Any
    owned: bool = False
    driven: bool = False
    note: str = ""

    @property
    def mode_line(self) -> str:
        """What a real GPU permits, in one line; "" where there is none (an emulated one permits everything)."""
        return "" if isinstance(self.device, ClockOnly) or self.device.virtual_clock else describe_mode(self.device)

    def close(self) -> None:
        """Close the device if it was opened here. Never raises: the error that ends a training is to be seen."""
        if not self.owned:
            return
        try:
            self.device.close()
        except FAILURES as error:
            log.warning(f"energy_lightning: {self.device.name} could not be closed ({type(error).__name__}: {error})")

    def account_batch(self) -> None:
        """One microbatch has run."""
        if self.driven:
            plan = Plan.sequential()
            self.device.run_phase(plan.forward)
            self.device.run_phase(plan.backward)

    def account_step(self) -> None:
        """The optimizer has stepped."""
        if self.driven:
            self.device.run_iteration_end(Plan.sequential().backward)


def emulated_for(given: str | None, workload: Workload | None, gpu: str, clock_s: Callable[[], float]) -> Monitored:
    """An emulated `gpu` for `workload`; without one time alone is measured, by `clock_s`, and the note says why.

    Raises DeviceError where an emulated device was asked for (`given`) and there is no workload.
    """
    if workload is None:
        if given == "emulated":
            raise DeviceError(
                "an emulated device needs a workload: give workload=..., a Workload or the name of a preset, "
                "e.g. 'llama3.2_3b_tp8'"
            )
        note = "energy is not measured: no NVIDIA GPU, and no workload to emulate (give workload=...)"
        return Monitored(ClockOnly(clock_s), note=note)
    device = open_device("emulated", gpu=gpu, workload=workload)
    assert isinstance(device, EmulatedDevice)
    return Monitored(device, owned=True, driven=True, note=f"time and energy below are EMULATED ({device.name})")
