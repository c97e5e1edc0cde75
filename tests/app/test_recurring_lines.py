"""What `energy-lightning recurring` says beside its table: what costs mean, who runs, under which limits runs were."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from energy_lightning.app import main
from energy_lightning.callbacks.recurring_run import RecurringRun
from energy_lightning.callbacks.target import Target
from energy_lightning.recurring import BatchSizeOptimizer, JointOptimizer


def said(store: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["recurring", f"store={store}", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def starting(*lines: str, word: str) -> list[str]:
    return [line for line in lines if line.startswith(word)]


def test_a_power_that_is_not_known_yet_is_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that has not begun its first batch: its GPUs' limits were shown as 1 W."""
    store = tmp_path / "job.sqlite"
    target = Target(monitor="val_loss", value=0.1, mode="min")
    run = RecurringRun([8, 16], store, {"default": 16}, target, lambda line: None)
    (line,) = starting(*said(store, capsys), word="cost: ")
    assert "0.5 x their power limits together x time; the limits are not known before the first run" in line
    run.begin(max_power_w=400.0, emulated=False)
    (line,) = starting(*said(store, capsys), word="cost: ")
    assert line == "cost: 0.5 x energy over all GPUs + 0.5 x 400 W x time"


def test_who_runs_is_told_with_how_long_it_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that ended before it observed runs on for six hours."""
    store = tmp_path / "job.sqlite"
    optimizer = BatchSizeOptimizer([8, 16], default=16, max_power_w=100.0, store=store)
    assert starting(*said(store, capsys), word="running") == []
    optimizer.suggest()
    (line,) = starting(*said(store, capsys), word="running")
    assert line == (
        "running: run 1 (batch size 16, 6.0 h left); one that is not heard of until then (should_stop, observe) is "
        "taken for dead"
    )


def store_of_two_limits(folder: Path) -> Path:
    """Under 250 W size 16 is cheaper than 8, which did most of its runs under 150 W."""
    optimizer = BatchSizeOptimizer([8, 16], default=16, max_power_w=250.0, eta=1.0, store=folder / "job.sqlite")
    for size, limit_w, energy_j in ((8, 150.0, 100.0), (8, 250.0, 130.0), (16, 250.0, 120.0)):
        for _ in range(5):
            optimizer.observe(size, energy_j=energy_j, time_s=1.0, reached_target=True, power_limit_w=limit_w)
    return folder / "job.sqlite"


def test_runs_under_several_limits_are_told_and_one_can_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for one, all runs counted as a prior: 115 J +- 43%, and 8 was the best under either."""
    store = store_of_two_limits(tmp_path)
    (line,) = starting(*said(store, capsys), word="power limits: ")
    assert line.startswith("power limits: batch size 8 ran under 150, 250 W, and its runs are compared as they are")
    lines = said(store, capsys, "power_limit_w=250")
    assert starting(*lines, word="power limits: ") == []
    assert "costs under 250 W a GPU" in lines[0]
    row = next(line.split() for line in lines if line.split()[:1] == ["16"])
    assert row[-1] == "best"
    assert row[4:6] == ["120.4", "J"]
    for power_limit_w in (None, 150.0, 250.0):
        assert BatchSizeOptimizer.of_store(store).best(power_limit_w=power_limit_w) == 16


def test_limits_that_the_profile_converts_need_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of_two_limits(tmp_path)
    JointOptimizer.of_store(store).profile(8, [(150.0, 1.0, 100.0), (250.0, 1.0, 130.0)])
    assert starting(*said(store, capsys), word="power limits: ") == []


def test_0_j_that_an_earlier_version_stored_by_time_alone_is_no_energy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "job.sqlite"
    optimizer = BatchSizeOptimizer([8, 16], default=16, max_power_w=100.0, eta=0.0, store=store)
    for energy_j in (0.0, 5.0):
        optimizer.observe(16, energy_j=energy_j, time_s=3.0, reached_target=True)
    assert "(energy not measured, 6 s)" in said(store, capsys, f"output_dir={tmp_path}/out")[-2]
    with (tmp_path / "out" / "runs.csv").open(encoding="utf-8", newline="") as file:
        assert [row["energy_j"] for row in csv.DictReader(file)] == ["", "5.0"]
