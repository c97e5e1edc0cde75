"""What all ranks make of their measurements of one configuration, and whether there is anything to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from energy_lightning.callbacks.job import JobStrategy
from energy_lightning.types import Measurement


def why_not(job: JobStrategy) -> str | None:
    """Why nothing can be profiled, or None."""
    if job.device is None:
        return "there is no device to measure"
    if job.workload is None:
        return "the model's shape is not known (no transformer blocks recognised); give KareusStrategy a workload"
    if job.workload.pipeline_parallel > 1:
        return "a pipeline's stages cannot be profiled in one job; plan it with 'energy-lightning plan'"
    if job.device.energy_source == "none":
        return f"{job.device.name} reports no energy"
    if not job.device.emulated and getattr(job, "partition_runner", None) is None:
        return (
            f"the workload is not that of the model that runs on {job.device.name}, so its partitions cannot be run; "
            "time and energy of the steps are still measured"
        )
    return None


def row_of(measurement: Measurement) -> tuple[float, float, float]:
    """(time_s, energy_j, valid): what the other ranks get to know of a measurement; NaN: no energy."""
    energy_j = math.nan if measurement.energy_j is None else measurement.energy_j
    return measurement.time_s, energy_j, float(measurement.valid)


def merge_ranks(own: Sequence[Measurement], rows: Sequence[Sequence[float]]) -> list[Measurement]:
    """This rank's measurements with the figures of all ranks: the slowest time, the mean energy, valid if all are.

    `rows` has one row a rank, (time_s, energy_j, valid) of each measurement one after the other.
    """
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(own), 3)
    return [_merged(measurement, table[:, i]) for i, measurement in enumerate(own)]


def _merged(own: Measurement, ranks: np.ndarray) -> Measurement:
    """`ranks` is (number of ranks, 3)."""
    failed = np.flatnonzero(ranks[:, 2] == 0.0)
    energy_j = float(ranks[:, 1].mean())
    return replace(
        own,
        time_s=float(ranks[:, 0].max()),
        energy_j=None if math.isnan(energy_j) else energy_j,
        invalid_reason=own.invalid_reason or (f"invalid on rank {failed[0]}" if len(failed) else None),
    )
