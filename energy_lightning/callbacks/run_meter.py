"""What a whole training run has cost so far: this rank's GPU, and all ranks together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from energy_lightning.callbacks.job import FAILURES, gpu_identity
from energy_lightning.callbacks.shared_device import gather_objects
from energy_lightning.measure import EnergyMeter, WindowReading, sum_over_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """One rank's run so far, or the whole job's.

    Attributes:
        gpu: equal for ranks that share a GPU (see `gpu_identity`); 0 for the whole job.
        time_s, energy_j: since the beginning; where some windows were void, energy as if they had the mean power of the
            others; None where none was valid.
        limit_w: highest power limit of the GPU (of all GPUs together); None where not known.
        void_s: length of the void windows.
    """

    gpu: float
    time_s: float
    energy_j: float | None
    limit_w: float | None
    void_s: float


class RunMeter:
    """Time and energy of one device from `start` on, validation included. Never raises for a device that fails.

    Args:
        device: what is measured; once it fails, time goes by `clock_s` and is void.
        gpu: see `Spent`.
        before: what the same run spent in processes before this one, in s and J; counted on the rank that has it. No
            J where it was not measured: that time is void.
        clock_s: wall time.
    """

    def __init__(
        self,
        device: Any,
        gpu: float,
        before: tuple[float, float | None] = (0.0, 0.0),
        *,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device, self._gpu, self._clock_s = device, gpu, clock_s
        self._before_s, self._before_j = before[0], before[1] or 0.0
        self._unmeasured_s = before[0] if before[1] is None else 0.0
        self._meter: EnergyMeter | None = None
        self._valid_s = self._energy_j = self._void_s = 0.0
        self._read_s: float | None = None  # the latest reading, by the wall clock; None: not begun, or closed

    def start(self) -> None:
        """Begin."""
        self._read_s = self._clock_s()
        try:
            self._meter = EnergyMeter(self._device)
            self._meter.start(synchronize=True)
        except FAILURES:
            self._end_sampling()

    def read(self) -> Spent:
        """What was spent until now."""
        now_s = self._clock_s()
        if self._meter is not None:
            try:
                reading = self._meter.lap()
            except FAILURES:
                self._end_sampling()
            else:
                self._add(reading)
        if self._meter is None and self._read_s is not None:
            self._void_s += now_s - self._read_s
        self._read_s = None if self._read_s is None else now_s
        own_s, void_s = self._valid_s + self._void_s, self._void_s + self._unmeasured_s
        energy_j = None
        if self._valid_s > 0.0:
            energy_j = self._energy_j * (self._valid_s + void_s) / self._valid_s + self._before_j
        elif void_s == 0.0 and self._meter is not None:
            energy_j = self._before_j
        time_s, limit_w = own_s + self._before_s, self._limit_w()
        return Spent(gpu=self._gpu, time_s=time_s, energy_j=energy_j, limit_w=limit_w, void_s=void_s)

    def close(self) -> None:
        """End; what was read last stays. Idempotent."""
        self._read_s = None
        self._end_sampling()

    def _limit_w(self) -> float | None:
        range_w = getattr(self._device, "power_limit_range_w", None)
        try:
            return getattr(self._device, "power_limit_w", None) if range_w is None else range_w[1]
        except FAILURES:  # a board that has none
            return None

    def _add(self, reading: WindowReading) -> None:
        if reading.energy_j is None:
            self._void_s += reading.time_s
        else:
            self._valid_s, self._energy_j = self._valid_s + reading.time_s, self._energy_j + reading.energy_j

    def _end_sampling(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None


def gone_on(rows: Sequence[Spent], own: Spent, rank: int = 0) -> list[Spent]:
    """All ranks' `rows`, at a time when that of `rank` is `own`: the others are taken to do as it does.

    For a rank that cannot ask the others: one of them may have failed.
    """
    if not rows:
        return [own]
    then = rows[rank]

    def later(row: Spent) -> Spent:
        if own.energy_j is None or then.energy_j is None or row.energy_j is None:
            return replace(row, time_s=max(row.time_s, own.time_s), energy_j=None)
        since_s, since_j = own.time_s - then.time_s, own.energy_j - then.energy_j
        return replace(row, time_s=row.time_s + since_s, energy_j=row.energy_j + since_j)

    return [own if index == rank else later(row) for index, row in enumerate(rows)]


def spent_by_all(rows: Sequence[Spent]) -> Spent:
    """The whole job's: time of the slowest rank, energy and limits over distinct GPUs; None where a rank's is."""
    energies = [(row.gpu, row.energy_j) for row in rows if row.energy_j is not None]
    limits = {row.gpu: row.limit_w for row in rows if row.limit_w is not None}
    return Spent(
        gpu=0.0,
        time_s=max(row.time_s for row in rows),
        energy_j=sum_over_gpus(energies) if len(energies) == len(rows) else None,
        limit_w=sum(limits.values()) if len(limits) == len({row.gpu for row in rows}) else None,
        void_s=max(row.void_s for row in rows),
    )


class JobMeter:
    """Time and energy of all ranks together, from here on.

    Args:
        trainer: whose ranks.
        device: this rank's.
        before: `time_s` and `energy_j` of the whole job in processes before this one; {} where there were none.
    """

    def __init__(self, trainer: Any, device: Any, before: Mapping[str, Any]) -> None:
        before_s, before_j = float(before.get("time_s", 0.0)), before.get("energy_j", 0.0)
        # earlier energy is the whole job's: it counts on one rank; time is the slowest rank's: it counts on all
        own_j = before_j if trainer.is_global_zero or before_j is None else 0.0
        self._rank = trainer.global_rank
        self._own = RunMeter(device, gpu_identity(device, self._rank), (before_s, own_j))
        self._own.start()
        self._closed, self._rows = False, list[Spent]()  # of all ranks, as of the last look

    def read(self, trainer: Any) -> Spent:
        """What was spent until now, or until it was closed. Collective unless closed."""
        if not self._closed:
            self._rows = gather_objects(trainer, self._own.read())
        return spent_by_all(self._rows)

    def read_alone(self) -> Spent:
        """The same without asking the other ranks, one of which may have failed."""
        self._rows = gone_on(self._rows, self._own.read(), self._rank)
        return spent_by_all(self._rows)

    def close(self) -> None:
        """End. Idempotent."""
        self._closed = True
        self._own.close()
