"""The demo's story follows what its run found; the training is replaced, the big job is really rehearsed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from energy_lightning.app import demo, main
from energy_lightning.app.folder import RunFolder
from energy_lightning.types import PhasePlan, Plan

NANOBATCHED = Plan.single_stage(PhasePlan("forward", 1200, True), PhasePlan("backward", 1200, True))


@pytest.mark.parametrize(("plan", "explained"), [(Plan.sequential(1140), True), (NANOBATCHED, False), (None, False)])
def test_the_demo_tells_what_happened(
    plan: Plan | None,
    explained: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "mine"

    def train(overrides: Sequence[str]) -> int:
        assert overrides[-1] == f"output_dir={folder}"
        RunFolder(folder).update(status="completed", plan=None if plan is None else plan.to_dict())
        return 0

    monkeypatch.setattr(demo, "train", train)
    assert main(["demo", f"output_dir={folder}"]) == 0
    output = capsys.readouterr().out
    assert ("keeps sequential execution" in output) == explained
    assert "EMULATED" in output
    assert (folder / "llama3.2_3b_tp8.png").is_file()


def test_a_failed_training_ends_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "train", lambda overrides: 1)
    assert main(["demo"]) == 1
    assert "Rehearse" not in capsys.readouterr().out


def test_the_big_jobs_plans_keep_their_promises() -> None:
    outcome = demo.big_job()
    limit_s = outcome.references["max frequency"].time_s * 1.05
    assert outcome.chosen.time_s <= limit_s
    within = [point for point in outcome.frontiers["kareus"] if point.time_s <= limit_s]
    assert outcome.chosen.energy_j == min(point.energy_j for point in within)
    assert outcome.references["frequency only"].energy_j >= outcome.chosen.energy_j
