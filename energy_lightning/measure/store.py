"""measurements.jsonl: every measurement ever made here, one row each, reused only by a run of the same kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from energy_lightning.measure.configuration import PartitionConfig, fault_of, merge_trials
from energy_lightning.measure.jsonl import AppendLog
from energy_lightning.measure.run_key import run_hash
from energy_lightning.types import DeviceMode, EnergySource, Measurement, MeasurementError

_VALUES = (
    "time_s",
    "energy_j",
    "num_repeats",
    "time_std_s",
    "energy_std_j",
    "source",
    "temperature_c",
    "requested_mhz",
    "actual_mhz",
    "invalid_reason",
)


class MeasurementStore:
    """The measurements of one kind of run, in memory and on disk.

    Rows of other runs (another GPU, shape, parallelism or library version) and of other energy sources stay in the
    file and are not reused. Only rank 0 opens its store writable; the others keep theirs in memory.

    Args:
        path: measurements.jsonl; read now if it exists, written by `add`.
        run: readable description of the run (see `describe_run`).
        source: the energy source in use; rows of another source are not reused.
        writable: False keeps additions in memory.
        mode: tells what the device permits when a row is written; the file keeps it, nothing depends on it.

    Raises:
        MeasurementError: the file is foreign or unreadable; names file, line and remedy, leaves it untouched.
    """

    def __init__(
        self,
        path: Path | str,
        run: Mapping[str, Any],
        *,
        source: EnergySource,
        writable: bool = True,
        mode: Callable[[], DeviceMode] | None = None,
    ) -> None:
        self.run, self.key, self.source = dict(run), run_hash(run), source
        self._mode, self.writable = mode, writable
        """Whether `add` writes; may be turned off, e.g. when the disk is full."""
        self._log = AppendLog(path, what="the measurements in it")
        self._trials: dict[PartitionConfig, list[Measurement]] = {}
        self._described, self.num_other_rows = False, 0
        for line, row in self._log.read():
            self._load(row, f"{self._log.path}, line {line}")

    @property
    def path(self) -> Path:
        """The file."""
        return self._log.path

    @property
    def num_rows(self) -> int:
        """Measurements of this run, invalid ones included."""
        return sum(len(trials) for trials in self._trials.values())

    def add(self, config: PartitionConfig, measurement: Measurement) -> None:
        """Keep one measurement and append its row.

        Raises MeasurementError when its energy source is another one, OSError when the row cannot be written (the
        measurement is then kept in memory).
        """
        if measurement.source != self.source:
            raise MeasurementError(
                f"{config} was measured by {measurement.source!r} in a run that measures by {self.source!r}: "
                "sources are never mixed"
            )
        self._trials.setdefault(config, []).append(measurement)
        if self.writable:
            self._log.append([self._row(config, measurement)])
            self._described = True

    def known(self, config: PartitionConfig) -> Measurement | None:
        """What is known about a configuration: its repeats merged, or its last failure, or None if never measured."""
        trials = self._trials.get(config)
        if not trials:
            return None
        if any(trial.valid and fault_of(trial.time_s, trial.energy_j) is None for trial in trials):
            return merge_trials(trials)
        return trials[-1]

    def measurements(self, partition: str | None = None) -> dict[PartitionConfig, Measurement]:
        """Every configuration (of one partition) with what is known about it, in the order first measured."""
        wanted = [config for config in self._trials if partition in (None, config.partition)]
        return {config: known for config in wanted if (known := self.known(config)) is not None}

    def _row(self, config: PartitionConfig, measurement: Measurement) -> dict[str, Any]:
        values = {name: getattr(measurement, name) for name in _VALUES}
        return {
            "key": self.key,
            **({} if self._described else {"run": self.run}),
            "partition": config.partition,
            "config": config.to_dict(),
            "emulated": measurement.source == "emulated" or bool(self.run.get("emulated")),
            **({} if self._mode is None else {"mode": self._mode()}),
            **values,
        }

    def _load(self, row: Mapping[str, Any], where: str) -> None:
        if not isinstance(row.get("key"), str):
            raise MeasurementError(f"{where}: is not one of our rows (no key 'key'). Move the file away.")
        if row["key"] != self.key or row.get("source") != self.source:
            self.num_other_rows += 1
            self._described |= row["key"] == self.key
            return
        self._described = True
        try:
            config, measurement = _parse(row)
        except (MeasurementError, KeyError, TypeError) as error:
            raise MeasurementError(f"{where}: {error}. Remove the line, or move the file away.") from error
        self._trials.setdefault(config, []).append(measurement)


def _parse(row: Mapping[str, Any]) -> tuple[PartitionConfig, Measurement]:
    if not isinstance(row["partition"], str) or not isinstance(row["config"], Mapping):
        raise MeasurementError(
            f"needs a partition name and a config mapping, got {row['partition']!r}, {row['config']!r}"
        )
    values = {name: row[name] for name in _VALUES if name in row}
    for name in ("time_s", "energy_j", "time_std_s", "energy_std_j"):
        value = values.get(name)
        allowed_none = name == "energy_j"
        if not (value is None and allowed_none) and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise MeasurementError(f"{name} must be a number, got {value!r}")
    measurement = Measurement(**values)
    fault = fault_of(measurement.time_s, measurement.energy_j)
    if measurement.valid and fault is not None:
        raise MeasurementError(f"{fault} in a row not marked invalid")
    if not math.isfinite(measurement.time_s):
        raise MeasurementError(f"time_s must be finite, got {measurement.time_s!r}")
    return PartitionConfig.from_dict(row["partition"], row["config"]), measurement
