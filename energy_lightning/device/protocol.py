"""Device: one GPU as the callbacks see it, real or emulated."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from energy_lightning.types import EnergySource


@runtime_checkable
class Device(Protocol):
    """One GPU: its clock, energy, temperature and frequency control.

    Attributes:
        name: for people and for keys of measurements.
        emulated: time and energy are a model's, on a virtual clock.
        num_sms: streaming multiprocessors.
        frequencies_mhz: SM clocks that can be locked, ascending.
        static_power_w: power drawn whatever the GPU does.
        blocking_power_w: power while blocked on a peer.
        power_limit_w: board power limit.
        switch_time_s: time that a change of the locked clock takes.
        energy_source: where `energy_j` comes from.
        can_lock_frequency: False: measure-only; `lock_frequency` raises DeviceError.
    """

    name: str
    emulated: bool
    num_sms: int
    frequencies_mhz: tuple[int, ...]
    static_power_w: float
    blocking_power_w: float
    power_limit_w: float
    switch_time_s: float
    energy_source: EnergySource
    can_lock_frequency: bool

    def now_s(self) -> float:
        """Monotonic time in s: wall, or virtual on an emulated device."""
        ...

    def energy_j(self) -> float | None:
        """Energy of this GPU in J since a fixed start; None where the device cannot tell."""
        ...

    def power_w(self) -> float | None:
        """Board power in W now; None where the device cannot tell."""
        ...

    def temperature_c(self) -> float | None:
        """Chip temperature in C; None where the device cannot tell."""
        ...

    def lock_frequency(self, frequency_mhz: int) -> None:
        """Lock the SM clock. Raises DeviceError on an unknown clock or where control is not permitted."""
        ...

    def reset_frequency(self) -> None:
        """Undo `lock_frequency`; nothing happens if nothing was locked."""
        ...

    def frequency_mhz(self) -> int:
        """SM clock now, as the device reports it."""
        ...

    def synchronize(self) -> None:
        """Wait until all work given to the GPU is done."""
        ...

    def idle(self, time_s: float) -> None:
        """Let the GPU rest: sleeps on a real GPU, advances the virtual clock on an emulated one."""
        ...

    def close(self) -> None:
        """Give the hardware back as it was found; idempotent."""
        ...
