"""Device: one GPU as the callbacks see it, real or emulated."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from energy_lightning.types import DeviceMode, EnergySource


@runtime_checkable
class Device(Protocol):
    """One GPU: its clock, energy, temperature, and the control of its frequency and power limit.

    Attributes:
        name: for people and for keys of measurements.
        uuid: "GPU-...", the same for every process that uses this GPU; None where nothing tells GPUs apart.
        emulated: time and energy are a model's.
        virtual_clock: `now_s` moves only while the device is given work or rest; else it is wall time.
        mode: "full": clocks or power limits can be set; "measure-only"; "time-only": no energy reading. It may
            fall during a run, where a permission is lost.
        mode_reason: one line for people: what works, what is missing, what would permit it.
        num_sms: streaming multiprocessors.
        frequencies_mhz: SM clocks that can be locked, ascending.
        static_power_w: power drawn whatever the GPU does.
        blocking_power_w: power while blocked on a peer.
        power_limit_w: board power limit that is enforced now.
        power_limit_range_w: (least, most) limit that can be set; None where limits are not known.
        switch_time_s: time that a change of the locked clock takes.
        energy_source: where `energy_j` comes from.
        counter_refresh_s: how often `energy_j` moves; 0.0: always exact. Probed when first asked for (under 1.2 s).
        can_lock_frequency, can_set_power_limit: False: such a change does nothing (said once, in one line). They may
            fall during a run.
    """

    name: str
    emulated: bool
    virtual_clock: bool
    num_sms: int
    frequencies_mhz: tuple[int, ...]
    static_power_w: float
    switch_time_s: float
    energy_source: EnergySource

    @property
    def uuid(self) -> str | None: ...  # noqa: D102
    @property
    def mode(self) -> DeviceMode: ...  # noqa: D102
    @property
    def mode_reason(self) -> str: ...  # noqa: D102
    @property
    def can_lock_frequency(self) -> bool: ...  # noqa: D102
    @property
    def can_set_power_limit(self) -> bool: ...  # noqa: D102
    @property
    def blocking_power_w(self) -> float: ...  # noqa: D102
    @property
    def power_limit_w(self) -> float: ...  # noqa: D102
    @property
    def power_limit_range_w(self) -> tuple[float, float] | None: ...  # noqa: D102
    @property
    def counter_refresh_s(self) -> float: ...  # noqa: D102

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
        """Lock the SM clock; returns when the driver has taken it. Raises DeviceError on an unknown clock.

        Where control is refused nothing is changed or recorded as changed, and the mode falls with one line.
        """
        ...

    def reset_frequency(self) -> None:
        """Undo `lock_frequency`; nothing happens if nothing was locked."""
        ...

    def frequency_mhz(self) -> int:
        """SM clock now, as the device reports it."""
        ...

    def requested_frequency_mhz(self) -> int | None:
        """SM clock that is locked through this device; None: none is."""
        ...

    def throttle_reasons(self) -> tuple[str, ...]:
        """Why the clock is below the requested one now, e.g. ("sw_power_cap",); () when nothing holds it."""
        ...

    def set_power_limit(self, power_limit_w: float) -> float:
        """Set the board's power limit; returns the limit that the device reports afterwards (it may round).

        Raises DeviceError outside `power_limit_range_w`. Where control is refused nothing is changed or recorded as
        changed, the mode falls with one line, and the limit in force is returned.
        """
        ...

    def reset_power_limit(self) -> None:
        """Back to the limit before the first `set_power_limit` (not the vendor's default)."""
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
