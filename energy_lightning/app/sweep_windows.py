"""Time and energy of something that can be repeated: several windows of many repetitions on one device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energy_lightning.measure import EnergyMeter
from energy_lightning.types import ConfigError, MeasurementError

if TYPE_CHECKING:
    from energy_lightning.device import Device

_REFRESHES = 10.0  # a window spans so many refreshes of the counter at least: its two ends are off by one each


@dataclass(frozen=True, slots=True)
class WindowChoices:
    """How to measure.

    Attributes:
        warmup: repetitions before anything is timed.
        window_s: least length of a window.
        windows: how many; time and energy are their medians.
    """

    warmup: int = 3
    window_s: float = 5.0
    windows: int = 3

    def __post_init__(self) -> None:
        if not (self.warmup >= 1 and self.windows >= 1 and 0.0 < self.window_s < math.inf):
            raise ConfigError(f"need warmup >= 1, windows >= 1 and window_s > 0, got {self}")

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> WindowChoices:
        """From the settings warmup, window_s and windows; ConfigError for one that is no number."""
        given = {name: values[name] for name in ("warmup", "window_s", "windows")}
        if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in given.values()):
            raise ConfigError(f"warmup, window_s and windows must be numbers, got {given}")
        return cls(int(given["warmup"]), float(given["window_s"]), int(given["windows"]))


@dataclass(frozen=True, slots=True)
class Repeated:
    """One repetition on this GPU.

    Attributes:
        time_s, energy_j: medians over the windows, of one repetition.
        spread: of the energy between windows, (highest - lowest) / median.
        repetitions: in a window.
        source: where the energy comes from.
    """

    time_s: float
    energy_j: float
    spread: float
    repetitions: int
    source: str


def measure_repeated(
    device: Device,
    meter: EnergyMeter,
    work: Callable[[], object],
    choices: WindowChoices,
    agree: Callable[[float], float] = float,
) -> Repeated:
    """Measure `work`, which may leave the device busy. `agree`: the most over all ranks, which work together.

    Raises:
        MeasurementError: every window was void, with the reason of the last.
    """
    for _ in range(choices.warmup):
        work()
    device.synchronize()
    least_s = agree(max(choices.window_s, _REFRESHES * meter.refresh_s))
    start_s = device.now_s()
    work()
    device.synchronize()
    count = _count(least_s, agree(device.now_s() - start_s))
    times_s, energies_j, reason = [], [], "no window"
    for _ in range(choices.windows):
        meter.start(synchronize=True)
        for _ in range(count):
            work()
        reading = meter.stop(synchronize=True)
        if reading.energy_j is None:
            reason = reading.invalid_reason or f"{device.name} reports no energy"
            continue
        times_s.append(reading.time_s / count)
        energies_j.append(reading.energy_j / count)
    if not energies_j:
        raise MeasurementError(f"no valid energy in {choices.windows} windows: {reason}")
    energy_j = statistics.median(energies_j)
    spread = (max(energies_j) - min(energies_j)) / energy_j
    return Repeated(statistics.median(times_s), energy_j, spread, count, str(meter.source))


def _count(least_s: float, once_s: float) -> int:
    return max(1, math.ceil(least_s / max(once_s, 1e-4)))
