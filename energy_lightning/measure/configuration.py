"""What is measured (one partition at one frequency under one schedule) and what several measurements of it say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from energy_lightning.frontier.noise import invalid_reason
from energy_lightning.types import EnergyLightningError, Measurement, MeasurementError, Schedule


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """One configuration of one partition.

    Attributes:
        partition: the partition's name: its key, with ".sequential" when it is not nanobatched.
        frequency_mhz: SM clock to lock.
        schedule: how its collective is launched; None for a partition without one to schedule.
    """

    partition: str
    frequency_mhz: int
    schedule: Schedule | None = None

    def to_dict(self) -> dict[str, Any]:
        """The configuration without the partition's name, as plain values."""
        schedule = {} if self.schedule is None else self.schedule.to_dict()
        return {"frequency_mhz": self.frequency_mhz, **schedule}

    @classmethod
    def from_dict(cls, partition: str, data: Mapping[str, Any]) -> PartitionConfig:
        """Inverse of `to_dict`. Raises MeasurementError on unknown keys or impossible values."""
        schedule = {key: value for key, value in data.items() if key != "frequency_mhz"}
        frequency_mhz = data.get("frequency_mhz")
        if isinstance(frequency_mhz, bool) or not isinstance(frequency_mhz, int) or frequency_mhz <= 0:
            raise MeasurementError(f"frequency_mhz must be a whole number of MHz > 0, got {frequency_mhz!r}")
        try:
            return cls(partition, frequency_mhz, Schedule.from_dict(schedule) if schedule else None)
        except EnergyLightningError as error:
            raise MeasurementError(f"configuration of {partition}: {error}") from error

    def __str__(self) -> str:
        return f"{self.partition} at {self.frequency_mhz} MHz" + (f" with {self.schedule}" if self.schedule else "")


def fault_of(time_s: float, energy_j: float | None) -> str | None:
    """Why a (time, energy) pair cannot be a measurement, or None. An energy of None (not known) is no fault."""
    return invalid_reason(time_s, 1.0 if energy_j is None else energy_j)


def merge_trials(trials: Sequence[Measurement]) -> Measurement:
    """One measurement from repeats of one configuration: means and spreads over the usable ones.

    Invalid trials and impossible values are left out. Trials with an energy win over those without one; sources are
    never mixed. Raises MeasurementError, counting the reasons, when nothing usable is left.
    """
    faults = [trial.invalid_reason or fault_of(trial.time_s, trial.energy_j) for trial in trials]
    usable = [trial for trial, fault in zip(trials, faults, strict=True) if fault is None]
    if not usable:
        counted = ", ".join(f"{count} x {fault}" for fault, count in Counter(faults).items()) or "no trials"
        raise MeasurementError(f"none of {len(trials)} repeats is usable: {counted}. Measure this configuration again.")
    usable = [trial for trial in usable if trial.energy_j is not None] or usable
    if len({trial.source for trial in usable}) > 1:
        sources = ", ".join(sorted({trial.source for trial in usable}))
        raise MeasurementError(f"repeats come from different energy sources ({sources}): keep those of one source")
    return usable[0] if len(usable) == 1 else _merged(usable)


def _merged(usable: Sequence[Measurement]) -> Measurement:
    weights = [trial.num_repeats for trial in usable]
    time_s, time_std_s = _mean_and_std([trial.time_s for trial in usable], weights)
    energies_j = [trial.energy_j for trial in usable if trial.energy_j is not None]
    energy_j, energy_std_j = _mean_and_std(energies_j, weights) if energies_j else (None, 0.0)
    return replace(
        usable[-1],
        time_s=time_s,
        energy_j=energy_j,
        num_repeats=sum(weights),
        time_std_s=time_std_s,
        energy_std_j=energy_std_j,
    )


def _mean_and_std(values: Sequence[float], weights: Sequence[int]) -> tuple[float, float]:
    """Weighted mean and sample standard deviation (0.0 for fewer than two repeats)."""
    total = sum(weights)
    mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total
    squares = math.fsum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True))
    return mean, math.sqrt(squares / (total - 1)) if total > 1 else 0.0
