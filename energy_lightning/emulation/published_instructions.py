"""Published profiles of single instructions beside the emulator's predictions: what calibration fits and tests check.

File (figures of the Perseus artifact, Apache-2.0):
    perseus_instruction_profile.csv    one forward or backward of one pipeline stage at one locked clock, one GPU: time
                                       and board energy (static included)

What was measured, read off the figures themselves: one sequence of 2048 tokens a microbatch; nothing recomputed
(backward takes 1.8 to 2.4 forwards); all stages but the last alike, with the embedding left out, head and loss on the
last; no collectives (the A40's over PCIe would take three quarters of the measured forward, and what is measured
already needs the products at 95% of the peak): one GPU's share without its peers. The A100-80GB drew 480 W on average:
the 500 W version of that board.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from energy_lightning.emulation.estimates import emulate_phase_curve
from energy_lightning.emulation.gpu import GPU, Floats
from energy_lightning.emulation.published import Comparison
from energy_lightning.types import Phase, PhasePlan
from energy_lightning.workload import Workload

INSTRUCTIONS_FILE = "perseus_instruction_profile.csv"
_GPUS = {"A40-48GB": "a40", "A100-80GB-SXM": "a100-sxm4-80gb"}
_MEASURED_LIMIT_W = {"a100-sxm4-80gb": 500.0}
_SEQUENCE_LENGTH = 2048


@dataclass(frozen=True)
class InstructionRows:
    """One instruction of some stages at n clocks, ascending; arrays (n,), energy per GPU.

    `stages`: all with these very figures.
    """

    gpu: str
    workload: Workload
    stages: tuple[int, ...]
    phase: Phase
    frequency_mhz: Floats
    time_s: Floats
    energy_j: Floats

    @property
    def name(self) -> str:
        """GPU, model, stages and instruction, for tables."""
        first, last = self.stages[0], self.stages[-1]
        stages = f"stage {first}" if first == last else f"stages {first} to {last}"
        return f"{self.gpu} {self.workload.model.name} {stages} {self.phase}"


def load_instructions(path: Path) -> list[InstructionRows]:
    """The profiles of `path` in the file's order; stages with equal figures are merged."""
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            keys = ("gpu", "model", "tp", "pp", "dtype", "stage", "instruction")
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    merged: list[InstructionRows] = []
    for rows in groups.values():
        new = _instruction_rows(sorted(rows, key=lambda row: float(row["freq_mhz"])))
        same = next((i for i, known in enumerate(merged) if _alike(known, new)), None)
        if same is None:
            merged.append(new)
        else:
            merged[same] = InstructionRows(new.gpu, new.workload, (*merged[same].stages, *new.stages), *_figures(new))
    return merged


def _figures(rows: InstructionRows) -> tuple[Phase, Floats, Floats, Floats]:
    return rows.phase, rows.frequency_mhz, rows.time_s, rows.energy_j


def _alike(one: InstructionRows, other: InstructionRows) -> bool:
    same_job = (one.gpu, one.workload, one.phase) == (other.gpu, other.workload, other.phase)
    return same_job and all(np.array_equal(a, b) for a, b in zip(_figures(one)[1:], _figures(other)[1:], strict=True))


def _instruction_rows(rows: Sequence[Mapping[str, str]]) -> InstructionRows:
    first = rows[0]
    workload = Workload.preset(
        first["model"].replace("-", "_"),
        tensor_parallel=int(first["tp"]),
        pipeline_parallel=int(first["pp"]),
        microbatch_size=1,
        sequence_length=_SEQUENCE_LENGTH,
        dtype=first["dtype"],
        communication=False,
    )
    frequency_mhz, time_s, energy_j = (
        np.array([float(row[name]) for row in rows]) for name in ("freq_mhz", "time_s", "energy_j")
    )
    phase: Phase = "forward" if first["instruction"] == "forward" else "backward"
    return InstructionRows(
        _GPUS[first["gpu"]], workload, (int(first["stage"]),), phase, frequency_mhz, time_s, energy_j
    )


def measured_board(gpu: GPU) -> GPU:
    """`gpu` with the power limit of the board that was measured, where the packaged model's is another."""
    return gpu.with_constants(power__limit_w=_MEASURED_LIMIT_W.get(gpu.name, gpu.power_limit_w))


def compare_instruction(gpu: GPU, rows: InstructionRows) -> Comparison:
    """Time and energy of one execution at each clock of `rows`; the first of its stages without an embedding."""
    stage = rows.stages[-1] if len(rows.stages) > 1 else rows.stages[0]
    frequencies = [int(f) for f in rows.frequency_mhz]
    time_s, energy_j = emulate_phase_curve(rows.workload, gpu, PhasePlan(rows.phase), frequencies, stage=stage)
    return Comparison(rows.time_s, rows.energy_j, time_s, energy_j)


def cheapest_mhz(rows: InstructionRows, energy_j: Floats) -> float:
    """The clock of `rows` with the least `energy_j` (n,)."""
    return float(rows.frequency_mhz[np.argmin(energy_j)])
