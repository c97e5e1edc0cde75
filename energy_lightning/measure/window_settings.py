"""How long one configuration is measured, and what is tried again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from energy_lightning.types import EnergyLightningError


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How one configuration is measured.

    Attributes:
        window_s: length of the measuring window; the configuration is repeated to fill it. Windows under 2 s vary
            widely on real GPUs.
        cool_down_s: idle time after it, so that one window's heat does not raise the leakage of the next.
        warmup_runs: executions before the window; they also tell how long one takes.
        max_retries: further tries when the clock is not the one asked for, or the energy reading is void.
        precision: None: every window is `window_s` long. Else it ends once half the width of the 95% confidence
            interval of time and of energy is at most this fraction of each, `window_s` being the most.
        least_window_s: the least length then.
        clock_tolerance_mhz: how far the clock seen may lie from the clock asked for; half of NVIDIA's 15 MHz steps, so
            that a neighbouring clock does not pass for the one asked for.
        lock_clock: False: everything runs at whatever clock the GPU is at, and no clock is a fault.
    """

    window_s: float = 5.0
    cool_down_s: float = 5.0
    warmup_runs: int = 5
    max_retries: int = 2
    precision: float | None = None
    least_window_s: float = 2.0
    clock_tolerance_mhz: int = 7
    lock_clock: bool = True

    def __post_init__(self) -> None:
        if not (0.0 < self.window_s < math.inf and 0.0 <= self.cool_down_s < math.inf):  # NaN fails too
            raise EnergyLightningError(
                f"need window_s > 0 and cool_down_s >= 0, both finite, got {self.window_s} and {self.cool_down_s}"
            )
        if not (self.precision is None or 0.0 < self.precision < 1.0) or not 0.0 < self.least_window_s < math.inf:
            raise EnergyLightningError(
                f"need precision None or from 0 to 1 (exclusive) and least_window_s > 0, got {self.precision}, "
                f"{self.least_window_s}"
            )
        if self.warmup_runs < 1 or self.max_retries < 0 or self.clock_tolerance_mhz < 0:
            raise EnergyLightningError(
                "need warmup_runs >= 1, max_retries >= 0 and clock_tolerance_mhz >= 0, got "
                f"{self.warmup_runs}, {self.max_retries}, {self.clock_tolerance_mhz}"
            )
