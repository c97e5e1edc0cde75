"""A device for tests whose readings are scripted: a virtual clock, constant power per clock, and faults on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from energy_lightning.types import DeviceError, DeviceMode, EnergySource


class ScriptedDevice:
    """A Device with a clock of its own that only moves when told to.

    Args:
        frequencies_mhz: supported clocks, ascending.
        power_w: clock in MHz -> power in W while working; a tenth of it is drawn while idle.
        energy_source: "counter", "power" or "none".
        clock_cap_mhz: the clock never runs higher, whatever is locked (a power cap).
        refresh_s: how often the energy counter moves; 0.0: always exact.
    """

    name = "scripted GPU"
    emulated = False
    virtual_clock = True
    num_sms = 108
    static_power_w = 60.0
    blocking_power_w = 80.0
    switch_time_s = 0.0
    uuid: str | None = None
    mode: DeviceMode = "full"
    mode_reason = "scripted"
    can_set_power_limit = True
    power_limit_range_w: tuple[float, float] | None = (100.0, 400.0)

    def __init__(
        self,
        frequencies_mhz: Sequence[int] = (900, 1200, 1410),
        *,
        power_w: Callable[[int], float] = lambda frequency_mhz: 100.0 + frequency_mhz / 10.0,
        energy_source: EnergySource = "counter",
        clock_cap_mhz: int | None = None,
        refresh_s: float = 0.0,
    ) -> None:
        self.frequencies_mhz = tuple(frequencies_mhz)
        self.energy_source: EnergySource = energy_source
        self.can_lock_frequency = True
        self.power_limit_w, self.counter_refresh_s = 400.0, refresh_s
        self.calls: list[tuple[str, float]] = []
        self._power, self._cap_mhz, self._refresh_s = power_w, clock_cap_mhz, refresh_s
        self._now_s = self._energy_j = self._shown_j = self._next_refresh_s = 0.0
        self._locked_mhz: int | None = None

    def work(self, time_s: float) -> None:
        """Let the GPU be busy for this long."""
        self._advance(time_s, self._power(self.frequency_mhz()))

    def reset_counter(self) -> None:
        """The driver was reloaded: the counter starts again at zero."""
        self._energy_j = self._shown_j = 0.0

    def _advance(self, time_s: float, power_w: float) -> None:
        self._now_s += time_s
        self._energy_j += time_s * power_w
        if self._now_s >= self._next_refresh_s:
            self._shown_j = self._energy_j
            if self._refresh_s > 0.0:
                self._next_refresh_s = (self._now_s // self._refresh_s + 1) * self._refresh_s

    def now_s(self) -> float:
        """Virtual time."""
        return self._now_s

    def energy_j(self) -> float | None:
        """The counter, None unless the source is one."""
        return self._shown_j if self.energy_source == "counter" else None

    def power_w(self) -> float | None:
        """Power at the clock in force."""
        return self._power(self.frequency_mhz())

    def temperature_c(self) -> float | None:
        """Constant."""
        return 40.0

    def lock_frequency(self, frequency_mhz: int) -> None:
        """Lock the clock; recorded in `calls`."""
        if frequency_mhz not in self.frequencies_mhz:
            raise DeviceError(f"{self.name} has no clock of {frequency_mhz} MHz; it has {self.frequencies_mhz}")
        self.calls.append(("lock", frequency_mhz))
        self._locked_mhz = frequency_mhz

    def reset_frequency(self) -> None:
        """Unlock the clock; recorded in `calls`."""
        self.calls.append(("reset", 0))
        self._locked_mhz = None

    def frequency_mhz(self) -> int:
        """The clock in force."""
        wanted_mhz = self._locked_mhz or self.frequencies_mhz[-1]
        return wanted_mhz if self._cap_mhz is None else min(wanted_mhz, self._cap_mhz)

    def requested_frequency_mhz(self) -> int | None:
        """The locked clock."""
        return self._locked_mhz

    def throttle_reasons(self) -> tuple[str, ...]:
        """The cap, where it holds the clock."""
        return ("sw_power_cap",) if self._cap_mhz is not None and self.frequency_mhz() == self._cap_mhz else ()

    def set_power_limit(self, power_limit_w: float) -> float:
        """Recorded in `calls`; clock and power do not follow it."""
        self.calls.append(("limit", power_limit_w))
        self.power_limit_w = power_limit_w
        return power_limit_w

    def reset_power_limit(self) -> None:
        """Recorded in `calls`."""
        self.calls.append(("reset limit", 0))
        self.power_limit_w = 400.0

    def synchronize(self) -> None:
        """Work is done as soon as it is asked for."""

    def idle(self, time_s: float) -> None:
        """Rest; recorded in `calls`."""
        self.calls.append(("idle", time_s))
        self._advance(time_s, self._power(self.frequency_mhz()) / 10.0)

    def close(self) -> None:
        """Recorded in `calls`."""
        self.calls.append(("close", 0))
