"""What a whole training run has cost so far: this rank's GPU, and all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from energy_lightning.callbacks.job import FAILURES
from energy_lightning.measure import EnergyMeter, sum_over_gpus


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
        device: what is measured.
        gpu: see `Spent`.
        before: what the same run spent in processes before this one; counted on the rank that has it.
    """

    def __init__(self, device: Any, gpu: float, before: tuple[float, float] = (0.0, 0.0)) -> None:
        self._device, self._gpu = device, gpu
        self._before_s, self._before_j = before
        self._meter: EnergyMeter | None = None
        self._valid_s = self._energy_j = self._void_s = 0.0

    def start(self) -> None:
        """Begin."""
        try:
            self._meter = EnergyMeter(self._device)
            self._meter.start(synchronize=True)
        except FAILURES:
            self.close()

    def read(self) -> Spent:
        """What was spent until now."""
        if self._meter is not None:
            try:
                reading = self._meter.lap()
            except FAILURES:
                self.close()
            else:
                if reading.energy_j is None:
                    self._void_s += reading.time_s
                else:
                    self._valid_s, self._energy_j = self._valid_s + reading.time_s, self._energy_j + reading.energy_j
        own_s = self._valid_s + self._void_s
        energy_j = None if self._valid_s == 0.0 else self._energy_j * own_s / self._valid_s + self._before_j
        range_w = getattr(self._device, "power_limit_range_w", None)
        limit_w = getattr(self._device, "power_limit_w", None) if range_w is None else range_w[1]
        return Spent(
            gpu=self._gpu, time_s=own_s + self._before_s, energy_j=energy_j, limit_w=limit_w, void_s=self._void_s
        )

    def close(self) -> None:
        """End background sampling; idempotent."""
        if self._meter is not None:
            self._meter.close()
            self._meter = None


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
