"""What an energy reading is worth: counters that reset, windows too short, power samples, ranks on one GPU.

Pure functions over numbers; nothing here touches a device. Time in s, energy in J, power in W.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from energy_lightning.types import EnergySource, MeasurementError

RESET = "reset: the energy counter fell inside the window"
TOO_SHORT = "too short"


@dataclass(frozen=True, slots=True)
class WindowReading:
    """What one measuring window saw on one GPU.

    Attributes:
        time_s: length of the window.
        energy_j: energy of this GPU in the window; None when it cannot be told.
        source: where the energy comes from.
        invalid_reason: why `energy_j` is None; None for a valid reading.
    """

    time_s: float
    energy_j: float | None
    source: EnergySource
    invalid_reason: str | None = None

    @property
    def power_w(self) -> float | None:
        """Mean power over the window, or None without a valid energy."""
        return None if self.energy_j is None or self.time_s <= 0.0 else self.energy_j / self.time_s


def window_energy(
    start_j: float, end_j: float, *, time_s: float, refresh_s: float = 0.0
) -> tuple[float | None, str | None]:
    """Energy between two counter readings: (energy_j, None), or (None, reason).

    A counter that fell voids the window (no abs, no clamp). A window shorter than the counter's refresh may show
    no energy at all, or a whole refresh too much: it is void too, and so is one in which the counter stood still
    (no GPU draws 0 W).
    """
    if not (math.isfinite(start_j) and math.isfinite(end_j)):
        return None, f"the energy counter read {start_j!r} J, then {end_j!r} J"
    if end_j < start_j:
        return None, RESET
    if time_s < refresh_s:
        return None, f"{TOO_SHORT}: {time_s:.3g} s for a counter that refreshes every {refresh_s:.3g} s"
    if end_j == start_j and time_s > 0.0:
        return None, f"the energy counter did not move in {time_s:.3g} s"
    return end_j - start_j, None


@dataclass(slots=True)
class EnergyTotal:
    """A running total over windows. A void window's time counts, its energy is missing: `complete` is then False."""

    energy_j: float = 0.0
    time_s: float = 0.0
    complete: bool = True

    def add(self, reading: WindowReading) -> None:
        """Count one window."""
        self.time_s += reading.time_s
        if reading.energy_j is None:
            self.complete = False
        else:
            self.energy_j += reading.energy_j


def integrate_power(time_s: Sequence[float], power_w: Sequence[float]) -> float:
    """Energy in J of power samples, by the trapezoid rule. Both sequences are (n,), n >= 2, times not falling.

    Raises MeasurementError on fewer than two samples, unequal lengths, falling times, or values not finite.
    """
    if len(time_s) != len(power_w) or len(time_s) < 2:
        raise MeasurementError(f"need at least two (time, power) samples, got {len(time_s)} and {len(power_w)}")
    if not all(math.isfinite(value) for value in (*time_s, *power_w)):
        raise MeasurementError(f"time and power samples must be finite, got {list(time_s)} s and {list(power_w)} W")
    steps_s = [after - before for before, after in itertools.pairwise(time_s)]
    if min(steps_s) < 0.0:
        raise MeasurementError(f"sample times must not fall, got {list(time_s)} s")
    means_w = [(a + b) / 2 for a, b in itertools.pairwise(power_w)]
    return math.fsum(step_s * mean_w for step_s, mean_w in zip(steps_s, means_w, strict=True))


def sum_over_gpus(per_rank: Iterable[tuple[object, float]]) -> float:
    """Energy in J over distinct GPUs, from one (gpu identity, energy_j) a rank.

    Ranks that share a GPU each read the whole board: it counts once, with the largest reading (the rank that
    watched longest).
    """
    largest_j: dict[object, float] = {}
    for gpu, energy_j in per_rank:
        largest_j[gpu] = max(energy_j, largest_j.get(gpu, energy_j))
    return math.fsum(largest_j.values())
