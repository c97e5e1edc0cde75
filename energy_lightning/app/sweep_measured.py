"""The GPUs that a sweep measures on, and its training runs on them: fewest GPUs first, each run beside its baseline."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energy_lightning.app.sweep_launch import Outcome, measured_outcomes
from energy_lightning.app.sweep_windows import WindowChoices
from energy_lightning.app.sweep_worker import Orders
from energy_lightning.types import ConfigError, DeviceError
from energy_lightning.workload.operators import DTYPE_BYTES

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs of this machine.

    Attributes:
        gpu_model: name of the first; count: how many are visible.
        emulated: NVML is emulated here, and so are all figures.
    """

    gpu_model: str
    count: int
    emulated: bool

    @classmethod
    def look(cls) -> Machine:
        """Raises DeviceError without a GPU or driver, ImportError without pynvml."""
        from energy_lightning.device.nvidia import NvidiaDevice

        device = NvidiaDevice(0)
        try:
            emulated = bool(getattr(device, "emulated_hardware", False))
            return cls(device.name, _count(), emulated)
        finally:
            device.close()


def machine_for(name: str) -> Machine | None:
    """The machine to measure on, or None where the GPU is to be emulated. `name`: nvidia, emulated, or auto.

    Raises:
        ConfigError: an unknown name. DeviceError: nvidia without a GPU.
    """
    if name == "emulated":
        return None
    if name not in ("nvidia", "auto"):
        raise ConfigError(f"unknown device.name={name}; choose one of auto, emulated, nvidia")
    try:
        return Machine.look()
    except (DeviceError, ImportError) as error:
        if name == "auto":
            return None
        raise DeviceError(f"{error}; device=emulated sweeps without a GPU") from error


def with_baselines(runs: Sequence[Settings]) -> list[Settings]:
    """`runs` and, for each on several GPUs, the same on one, which tells its speed-up; each once."""
    alone = [_alone(run) for run in runs]
    return list({tuple(run.items()): run for run in (*runs, *alone)}.values())


def with_speedups(rows: Sequence[Settings]) -> list[Settings]:
    """Rows with `speedup` over their baseline; NaN where that failed."""
    time_s = {_baseline_key(row): row["time_s"] for row in rows if row["num_gpus"] == 1}
    found = []
    for row in rows:
        alone_s = row["time_s"] if row["num_gpus"] == 1 else time_s.get(_baseline_key(row), math.nan)
        found.append({**row, "speedup": alone_s / row["time_s"]})
    return found


def measured_key(run: Settings, machine: Machine, options: Mapping[str, Any]) -> str:
    """The same for the same run, measured in the same way on the same GPU model."""
    return json.dumps({**run, "gpu_model": machine.gpu_model, "measured": dict(options)}, sort_keys=True)


def measure_training(
    runs: list[tuple[str, Settings]], machine: Machine, values: Mapping[str, Any], options: dict[str, Any]
) -> Iterator[Outcome]:
    """Outcomes of `runs` (key, settings), fewer GPUs first, else in random order (`seed`), which heat follows then."""
    order = np.random.default_rng(values["seed"]).permutation(len(runs))
    shuffled = [runs[i] for i in order]
    settings = dict(runs)
    for num_gpus in sorted({run["num_gpus"] for _, run in runs}):
        group = [(key, run) for key, run in shuffled if run["num_gpus"] == num_gpus]
        if num_gpus > machine.count:
            for key, _ in group:
                yield key, {"failed": f"needs {num_gpus} GPUs, {machine.count} visible"}
            continue
        orders = Orders("training", group, num_gpus, options)
        for key, content in measured_outcomes(orders, timeout_of(values)):
            yield key, _labelled(content, settings[key], machine)


def _labelled(content: dict[str, Any], run: Settings, machine: Machine) -> dict[str, Any]:
    if "row" not in content:
        return content
    row = {**run, "gpu_model": machine.gpu_model, **content["row"], "emulated": machine.emulated}
    return {"row": row}


def measuring_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """What all measured runs share; ConfigError for a setting that cannot be."""
    choices = WindowChoices.from_values(values)
    if values["dtype"] not in DTYPE_BYTES:
        raise ConfigError(f"unknown dtype={values['dtype']}; choose one of {', '.join(DTYPE_BYTES)}")
    return {
        "dtype": values["dtype"],
        "warmup": choices.warmup,
        "window_s": choices.window_s,
        "windows": choices.windows,
    }


def timeout_of(values: Mapping[str, Any]) -> float:
    """Longest time of a run in s; ConfigError unless it is a number > 0."""
    timeout_s = values["timeout_s"]
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0.0 < timeout_s < math.inf:
        raise ConfigError(f"timeout_s must be a number of seconds > 0, got {timeout_s!r}")
    return float(timeout_s)


def _alone(run: Settings) -> Settings:
    return {**run, "strategy": "single", "num_gpus": 1}


def _baseline_key(row: Settings) -> tuple[Any, ...]:
    names = ("num_layers", "hidden_size", "num_heads", "ffn_size", "sequence_length", "batch_size", "tokens")
    return tuple(row[name] for name in names)


def _count() -> int:
    import pynvml

    from energy_lightning.device.finding import gpu_uuids
    from energy_lightning.device.visible import visible_gpus

    pynvml.nvmlInit()
    return len(visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), gpu_uuids(pynvml)))
