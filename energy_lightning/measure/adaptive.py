"""Windows that end when time and energy of one execution are known well enough.

    start |lap|lap|lap| ... |lap| look: narrow enough? |lap| ...      at least `least_window_s`, at most `window_s`

An energy counter shows what was true up to one refresh ago, so the two ends of a window are off by up to a refresh's
energy each (5 s and 0.1 s: about 0.8% in standard deviation). Reading it after every lap and laying a straight line
through (executions, energy) averages that error away: far shorter windows are as exact. Time needs no such line.

Not modelled: what is the same in all laps of a window, such as the temperature at which it was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energy_lightning.measure.energy import WindowReading, window_energy

if TYPE_CHECKING:
    from energy_lightning.device import Device
    from energy_lightning.measure.meter import EnergyMeter

LAP_S = 0.02  # a fifth of NVML's refresh of 0.1 s; a synchronisation in 20 ms costs about a thousandth
# Looks after 1, 2, ..., 20, 22, 24, ... laps: the same on all ranks, whatever their clocks.
_LOOK_GROWTH = 1.1
_LEAST_VALUES = 5  # for an interval
_NORMAL_95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Precision:
    """When a window may end.

    Attributes:
        relative: half the width of the 95% confidence interval of time and energy, as a fraction of each.
        least_window_s: no window is shorter, however steady the readings: on GPUs windows under 2 s vary widely.
        window_s: no window is (much) longer.
    """

    relative: float
    least_window_s: float
    window_s: float


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One execution's time (s) and energy (J; None: not known, `reading.invalid_reason` says why) in one window."""

    time_s: float
    energy_j: float | None
    reading: WindowReading


def adaptive_window(
    device: Device,
    meter: EnergyMeter,
    run: Callable[[int], None],
    num_runs: int,
    precision: Precision,
    agree: Callable[[bool], bool],
) -> WindowResult:
    """Run laps of `num_runs` executions until time and energy are precise enough on all ranks.

    `agree` turns this rank's wish to stop into all ranks' decision; it is called after the same laps everywhere.
    """
    laps: list[WindowReading] = []
    next_look = 1
    meter.start(synchronize=True)
    while True:
        run(num_runs)
        device.synchronize()
        laps.append(meter.lap())
        if len(laps) >= next_look:
            if agree(_enough(laps, precision)):
                return _result(laps, num_runs, meter.refresh_s)
            next_look = max(len(laps) + 1, int(len(laps) * _LOOK_GROWTH))


def slope_with_half_width(values: Sequence[float]) -> tuple[float, float]:
    """Slope of the least-squares line through values at 0, 1, 2, ..., and half its 95% confidence interval.

    The interval is infinite for fewer than five values. Source: ordinary least squares, Student's t expanded in
    1 / degrees of freedom (Fisher & Cornish, 1960), which is good to 4% from five values on.
    """
    count = len(values)
    if count < 2:
        return math.nan, math.inf
    middle, mean = (count - 1) / 2.0, statistics.fmean(values)
    spread = count * (count * count - 1) / 12.0
    slope = math.fsum((i - middle) * (value - mean) for i, value in enumerate(values)) / spread
    if count < _LEAST_VALUES:
        return slope, math.inf
    residual = math.fsum((value - mean - slope * (i - middle)) ** 2 for i, value in enumerate(values))
    return slope, _student_95(count - 2) * math.sqrt(residual / (count - 2) / spread)


def _student_95(degrees: int) -> float:
    z = _NORMAL_95
    first, second = (z**3 + z) / 4.0, (5 * z**5 + 16 * z**3 + 3 * z) / 96.0
    return z + first / degrees + second / degrees**2


def _enough(laps: Sequence[WindowReading], precision: Precision) -> bool:
    time_s = math.fsum(lap.time_s for lap in laps)
    if time_s < min(precision.least_window_s, precision.window_s):
        return False
    if time_s >= precision.window_s or any(lap.energy_j is None and lap.source != "none" for lap in laps):
        return True
    if len(laps) < _LEAST_VALUES:
        return False
    half_s = _student_95(len(laps) - 1) * statistics.stdev(lap.time_s for lap in laps) / math.sqrt(len(laps))
    if half_s > precision.relative * time_s / len(laps):
        return False
    slope_j, half_j = slope_with_half_width(_running_energy(laps))
    return laps[0].source == "none" or half_j <= precision.relative * slope_j


def _result(laps: Sequence[WindowReading], num_runs: int, refresh_s: float) -> WindowResult:
    time_s, source = math.fsum(lap.time_s for lap in laps), laps[0].source
    per_run_s = time_s / (len(laps) * num_runs)
    reason = next((lap.invalid_reason for lap in laps if lap.energy_j is None), None)
    if reason is not None:
        return WindowResult(per_run_s, None, WindowReading(time_s, None, source, reason))
    running_j = _running_energy(laps)
    energy_j, reason = window_energy(0.0, running_j[-1], time_s=time_s, refresh_s=refresh_s)
    per_run_j = None
    if energy_j is not None:
        per_run_j = slope_with_half_width(running_j)[0] / num_runs
    return WindowResult(per_run_s, per_run_j, WindowReading(time_s, energy_j, source, reason))


def _running_energy(laps: Sequence[WindowReading]) -> list[float]:
    """Energy (J) since the start after 0, 1, 2, ... laps."""
    running_j = [0.0]
    for lap in laps:
        running_j.append(running_j[-1] + (lap.energy_j or 0.0))
    return running_j
