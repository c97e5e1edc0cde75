"""One measuring window of training steps under a power limit: this rank's part, and what all ranks' parts say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from energy_lightning.callbacks.job import FAILURES
from energy_lightning.measure import EnergyMeter, sum_over_gpus
from energy_lightning.recurring import PowerLimitSample

REFRESHES_PER_PIECE = 10
_POWER_POLLS_S = 0.1  # of a device without a counter; see measure.meter.SAMPLE_INTERVAL_S
SAME_LIMIT_W = 1.0  # between two readings of one limit
LIMIT_SPREAD = 0.05  # between the limits that GPUs make of one that is asked for
HEAT = ("thermal", "hw_slowdown", "power_brake")
"""Parts of the names of throttle reasons under which a window says nothing of a power limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """One rank's window. Time and energy are of all its steps, of this rank's GPU.

    Attributes:
        gpu: equal for ranks that share a GPU (see `gpu_identity`).
        set_w: power limit that the device reported when it had been set; None: another rank sets this GPU.
        limit_w: power limit that the device reports at the end.
        warmed_c: by how much the chip's temperature rose from the window's beginning to its end; None: not known.
        needed_s: how long the window must be for the counter to be trusted.
        fault: why the window is not valid, or None.
        can_set: whether the limit can still be set.
    """

    gpu: float
    num_steps: int
    time_s: float
    energy_j: float
    needed_s: float
    set_w: float | None
    limit_w: float
    temperature_c: float | None
    warmed_c: float | None
    fault: str | None
    can_set: bool


class PowerWindow:
    """Adds up the pieces of a window: it pauses for validation and at the end of an epoch.

    The device is synchronised at the edges of pieces only. No call raises for a device that fails: the row says so.

    Args:
        device: what is measured.
        set_w: see `WindowRow`.
        fault: why the window is not valid already: the limit could not be set.
    """

    def __init__(self, device: Any, *, set_w: float | None, fault: str | None) -> None:
        self._device, self._set_w, self.fault = device, set_w, fault
        self._meter: EnergyMeter | None = None
        self._from_step: int | None = None
        self._num_steps = self._num_pieces = 0
        self._time_s = self._energy_j = 0.0
        self._start_c: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether a piece is being measured."""
        return self._from_step is not None

    def resume(self, step: int) -> None:
        """A piece starts before optimizer step number `step`."""
        self._from_step = step
        self._num_pieces += 1
        try:
            if self._meter is None:
                self._meter, self._start_c = EnergyMeter(self._device), self._device.temperature_c()
            self._meter.start(synchronize=True)
        except FAILURES as error:
            self.fault = self.fault or f"{type(error).__name__}: {error}"

    def pause(self, step: int) -> None:
        """A piece ends; the next optimizer step will be number `step`."""
        self.add_up(step)
        self._from_step = None

    def add_up(self, step: int) -> None:
        """Count what the open piece has measured so far; it goes on (for a slow counter still as one piece)."""
        if self._from_step is None:
            return
        self._num_steps += step - self._from_step
        self._from_step = step
        try:
            self._device.synchronize()
            reading = None if self._meter is None else self._meter.lap()
            heat = [why for why in self._device.throttle_reasons() if any(part in why for part in HEAT)]
        except FAILURES as error:
            self.fault = self.fault or f"{type(error).__name__}: {error}"
            return
        if reading is None or reading.energy_j is None:
            self.fault = self.fault or (reading and reading.invalid_reason) or "no energy reading"
            return
        if heat:
            self.fault = self.fault or f"throttled by heat or its supply ({', '.join(heat)})"
        self._time_s += reading.time_s
        self._energy_j += reading.energy_j

    def row(self, gpu: float) -> WindowRow:
        """What was measured so far, on this rank."""
        fault, limit_w, temperature_c, refresh_s = self.fault, math.nan, None, 0.0
        try:
            limit_w, temperature_c = float(self._device.power_limit_w), self._device.temperature_c()
            source = self._device.energy_source
            refresh_s = _POWER_POLLS_S if source == "power" else self._device.counter_refresh_s
        except FAILURES as error:
            fault = fault or f"{type(error).__name__}: {error}"
        return WindowRow(
            gpu=gpu,
            num_steps=self._num_steps,
            time_s=self._time_s,
            energy_j=self._energy_j,
            needed_s=REFRESHES_PER_PIECE * refresh_s * self._num_pieces,
            set_w=self._set_w,
            limit_w=limit_w,
            temperature_c=temperature_c,
            warmed_c=None if temperature_c is None or self._start_c is None else temperature_c - self._start_c,
            fault=fault,
            can_set=bool(self._device.can_set_power_limit),
        )

    def close(self) -> None:
        """End background sampling; idempotent."""
        if self._meter is not None:
            self._meter.close()
            self._meter = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWindow:
    """A window of the whole job: of one step, time of the slowest rank and energy over the job's distinct GPUs."""

    time_s: float
    energy_j: float
    limit_w: float
    temperature_c: float | None
    warmed_c: float
    fault: str | None
    steps_missing: int

    def sample(self) -> PowerLimitSample:
        """Of a window without a fault."""
        return PowerLimitSample(power_limit_w=self.limit_w, time_s=self.time_s, energy_j=self.energy_j)


def reduce_rows(rows: Sequence[WindowRow], *, asked_w: float) -> JobWindow:
    """What the ranks' windows say together, measured under whatever limit the GPUs made of `asked_w`.

    Boards round, some coarsely: the limit in force is the one that they report. Not valid where a rank's is not, where
    a GPU reports another limit at the end than when it was set (somebody else did), or where GPUs report limits more
    than `LIMIT_SPREAD` apart. The limit of the result is the highest that a GPU reports. `steps_missing`: how many more
    steps the slowest counter needs. `warmed_c`: of the GPU that warmed up most.
    """
    faults = [f"rank {rank}: {row.fault}" for rank, row in enumerate(rows) if row.fault is not None]
    faults += list(_other_limits(rows, asked_w))
    num_steps = rows[0].num_steps
    missing = 0
    for row in rows:
        if 0.0 < row.time_s < row.needed_s:
            missing = max(missing, math.ceil(num_steps * (row.needed_s / row.time_s - 1.0)))
    time_s, energy_j = max(row.time_s for row in rows), sum_over_gpus((row.gpu, row.energy_j) for row in rows)
    limit_w = max(row.limit_w for row in rows)
    if not faults and not (num_steps > 0 and all(0.0 < value < math.inf for value in (time_s, energy_j, limit_w))):
        faults.append(f"{num_steps} steps took {time_s:g} s and {energy_j:g} J under {limit_w:g} W")
    temperatures = [row.temperature_c for row in rows if row.temperature_c is not None]
    return JobWindow(
        time_s=time_s / max(1, num_steps),
        energy_j=energy_j / max(1, num_steps),
        limit_w=limit_w,
        temperature_c=max(temperatures, default=None),
        warmed_c=max((row.warmed_c for row in rows if row.warmed_c is not None), default=0.0),
        fault="; ".join(faults) or None,
        steps_missing=missing,
    )


def _other_limits(rows: Sequence[WindowRow], asked_w: float) -> Iterator[str]:
    """Why the limits that GPUs report are not those that the window is of."""
    for rank, row in enumerate(rows):
        if row.fault is None and row.set_w is not None and not abs(row.limit_w - row.set_w) <= SAME_LIMIT_W:  # NaN too
            yield f"rank {rank}: asked for {asked_w:g} W and had {row.set_w:g} W, the GPU reports {row.limit_w:g} W now"
    limits_w = [row.limit_w for row in rows]
    if max(limits_w) > (1.0 + LIMIT_SPREAD) * min(limits_w):
        each = ", ".join(f"{limit_w:g} W" for limit_w in limits_w)
        yield f"asked for {asked_w:g} W, the GPUs of the ranks report {each}"
