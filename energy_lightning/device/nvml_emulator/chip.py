"""Chip: clock, power, energy and temperature of one emulated board over time, in closed form between changes.

    P = static + leakage(T) + clock tree and SMs (f V^2) + load x (work of a large matrix product, f V^2)

Load is the share of the time in which such a product (bf16, or the first format that the GPU has) runs; its memory
traffic is not modelled. A locked clock is followed after the board's lag; a load is there at once. Where power would
exceed the limit, the highest clock that does not is held. Not modelled: temperature limits, fans.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from energy_lightning.device.nvml_emulator.board import EmulatedBoard
from energy_lightning.emulation.thermal import heat, leakage_w

_LIMITED_STEP_S = 1.0  # how often the limiter looks at the temperature
_SETTLED_C = 1e-4  # a step that warms less than this has settled


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sensors showed last."""

    counter_j: float
    instant_w: float
    average_w: float


class Chip:
    """One board's state; times are seconds since the emulator started and never go back."""

    def __init__(self, board: EmulatedBoard) -> None:
        self.board, self.gpu = board, board.model
        gpu, power = self.gpu, self.gpu.power
        self.refresh_s = gpu.counter_refresh_s if board.counter_refresh_s is None else board.counter_refresh_s
        self.lag_s = gpu.switch_time_s if board.clock_lag_s is None else board.clock_lag_s
        self.clocks_mhz = gpu.frequencies_mhz
        scale = gpu.clock_ratio(self.clocks_mhz) * gpu.voltage_squared(self.clocks_mhz)
        flops_per_s = next(iter(gpu.compute.peak_flops_per_s.values())) * gpu.compute.linear_efficiency
        work_w = power.sm_active_w + power.joule_per_flop * flops_per_s
        idle_w: list[float] = (power.static_w + power.idle_clock_w * scale).tolist()
        busy_w: list[float] = (work_w * scale).tolist()
        self._idle_w, self._work_w = (dict(zip(self.clocks_mhz, w, strict=True)) for w in (idle_w, busy_w))
        self.limit_w, self.locked_mhz = board.start_limit_w, board.locked_mhz
        self.load = 0.0
        self.held_w: float | None = None
        self.cap_mhz = self.clocks_mhz[-1]
        self._before_mhz, self._settles_s = self.target_mhz(), 0.0
        self.time_s = self.energy_j = 0.0
        self._shown_offset_j = board.counter_j
        idle_c = heat(gpu.thermal, gpu.thermal.ambient_c, self._idle_w[self.target_mhz()], 1e6)[0]
        self.temperature_c = idle_c if board.temperature_c is None else board.temperature_c
        self._history = [(0.0, 0.0)]
        self._sampled_s = 0.0
        self.sample = Sample(self._shown_offset_j, self.power_w(), self.power_w())
        self._noise = np.random.default_rng(board.seed)

    # clocks

    def snapped_mhz(self, clock_mhz: int) -> int:
        """The highest clock of the GPU that is not above `clock_mhz`; the lowest one where there is none."""
        return self.clocks_mhz[max(bisect_right(self.clocks_mhz, clock_mhz) - 1, 0)]

    def target_mhz(self) -> int:
        """The clock that locks and load ask for, once it has settled."""
        busy = not self.is_idle()
        if self.locked_mhz is not None:
            return self.snapped_mhz(self.locked_mhz[1] if busy else self.locked_mhz[0])
        return self.clocks_mhz[-1] if busy else self.clocks_mhz[0]

    def wanted_mhz(self) -> int:
        """The clock that would run now if power allowed it."""
        return self._before_mhz if self.time_s < self._settles_s else self.target_mhz()

    def clock_mhz(self) -> int:
        """The clock that runs now."""
        wanted_mhz = min(self.wanted_mhz(), self.snapped_mhz(self.cap_mhz))
        if self.held_w is not None or self._power_at(wanted_mhz) <= self.limit_w:
            return wanted_mhz
        below = self.clocks_mhz[: self.clocks_mhz.index(wanted_mhz)]
        fits = bisect_right(below, self.limit_w, key=self._power_at)
        return self.clocks_mhz[max(fits - 1, 0)]

    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return self.load == 0.0 and self.held_w is None

    def is_power_limited(self) -> bool:
        """Whether the power limit holds the clock down."""
        return self.clock_mhz() < min(self.wanted_mhz(), self.snapped_mhz(self.cap_mhz))

    def lock(self, locked_mhz: tuple[int, int] | None) -> None:
        """Lock SM clocks to a range, or give them back; the clock follows after the board's lag."""
        before_mhz = self.wanted_mhz()
        self.locked_mhz = locked_mhz
        self._before_mhz, self._settles_s = before_mhz, self.time_s + self.lag_s
        self._mark()

    # power

    def power_w(self) -> float:
        """Power now."""
        return self._power_at(self.clock_mhz()) if self.held_w is None else self.held_w

    def _reference_w(self, clock_mhz: int) -> float:
        return self._idle_w[clock_mhz] + self.load * self._work_w[clock_mhz]

    def _power_at(self, clock_mhz: int) -> float:
        return self._reference_w(clock_mhz) + leakage_w(self.gpu.thermal, self.temperature_c)

    def set_load(self, load: float, held_w: float | None = None) -> None:
        """Load from 0 to 1; `held_w` is drawn whatever the clock and the load; None: what the model says."""
        self.load, self.held_w = load, held_w
        self._mark()

    def set_limit(self, limit_w: float) -> None:
        """Power limit in force from now on."""
        self.limit_w = limit_w
        self._mark()

    def set_cap(self, cap_mhz: int) -> None:
        """The clock stays at or below `cap_mhz`, whatever is asked for."""
        self.cap_mhz = cap_mhz
        self._mark()

    def set_counter(self, energy_j: float) -> None:
        """The counter shows `energy_j` at once and counts on from there."""
        self._shown_offset_j = energy_j - self.energy_j
        self.sample = replace(self.sample, counter_j=energy_j)

    # time

    def update(self, now_s: float) -> None:
        """Run until `now_s`, sensors included; nothing happens if that is past."""
        ticks = math.floor(now_s / self.refresh_s + 1e-9) if self.refresh_s else 0
        sample_s = min(ticks * self.refresh_s, now_s) if self.refresh_s else now_s
        if sample_s > self._sampled_s:
            self._run_until(sample_s - self.board.average_s)
            self._mark()
            self._run_until(sample_s)
            self._mark()
            self._take_sample(sample_s)
        self._run_until(now_s)

    def _take_sample(self, sample_s: float) -> None:
        self._sampled_s = sample_s
        since_s = max(sample_s - self.board.average_s, 0.0)
        span_s = sample_s - since_s
        average_w = (self.energy_j - self._energy_at(since_s)) / span_s if span_s > 0.0 else self.power_w()
        while len(self._history) > 2 and self._history[1][0] <= since_s:
            del self._history[0]
        noises_w = (
            self._noise.normal(0.0, self.board.power_noise_w, 2).tolist() if self.board.power_noise_w else (0.0, 0.0)
        )
        powers_w = (max(w + noise_w, 0.0) for w, noise_w in zip((self.power_w(), average_w), noises_w, strict=True))
        self.sample = Sample(self.energy_j + self._shown_offset_j, *powers_w)

    def _mark(self) -> None:
        """Remember the energy now: between two marks it is a straight line."""
        if self.time_s > self._history[-1][0]:
            self._history.append((self.time_s, self.energy_j))

    def _energy_at(self, time_s: float) -> float:
        later = bisect_right(self._history, time_s, key=lambda mark: mark[0])
        (start_s, start_j), (end_s, end_j) = self._history[later - 1], self._history[min(later, len(self._history) - 1)]
        return start_j if end_s <= start_s else start_j + (end_j - start_j) * (time_s - start_s) / (end_s - start_s)

    def _run_until(self, end_s: float) -> None:
        while self.time_s < end_s:
            stop_s = self._settles_s if self.time_s < self._settles_s < end_s else end_s
            self._run_segment(stop_s - self.time_s)

    def _run_segment(self, time_s: float) -> None:
        """Constant reference power for `time_s`, or for one look of the limiter."""
        thermal, clock_mhz = self.gpu.thermal, self.clock_mhz()
        if self.held_w is not None:
            self._advance(time_s, *heat(replace(thermal, leakage_w_per_c=0.0), self.temperature_c, self.held_w, time_s))
            return
        reference_w = self._reference_w(clock_mhz)
        end_c, energy_j = heat(thermal, self.temperature_c, reference_w, time_s)
        if time_s > _LIMITED_STEP_S:
            hottest_w = reference_w + leakage_w(thermal, max(end_c, self.temperature_c))
            step_c, step_j = heat(thermal, self.temperature_c, reference_w, _LIMITED_STEP_S)
            warms = abs(step_c - self.temperature_c) > _SETTLED_C
            if warms and (self.is_power_limited() or hottest_w > self.limit_w):
                time_s, end_c, energy_j = _LIMITED_STEP_S, step_c, step_j
        self._advance(time_s, end_c, energy_j)

    def _advance(self, time_s: float, end_c: float, energy_j: float) -> None:
        self.time_s, self.temperature_c, self.energy_j = self.time_s + time_s, end_c, self.energy_j + energy_j
