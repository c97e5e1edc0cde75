"""`energy-lightning train` for real: a small Llama on two ranks, in a sweep of which one job must fail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

FILES = ["config.yaml", "frontier.png", "measurements.jsonl", "metrics.csv", "plan.yaml", "summary.json"]
SMALL_LLAMA = ["model=llama", "model.config.hidden_size=32", "model.config.num_hidden_layers=2"]
SMALL_LLAMA += ["model.config.num_attention_heads=4", "model.config.num_key_value_heads=2"]
SHORT = ["data=text", "data.path=text.txt", "data.max_length=16", "data.batch_size=4", "trainer.max_steps=6"]
SHORT += ["trainer.limit_val_batches=1", "trainer.accelerator=cpu", "+trainer.enable_progress_bar=false"]
SHORT += ["profiler.warmup_steps=1", "profiler.measurements_per_step=200", "profiler.max_fraction=1.0"]


def train(python: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "text.txt").write_text("to be or not to be, that is the question\n" * 80)
    command = [python, "-m", "energy_lightning.app", "train", *SMALL_LLAMA, *SHORT, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def summary_of(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "summary.json").read_text())
    assert isinstance(values, dict)
    return values


@pytest.mark.slow
@pytest.mark.distributed
def test_a_sweep_over_two_ranks_with_an_unreachable_budget(tmp_path: Path, quick_python: str) -> None:
    two_ranks = ["trainer.devices=2", "tensor_parallel_size=2", "workload=llama3.2_3b_tp8"]
    budgets = ["budget=deadline", "budget.deadline=10.0,1e-9"]
    done = train(
        quick_python,
        tmp_path,
        "--multirun",
        *two_ranks,
        *budgets,
        "hydra.sweep.dir=sweep",
        "hydra.sweep.subdir=${hydra.job.num}",
    )
    assert done.returncode == 1, done.stderr
    good, bad = tmp_path / "sweep" / "0", tmp_path / "sweep" / "1"
    assert [name for name in FILES if not (good / name).is_file()] == [], done.stdout + done.stderr
    summary = summary_of(good)
    assert (summary["status"], summary["emulated"], summary["rehearsed"]) == ("completed", True, True)
    assert summary["mode"] == "full"
    rows = {row["label"]: row for row in summary["comparison"]}
    assert set(rows) == {"max frequency", "frequency only", "nanobatching only", "kareus"}
    assert rows["kareus"]["time_s"] <= 10.0
    assert rows["kareus"]["energy_j"] <= min(row["energy_j"] for row in rows.values())
    assert summary["num_steps"] == 6
    assert summary["plan"]["label"] == "kareus"
    assert summary["totals"]["emulated_total_energy_j"] > 0.0
    assert summary["validation_before"]["loss"] > 0 < summary["validation_after"]["loss"]
    assert "EMULATED" in done.stdout + done.stderr
    # The other job: says why, in one line on the terminal and in its summary.
    failed = summary_of(bad)
    assert failed["status"] == "failed"
    assert "1e-09" in failed["error"]
    assert f"error: {failed['error']}" in done.stderr
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["0", "1", "multirun.yaml"]


@pytest.mark.slow
def test_going_on_in_a_folder_measures_nothing_again(tmp_path: Path, quick_python: str) -> None:
    first = train(quick_python, tmp_path, "output_dir=run", "validate_first=false")
    assert first.returncode == 0, first.stderr
    rows = (tmp_path / "run" / "measurements.jsonl").read_text()
    second = train(quick_python, tmp_path, "output_dir=run", "validate_first=false", "budget=min_energy")
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "run" / "measurements.jsonl").read_text() == rows
    assert summary_of(tmp_path / "run")["budget"] == "min_energy"


@pytest.mark.slow
def test_a_mistake_costs_no_traceback(tmp_path: Path, quick_python: str) -> None:
    done = train(quick_python, tmp_path, "output_dir=run", "tensor_parallel_size=3")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert summary_of(tmp_path / "run")["error"] in done.stderr
    assert "tensor_parallel_size" in done.stderr
