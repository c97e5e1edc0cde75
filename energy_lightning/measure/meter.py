"""Energy windows over a Device: the counter where there is one, else integrated power, else None with a reason."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from energy_lightning.device.refresh import probe_refresh_s
from energy_lightning.measure.energy import WindowReading, integrate_power, window_energy
from energy_lightning.types import MeasurementError

if TYPE_CHECKING:
    from energy_lightning.device import Device

__all__ = ["SAMPLE_INTERVAL_S", "EnergyMeter", "PowerReading", "PowerSampler", "probe_refresh_s"]

SAMPLE_INTERVAL_S = 0.05


@runtime_checkable
class PowerReading(Protocol):
    """A device that can tell its power now."""

    def power_w(self) -> float | None:
        """Board power in W, or None when it cannot be read."""
        ...


class PowerSampler:
    """An energy counter for boards that have none: a device's power, integrated by the trapezoid rule.

    Between readings power is taken to change linearly; a power that cannot be read is left out.
    """

    def __init__(self, device: Device, interval_s: float = SAMPLE_INTERVAL_S) -> None:
        power: object = device
        if not isinstance(power, PowerReading):
            raise MeasurementError(f"{device.name} has neither an energy counter nor a power reading")
        self._device, self._power, self._interval_s = device, power, interval_s
        self._last: tuple[float, float] | None = None  # time in s, power in W
        self._energy_j = 0.0
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def sample(self) -> tuple[float, float | None]:
        """Take a sample: its time, and the energy in J since the first one (None where power cannot be read now)."""
        with self._lock:
            power_w, now_s = self._power.power_w(), self._device.now_s()
            if power_w is None:
                return now_s, None
            if self._last is not None:
                self._energy_j += integrate_power((self._last[0], now_s), (self._last[1], power_w))
            self._last = now_s, power_w
            return now_s, self._energy_j

    def start(self) -> None:
        """Sample in the background until `stop` (a daemon thread: it never keeps the process alive)."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._poll, name="power-sampler", daemon=True)
            self._thread.start()

    def _poll(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self.sample()

    def stop(self) -> None:
        """End the background sampling; idempotent."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class EnergyMeter:
    """Windows on one device, one at a time: `start()`, work, `stop()`.

    The source is the device's and never changes: a window whose counter failed is void, it is not filled in from
    power. `synchronize=True` waits for the device at both edges (profiling); leave it off in normal steps.

    Args:
        device: what is measured.
        refresh_s: how often the energy counter moves; shorter windows are void. See `probe_refresh_s`.
    """

    def __init__(self, device: Device, *, refresh_s: float = 0.0) -> None:
        self._device, self.refresh_s = device, refresh_s
        self.source = device.energy_source
        self._sampler: PowerSampler | None = None
        if self.source == "power":
            self._sampler = PowerSampler(device)
            self._sampler.start()
        self._start: tuple[float, float | None] | None = None

    def start(self, *, synchronize: bool = False) -> None:
        """Open a window (an open one is dropped)."""
        if synchronize:
            self._device.synchronize()
        self._start = self._read()

    def stop(self, *, synchronize: bool = False) -> WindowReading:
        """Close the window opened by `start`. Raises MeasurementError when none is open."""
        if self._start is None:
            raise MeasurementError("no energy window is open: call start() before stop()")
        if synchronize:
            self._device.synchronize()
        (start_s, start_j), (end_s, end_j) = self._start, self._read()
        self._start = None
        energy_j, reason = self._energy(start_s, start_j, end_s, end_j)
        return WindowReading(end_s - start_s, energy_j, self.source, reason)

    def lap(self) -> WindowReading:
        """Close the window and open the next one at the same reading; never waits for the device.

        For long chains of short windows whose sum matters: a window in which a slow counter did not move is 0 J here,
        what it missed shows up in the next. A counter that fell voids its window only.
        """
        if self._start is None:
            raise MeasurementError("no energy window is open: call start() before lap()")
        (start_s, start_j), end = self._start, self._read()
        self._start = end
        if start_j is None or end[1] is None:
            return WindowReading(end[0] - start_s, None, self.source, self._missing)
        energy_j, reason = window_energy(start_j, end[1], time_s=0.0)
        return WindowReading(end[0] - start_s, energy_j, self.source, reason)

    @property
    def open_since_s(self) -> float:
        """Start of the open window on the device's clock. Raises MeasurementError when none is open."""
        if self._start is None:
            raise MeasurementError("no energy window is open: call start() first")
        return self._start[0]

    def close(self) -> None:
        """Stop background sampling; idempotent."""
        if self._sampler is not None:
            self._sampler.stop()

    def _read(self) -> tuple[float, float | None]:
        if self._sampler is not None:
            return self._sampler.sample()
        return self._device.now_s(), self._device.energy_j()

    @property
    def _missing(self) -> str:
        what = "no energy" if self._sampler is None else "no power at an edge of the window"
        return f"{self._device.name} reports {what}"

    def _energy(
        self, start_s: float, start_j: float | None, end_s: float, end_j: float | None
    ) -> tuple[float | None, str | None]:
        if start_j is None or end_j is None:
            return None, self._missing
        return window_energy(start_j, end_j, time_s=end_s - start_s, refresh_s=self.refresh_s)
