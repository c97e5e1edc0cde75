"""The emulated A40 and A100-80GB against published profiles of GPT-3's instructions; skipped where they are not there.

Folder: $ENERGY_LIGHTNING_DATA, else ../shared/data beside the checkout. Thresholds are promises, not the fit itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from energy_lightning.emulation import GPU
from energy_lightning.emulation.published_instructions import (
    INSTRUCTIONS_FILE,
    InstructionRows,
    cheapest_mhz,
    compare_instruction,
    load_instructions,
    measured_board,
)

FOLDER = Path(os.environ.get("ENERGY_LIGHTNING_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
measured = pytest.mark.skipif(
    not (FOLDER / INSTRUCTIONS_FILE).is_file(), reason=f"no published profiles in {FOLDER}; set ENERGY_LIGHTNING_DATA"
)
GPUS = ("a40", "a100-sxm4-80gb")


def profiles(gpu: str) -> list[InstructionRows]:
    return [rows for rows in load_instructions(FOLDER / INSTRUCTIONS_FILE) if rows.gpu == gpu]


@measured
@pytest.mark.parametrize(("gpu", "num_rows"), [("a40", 960), ("a100-sxm4-80gb", 608)])
def test_time_and_energy_of_every_instruction(gpu: str, num_rows: int) -> None:
    own = profiles(gpu)
    assert sum(len(rows.stages) * len(rows.time_s) for rows in own) >= num_rows
    for rows in own:
        time_mape, energy_mape = compare_instruction(measured_board(GPU.load(gpu)), rows).mape()
        assert time_mape <= 0.04, rows.name
        assert energy_mape <= 0.04, rows.name


@measured
@pytest.mark.parametrize("gpu", GPUS)
def test_the_clock_of_least_energy_of_every_instruction_and_stage(gpu: str) -> None:
    own = [(rows, compare_instruction(GPU.load(gpu), rows).predicted_energy_j) for rows in profiles(gpu)]
    for rows, energy_j in own:
        assert cheapest_mhz(rows, energy_j) == pytest.approx(cheapest_mhz(rows, rows.energy_j), abs=60), rows.name
    for (forward, forward_j), (backward, backward_j) in zip(own[::2], own[1::2], strict=True):
        assert (forward.phase, backward.phase, forward.stages) == ("forward", "backward", backward.stages)
        measured_mhz = cheapest_mhz(forward, forward.energy_j + backward.energy_j)
        assert cheapest_mhz(forward, forward_j + backward_j) == pytest.approx(measured_mhz, abs=60), forward.stages


@measured
def test_the_power_limit_makes_the_top_200_mhz_of_an_a40_useless_as_measured() -> None:
    forward, backward = profiles("a40")[:2]
    for rows in (forward, backward):
        comparison = compare_instruction(GPU.load("a40"), rows)
        top = rows.frequency_mhz >= 1740 - 200
        for time_s in (comparison.time_s[top], comparison.predicted_time_s[top]):
            assert np.ptp(time_s) < 0.025 * time_s[-1]  # the clocks differ by 12%
        assert (comparison.predicted_energy_j <= 300.0 * comparison.predicted_time_s).all()


@measured
def test_a_wrong_constant_is_noticed() -> None:
    backward = profiles("a40")[1]
    uncached = GPU.load("a40").with_constants(memory__cache_bytes_per_s=1e15)
    assert compare_instruction(uncached, backward).mape()[0] > 0.04
    a100 = measured_board(GPU.load("a100-sxm4-80gb"))
    flat = a100.with_constants(power__voltage_floor=1.0)
    forward = profiles("a100-sxm4-80gb")[0]
    assert cheapest_mhz(forward, compare_instruction(flat, forward).predicted_energy_j) > 1080 + 60


def test_stages_with_the_same_figures_are_read_once(tmp_path: Path) -> None:
    head = "model,gpu,tp,pp,dtype,stage,instruction,freq_mhz,time_s,energy_j,avg_power_w"
    figures = {0: ("0.2", "0.1"), 1: ("0.2", "0.1"), 2: ("0.21", "0.1"), 3: ("0.2", "0.1")}
    rows = [
        f"bloom-176b,A40-48GB,8,4,bf16,{stage},{phase},{clock},{time_s},5.0,0"
        for stage, times in figures.items()
        for phase in ("forward", "backward")
        for clock, time_s in zip(("1740", "1200"), reversed(times), strict=True)
    ]
    path = tmp_path / "profile.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    read = load_instructions(path)
    assert [(r.stages, r.phase) for r in read] == [
        ((0, 1, 3), "forward"),
        ((0, 1, 3), "backward"),
        ((2,), "forward"),
        ((2,), "backward"),
    ]
    assert [r.frequency_mhz.tolist() for r in read] == [[1200.0, 1740.0]] * 4  # ascending
    assert read[2].time_s.tolist() == [0.21, 0.1]
    workload = read[0].workload
    assert (workload.model.name, workload.tensor_parallel, workload.pipeline_parallel) == ("bloom_176b", 8, 4)
    assert (read[0].gpu, workload.sequence_length, workload.communication) == ("a40", 2048, False)


def test_cheapest_clock_of_a_parabola() -> None:
    rows = InstructionRows("a40", None, (0,), "forward", np.arange(900.0, 1500.0, 15.0), np.ones(40), np.ones(40))  # type: ignore[arg-type]
    assert cheapest_mhz(rows, (rows.frequency_mhz - 1003.0) ** 2) == 1005.0


def test_only_the_packaged_limit_differs_from_the_measured_board() -> None:
    a100, a40 = GPU.load("a100-sxm4-80gb"), GPU.load("a40")
    assert (a100.power_limit_w, measured_board(a100).power_limit_w) == (400.0, 500.0)
    assert measured_board(a40) == a40
