"""The file that remembers what training steps cost under each power limit, per GPU and job shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from energy_lightning.callbacks.job import job_of
from energy_lightning.device import has_emulated_figures
from energy_lightning.emulation import GPU
from energy_lightning.measure import AppendLog, library_versions, run_hash
from energy_lightning.recurring import PowerLimitSample, RecurringError
from energy_lightning.types import MeasurementError

FILE_NAME = "power_limits.jsonl"


class PowerProfile:
    """Rows of one job in a JSON-lines file; rows of other jobs stay there and are not used.

    A row: asked_w and power_limit_w (what the GPU reported), time_s of one step, energy_j of one step over all GPUs,
    temperature_c, num_steps (0: the GPU made of asked_w a limit that was known), emulated; with the job's first row a
    readable description of it.

    Raises MeasurementError where the file is not ours; it is left untouched.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self.run, self.key = dict(run), run_hash(run)
        self._log = AppendLog(path, what="the power-limit profiles in it")
        self._described = False
        self.known: dict[float, PowerLimitSample] = {}
        """Asked limit in W -> what was measured, the latest where a limit was measured twice."""
        for line, row in self._log.read():
            if row.get("key") != self.key:
                continue
            self._described = True
            try:
                self.known[float(row["asked_w"])] = _sample(row)
            except (KeyError, TypeError, ValueError) as error:
                raise MeasurementError(
                    f"{path}, line {line}: is no row of a power-limit profile ({error}). Remove the line, or move the "
                    "file away; it was left untouched"
                ) from error

    @property
    def path(self) -> Path:
        """The file."""
        return self._log.path

    def add(self, asked_w: float, sample: PowerLimitSample, temperature_c: float | None, *, num_steps: int) -> None:
        """Append a row and keep it. Raises OSError where it cannot be written (it is then kept in memory)."""
        self.known[asked_w] = sample
        row = {
            "asked_w": asked_w,
            "power_limit_w": sample.power_limit_w,
            "time_s": sample.time_s,
            "energy_j": sample.energy_j,
            "temperature_c": temperature_c,
            "num_steps": num_steps,
            "emulated": bool(self.run.get("emulated", False)),
        }
        self._log.append([{"key": self.key, **({} if self._described else {"run": self.run}), **row}])
        self._described = True


def default_profile(trainer: Any) -> Path:
    """Where the profiles of a run are kept that names no file."""
    job = job_of(trainer)
    return (Path(trainer.default_root_dir) if job is None else job.output_dir) / FILE_NAME


def describe_job(trainer: Any, pl_module: Any, batch: Any, devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a profile depends on, as plain values. `devices`: `describe_device` of every distinct GPU.

    Lengths of a batch beyond its first dimension count by octaves: padded batches of one job differ a little.
    """
    job = job_of(trainer)
    parameters = list(pl_module.parameters()) if hasattr(pl_module, "parameters") else []
    plan = None if job is None or job.plan is None else run_hash(job.plan.to_dict())
    return {
        "gpus": sorted(map(run_hash, devices)),
        "gpu": devices[0]["gpu"],
        "emulated": any(device["emulated"] for device in devices),
        "module": type(pl_module).__name__,
        "num_parameters": sum(parameter.numel() for parameter in parameters),
        "precision": str(getattr(trainer, "precision", None)),
        "batch": _shape_of(batch),
        "num_processes": trainer.world_size,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "plan": plan,
        "versions": library_versions(),
    }


def describe_device(device: Any) -> dict[str, Any]:
    """A GPU and its energy source, as plain values; of an emulated one also constants and workload."""
    model, workload = getattr(device, "gpu", None), getattr(device, "workload", None)
    constants = run_hash(asdict(model)) if device.emulated and isinstance(model, GPU) else None
    return {
        "gpu": device.name,
        "emulated": has_emulated_figures(device),
        "source": device.energy_source,
        "constants": constants,
        "workload": run_hash(workload.key()) if device.emulated and workload is not None else None,
    }


def _shape_of(batch: Any) -> list[int] | None:
    """Shape of the first tensor in a batch; lengths after the first dimension rounded up to powers of two."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return [size if axis == 0 or size < 1 else 1 << (size - 1).bit_length() for axis, size in enumerate(shape)]
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((found for part in parts if (found := _shape_of(part)) is not None), None)


def _sample(row: Mapping[str, Any]) -> PowerLimitSample:
    values = [row["power_limit_w"], row["time_s"], row["energy_j"]]
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        raise RecurringError(f"power_limit_w, time_s and energy_j must be numbers, got {values}")
    limit_w, time_s, energy_j = map(float, values)
    if not math.isfinite(float(row["asked_w"])):
        raise RecurringError(f"asked_w must be finite, got {row['asked_w']!r}")
    return PowerLimitSample(power_limit_w=limit_w, time_s=time_s, energy_j=energy_j)
