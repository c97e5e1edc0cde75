"""Published measurements of real A100s beside the emulator's predictions: what calibration fits and tests check.

Files (figures of the Kareus artifact, Apache-2.0):
    kareus_a100_plans.jsonl    frequency plans of 16 A100-SXM4-40GB: pipelines of 2 stages with 15 and 13 layers,
                               activation checkpointing. Time is the pipeline's critical path (no P2P, gradient or
                               optimizer time); dynamic energy is that of one rank a stage, summed over the stages,
                               less blocking power x time
    overlap_microbench.csv     the attention block of `microbenchmark`, overlapped with an all-reduce
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from energy_lightning.emulation.estimates import emulate_partitions
from energy_lightning.emulation.gpu import GPU, Floats
from energy_lightning.emulation.microbenchmark import attention_microbenchmark
from energy_lightning.emulation.pipeline import emulate_iteration, place_phases
from energy_lightning.emulation.throttling import unlimited
from energy_lightning.types import Phase, Plan
from energy_lightning.workload import Workload

PLANS_FILE, OVERLAP_FILE = "kareus_a100_plans.jsonl", "overlap_microbench.csv"
_LAYERS_PER_STAGE = (15, 13)
_DEFAULT_CLOCK_MHZ = 1410
Curve = tuple[Floats, Floats]
Order = tuple[tuple[tuple[Phase, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measured and predicted values of n rows: time (s) and energy (J), each (n,)."""

    time_s: Floats
    energy_j: Floats
    predicted_time_s: Floats
    predicted_energy_j: Floats

    @property
    def time_error(self) -> Floats:
        """Relative error of the predicted time, (n,)."""
        return self.predicted_time_s / self.time_s - 1.0

    @property
    def energy_error(self) -> Floats:
        """Relative error of the predicted energy, (n,)."""
        return self.predicted_energy_j / self.energy_j - 1.0

    def mape(self) -> tuple[float, float]:
        """Mean absolute relative error of time and of energy."""
        return float(np.abs(self.time_error).mean()), float(np.abs(self.energy_error).mean())


@dataclass(frozen=True)
class FrontierRows:
    """The plans of one method and job. `orders[i][stage]` lists (phase, frequency_mhz) in execution order."""

    method: str
    workload: Workload
    orders: tuple[Order, ...]
    time_s: Floats
    dynamic_energy_j: Floats

    @property
    def name(self) -> str:
        """Method and job, for tables."""
        w = self.workload
        return f"{self.method} {w.model.name} cp{w.context_parallel} tp{w.tensor_parallel} {w.sequence_length}"

    @property
    def nanobatched(self) -> bool:
        """Whether the method runs two nanobatches."""
        return self.method != "perseus"


def load_frontiers(path: Path, methods: Sequence[str] = ("perseus", "nanobatch_perseus")) -> list[FrontierRows]:
    """Plans of `methods`, grouped by method and job, in the file's order."""
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["method"] in methods:
            keys = ("method", "model", "pp", "cp", "tp", "microbatch_size", "num_microbatches", "seq_len")
            groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    return [_frontier_rows(rows) for rows in groups.values()]


def _frontier_rows(rows: list[dict[str, object]]) -> FrontierRows:
    first = rows[0]
    workload = Workload.preset(
        str(first["model"]),
        tensor_parallel=first["tp"],
        context_parallel=first["cp"],
        pipeline_parallel=first["pp"],
        microbatch_size=first["microbatch_size"],
        num_microbatches=first["num_microbatches"],
        sequence_length=first["seq_len"],
        activation_checkpointing=True,
        layers_per_stage=_LAYERS_PER_STAGE,
    )
    orders = tuple(tuple(tuple((p, f) for p, f in stage) for stage in row["freq_plan"]) for row in rows)  # type: ignore[attr-defined]
    time_s = np.array([row["time_s"] for row in rows], dtype=np.float64)
    energy_j = np.array([row["dynamic_energy_j"] for row in rows], dtype=np.float64)
    return FrontierRows(str(first["method"]), workload, orders, time_s, energy_j)


def _phase_curves(gpu: GPU, rows: FrontierRows, frequencies_mhz: Sequence[int]) -> dict[tuple[int, str], Curve]:
    """`emulate_phase_curve` of every (stage, phase) below the power limit, with equal partitions emulated once."""
    free, known, curves = unlimited(gpu), {}, {}
    for stage in range(rows.workload.pipeline_parallel):
        for phase in get_args(Phase):
            total = np.zeros((2, len(frequencies_mhz)))
            for partition in rows.workload.partitions(phase, stage=stage, nanobatched=rows.nanobatched):
                work = (partition.operators, partition.collective, partition.launch_points[:1])
                if work not in known:
                    launch = work[2][0] if work[2] else None
                    known[work] = np.stack(
                        emulate_partitions(*work[:2], free, frequency_mhz=frequencies_mhz, launch=launch)
                    )
                total += partition.count * known[work]
            curves[stage, phase] = (total[0], total[1])
    return curves


def compare_frontier(gpu: GPU, rows: FrontierRows) -> Comparison:
    """Critical path and dynamic energy of each plan (library defaults for the collectives)."""
    frequencies = sorted({f for order in rows.orders for stage in order for _, f in stage})
    index = {f: i for i, f in enumerate(frequencies)}
    curves = _phase_curves(gpu, rows, frequencies)
    times, energies = np.zeros(len(rows.orders)), np.zeros(len(rows.orders))
    for i, order in enumerate(rows.orders):
        durations = [[(p, float(curves[s, p][0][index[f]])) for p, f in stage] for s, stage in enumerate(order)]
        times[i] = max(placed[-1][2] for placed in place_phases(durations))
        for s, stage in enumerate(order):
            for phase, frequency in stage:
                time_s, energy_j = (curve[index[frequency]] for curve in curves[s, phase])
                energies[i] += energy_j - gpu.blocking_power_w * time_s
    return Comparison(rows.time_s, rows.dynamic_energy_j, times, energies)


def compare_iterations(gpu: GPU, rows: FrontierRows) -> Comparison:
    """Each plan through `emulate_iteration`, which adds transfers between stages, gradient reduction and optimizer."""
    plans = [Plan.from_stage_frequencies(order, nanobatched=rows.nanobatched) for order in rows.orders]
    found = [emulate_iteration(rows.workload, gpu, plan) for plan in plans]
    time_s = np.array([result.time_s for result in found])
    ranks = rows.workload.gpus_per_stage  # the rows count one rank a stage
    return Comparison(
        rows.time_s, rows.dynamic_energy_j, time_s, np.array([result.dynamic_energy_j / ranks for result in found])
    )


@dataclass(frozen=True)
class OverlapWindow:
    """Rows of one overlap window (None, None: no overlap); arrays (n,), energy per GPU."""

    launch: str | None
    join: str | None
    frequency_mhz: Floats
    sm_count: Floats
    block_threads: Floats
    time_s: Floats
    energy_j: Floats


def load_overlap(path: Path) -> list[OverlapWindow]:
    """The microbenchmark's rows by window. "default" clocks are the highest clock (its power limit is not reached)."""
    windows: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            windows.setdefault((row["overlap_start_op"], row["overlap_end_op"]), []).append(row)

    def column(rows: list[Mapping[str, str]], name: str, scale: float = 1.0) -> Floats:
        return np.array([float(row[name] or _DEFAULT_CLOCK_MHZ) * scale for row in rows])

    return [
        OverlapWindow(
            None if launch.startswith("none") else launch,
            None if join.startswith("none") else join,
            column(rows, "locked_freq_mhz"),
            column(rows, "comm_sm_count"),
            column(rows, "comm_block_threads"),
            column(rows, "time_s"),
            column(rows, "energy_2gpu_j", 0.5),
        )
        for (launch, join), rows in windows.items()
    ]


def compare_overlap(gpu: GPU, window: OverlapWindow) -> Comparison:
    """Time and energy of every row of `window`."""
    operators, collective = attention_microbenchmark()
    time_s, energy_j = emulate_partitions(
        operators,
        collective,
        gpu,
        frequency_mhz=window.frequency_mhz,
        sm_count=window.sm_count,
        block_threads=window.block_threads,
        launch=window.launch,
        join=window.join,
    )
    return Comparison(window.time_s, window.energy_j, time_s, energy_j)


def best_sm_counts(window: OverlapWindow, time_s: Floats) -> dict[tuple[float, float], float]:
    """SM count of the least `time_s` for each (clock, threads a block) of `window`."""
    best: dict[tuple[float, float], float] = {}
    for key in sorted(set(zip(window.frequency_mhz.tolist(), window.block_threads.tolist(), strict=True))):
        rows = np.flatnonzero((window.frequency_mhz == key[0]) & (window.block_threads == key[1]))
        best[key] = float(window.sm_count[rows[np.argmin(time_s[rows])]])
    return best
