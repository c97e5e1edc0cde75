"""The board's power limit: work whose mean power would exceed it runs at the highest clock that does not.

One rule for single partitions, whole phases and the emulated device. Not modelled: excursions inside the averaged
work (a limiter averages over tens of milliseconds), alternation between two neighbouring clocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from energy_lightning.emulation.gpu import GPU, Floats

Rows = NDArray[np.intp]
Evaluate = Callable[[Floats, Rows], tuple[Floats, Floats]]
"""(clocks in MHz (m,), which rows they belong to (m,)) -> time (s) and energy (J) of those rows, (m,) each."""


def within_power_limit(evaluate: Evaluate, gpu: GPU, frequency_mhz: Floats) -> tuple[Floats, Floats, Floats]:
    """Time (s), energy (J) and the clock that is held (MHz) of n rows asked to run at `frequency_mhz`, (n,) each.

    Mean power is taken to rise with the clock, so the held clock is found by bisection over the GPU's clocks; where
    even the lowest one exceeds the limit, it is held.
    """
    held_mhz = np.array(frequency_mhz, dtype=np.float64)
    time_s, energy_j = evaluate(held_mhz, np.arange(held_mhz.size))
    limit_w = gpu.power_limit_w
    over = np.flatnonzero(energy_j > limit_w * time_s) if math.isfinite(limit_w) else np.array([], dtype=np.intp)
    if not over.size:
        return time_s, energy_j, held_mhz
    clocks = np.array(gpu.frequencies_mhz, dtype=np.float64)
    too_high = np.searchsorted(clocks, held_mhz[over])
    fits = np.zeros_like(too_high)  # the lowest clock, whatever it draws
    while np.any(open_ := too_high - fits > 1):
        middle = np.where(open_, (too_high + fits) // 2, fits)
        tried_s, tried_j = evaluate(clocks[middle], over)
        good = tried_j <= limit_w * tried_s
        fits, too_high = np.where(open_ & good, middle, fits), np.where(open_ & ~good, middle, too_high)
    held_mhz[over] = clocks[fits]
    time_s, energy_j = time_s.copy(), energy_j.copy()
    time_s[over], energy_j[over] = evaluate(held_mhz[over], over)
    return time_s, energy_j, held_mhz


def unlimited(gpu: GPU) -> GPU:
    """The same GPU without a power limit: for parts of something whose mean power is judged as a whole."""
    return gpu.with_constants(power__limit_w=math.inf)
