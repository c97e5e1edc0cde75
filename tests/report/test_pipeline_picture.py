"""The pipeline's picture: bars that account for all time and energy, and a file for small and large pipelines."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from matplotlib import image

from energy_lightning.emulation import GPU, IterationResult, emulate_iteration
from energy_lightning.report.pipeline_picture import draw_pipeline, end_bars, phase_bars
from energy_lightning.types import PhasePlan, Plan
from energy_lightning.workload import Workload

A100 = GPU.load("a100-sxm4-40gb")


def iteration(num_stages: int, num_microbatches: int, **sizes: int) -> IterationResult:
    workload = Workload.preset(
        "llama3.2_1b", pipeline_parallel=num_stages, num_microbatches=num_microbatches, sequence_length=512, **sizes
    )
    stages = tuple((PhasePlan("forward", 1200), PhasePlan("backward", 1410 - 15 * s)) for s in range(num_stages))
    return emulate_iteration(workload, A100, Plan(stages))


@pytest.mark.parametrize("data_parallel", [1, 2])
def test_the_bars_hold_all_energy_of_a_stage(data_parallel: int) -> None:
    """Power x width of its bars and waiting in between, by the picture alone, is what the emulator counted."""
    result = iteration(3, 4, data_parallel=data_parallel)
    ends = {bar.stage: bar for bar in end_bars(result)}
    for number, (stage, lane) in enumerate(zip(result.stages, phase_bars(result), strict=True)):
        bars = [*lane, ends[number]]
        busy_s = sum(bar.end_s - bar.start_s for bar in bars)
        energy_j = sum((bar.end_s - bar.start_s) * bar.power_w for bar in bars)
        energy_j += (result.time_s - busy_s) * result.blocking_power_w
        assert energy_j == pytest.approx(stage.energy_j, rel=1e-9)
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(bars)), "no overlap in a lane"
        assert all(bar.stage == number for bar in bars)
    assert max(bar.end_s for bar in ends.values()) == pytest.approx(result.time_s)


def test_forward_and_backward_lie_at_different_heights() -> None:
    lane = phase_bars(iteration(2, 2))[1]
    parts = {phase.plan.phase: bar.part for phase, bar in zip(iteration(2, 2).stages[1].phases, lane, strict=True)}
    assert parts["forward"][0] < parts["backward"][0] < parts["forward"][1] < parts["backward"][1]


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(1, 1), (2, 8), (4, 40)])
def test_a_picture_grows_with_the_pipeline(tmp_path: Path, num_stages: int, num_microbatches: int) -> None:
    path = draw_pipeline(iteration(num_stages, num_microbatches), tmp_path / "new" / "pipeline.png", title="t")
    height_px, width_px, _ = image.imread(path).shape
    assert height_px >= 100 * num_stages
    assert width_px >= min(3000, 36 * 2 * num_microbatches)
