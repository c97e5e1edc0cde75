"""`energy-lightning recurring`: what a store knows, and stores that are not ours."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from energy_lightning.app import main
from energy_lightning.recurring import BatchSizeOptimizer, CostRule, JointOptimizer, Run, savings
from energy_lightning.report.recurring import cost_line

RUNS = [(32, 100.0, 10.0, True), (16, 60.0, 8.0, True), (64, 150.0, 9.0, False), (16, 64.0, 8.0, True)]


def store_of(folder: Path, *, emulated: bool = False, runs: Any = RUNS) -> Path:
    path = folder / "job.sqlite"
    optimizer = JointOptimizer([16, 32, 64], default=32, max_power_w=10.0, store=path)
    for index, (size, energy_j, time_s, reached) in enumerate(runs):
        figures = {"energy_j": energy_j, "time_s": time_s, "num_evaluations": 5 + index if reached else None}
        optimizer.observe(size, **figures, reached_target=reached, emulated=emulated)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_state_savings_picture_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Default: 100 J, 10 s, cost 100. Three recurrences took 374 J and 35 s, cost 362, where 300 were usual."""
    store = store_of(tmp_path)
    JointOptimizer.of_store(store).profile(16, [(100.0, 2.0, 1.0), (150.0, 1.0, 1.0)])
    before = store.read_bytes()
    assert main(["recurring", f"store={store}", f"output_dir={tmp_path}/out"]) == 0
    said = capsys.readouterr().out
    assert (
        "3 recurrences, exploring included, against as many with the default batch size 32: 24.7% more energy" in said
    )
    assert "16.7% more time, 20.7% more cost" in said
    assert "EMULATED" not in said
    beliefs = rows_of(tmp_path / "out" / "beliefs.csv")
    assert [(row["batch_size"], row["num_runs"], row["num_reached"], row["is_default"]) for row in beliefs] == [
        ("16", "2", "2", "False"),
        ("32", "1", "1", "True"),
        ("64", "1", "0", "False"),
    ]
    assert [row["batch_size"] for row in beliefs if row["is_best"] == "True"] == ["16"]
    listed = rows_of(tmp_path / "out" / "runs.csv")
    assert [float(row["cost_j"]) for row in listed] == [100.0, 70.0, 120.0, 72.0]
    assert [row["num_evaluations"] for row in listed] == ["5", "6", "", "8"]
    assert [row["is_best"] for row in rows_of(tmp_path / "out" / "profiles.csv")] == ["False", "True"]
    assert (tmp_path / "out" / "recurring.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["status"], summary["best"], summary["num_runs"]) == ("completed", 16, 4)
    assert summary["savings"]["saved_cost_j"] == [0.0, 30.0, -62.0]
    assert store.read_bytes() == before


def test_a_look_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store_of(tmp_path)
    assert main(["recurring", "store=job.sqlite"]) == 0
    assert main(["recurring", "store=job.sqlite", "output_dir=null"]) == 0
    assert capsys.readouterr().out.count("Recurring job job.sqlite: 4 runs") == 2
    assert main(["recurring", "store=none.sqlite"]) == 1
    assert capsys.readouterr().err.startswith("error: no store none.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["job.sqlite"]


@pytest.mark.parametrize("name", ["output_dir", "++output_dir", "+output_dir", "hydra.run.dir"])
def test_files_go_where_the_user_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store_of(tmp_path)
    assert main(["recurring", "store=job.sqlite", f"{name}=out"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"job.sqlite", "out"}
    assert (tmp_path / "out" / "runs.csv").exists()


def test_a_look_needs_no_folder_that_may_be_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write everywhere
    assert main(["recurring", f"store={store_of(tmp_path)}"]) == 0
    assert main(["recurring", f"store={tmp_path}/job.sqlite", f"output_dir={tmp_path}/out"]) == 2
    assert "cannot write into" in capsys.readouterr().err


def test_several_stores_at_once_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store_of(tmp_path)
    (tmp_path / "other.sqlite").write_bytes((tmp_path / "job.sqlite").read_bytes())
    assert main(["recurring", "--multirun", "store=job.sqlite,other.sqlite", "output_dir=out"]) == 0
    assert len(list((tmp_path / "out").rglob("runs.csv"))) == 2


def by_time(folder: Path, runs: Any) -> Path:
    """A store whose runs count by their time alone; a second costs 50."""
    path = folder / "job.sqlite"
    optimizer = BatchSizeOptimizer([16, 32], default=32, max_power_w=50.0, eta=0.0, store=path)
    for size, time_s in runs:
        optimizer.observe(size, energy_j=None, time_s=time_s, reached_target=True)
    return path


def test_what_was_not_measured_is_no_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Time alone counts: 10 s and 5 s against twice 10 s are 25% less; a row has no energy, and nothing is in J."""
    assert main(["recurring", f"store={by_time(tmp_path, [(32, 10.0), (16, 5.0)])}", f"output_dir={tmp_path}/out"]) == 0
    table, _, lines = capsys.readouterr().out.partition("cost: ")
    assert "Believed time" in table
    assert " J" not in table
    assert (
        lines.splitlines()[0] == "time alone (eta=0), no energy; cost_j in the files is 50 W x time, nothing measured"
    )
    assert "2 recurrences" in lines
    assert "default batch size 32: 25.0% less time (energy not measured, 15 s)" in lines
    listed = rows_of(tmp_path / "out" / "runs.csv")
    assert [(row["energy_j"], float(row["cost_j"])) for row in listed] == [("", 500.0), ("", 250.0)]
    saved = json.loads((tmp_path / "out" / "summary.json").read_text())["savings"]
    assert (saved["energy_j"], saved["default_energy_j"], saved["time_s"]) == (None, None, 15.0)


def test_a_guess_is_marked_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """16 has reached the target and 32 has not: only what is said of 32 is concluded from others."""
    path = tmp_path / "job.sqlite"
    optimizer = BatchSizeOptimizer([16, 32], default=16, max_power_w=50.0, store=path)
    note = "no run of this size has reached the target"
    for size, reached in ((16, True), (16, True), (32, False), (32, True)):
        optimizer.observe(size, energy_j=400.0, time_s=10.0, reached_target=reached)
        assert main(["recurring", f"store={path}"]) == 0
        out = capsys.readouterr().out
        row = next(line for line in out.splitlines() if line.split()[:1] == ["32"])
        missed = not any(run.reached_target and run.batch_size == 32 for run in optimizer.runs())
        assert ("~" in row, note in out) == (missed, missed)


def test_one_is_not_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recurring", f"store={by_time(tmp_path, [(32, 10.0)])}", f"output_dir={tmp_path}/out"]) == 0
    said = capsys.readouterr().out
    assert "1 runs" not in said
    assert "Recurring job job.sqlite: 1 run" in said
    assert "1 recurrence, exploring included" in said


def test_runs_that_go_on_or_were_given_up_are_told_apart_from_those_that_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A night that ended with Ctrl-C was one of "5 runs" above a table of four."""
    store = store_of(tmp_path)
    nights = [BatchSizeOptimizer.of_store(store) for _ in range(2)]
    sizes = [night.suggest() for night in nights]
    nights[0].abandon(sizes[0])
    assert main(["recurring", f"store={store}", f"output_dir={tmp_path}/out"]) == 0
    assert "Recurring job job.sqlite: 4 runs, 1 running, 1 never reported " in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [summary[name] for name in ("num_runs", "num_running", "num_never_reported")] == [4, 1, 1]
    assert [row["state"] for row in rows_of(tmp_path / "out" / "runs.csv")].count("done") == 4


@pytest.mark.parametrize(
    ("eta", "line"),
    [(1.0, "cost: energy over all GPUs (eta=1)"), (0.25, "cost: 0.25 x energy over all GPUs + 0.75 x 10 W x time")],
)
def test_what_a_run_costs_is_said(eta: float, line: str) -> None:
    assert cost_line(CostRule(eta=eta, max_power_w=10.0)) == line


def test_emulated_runs_are_labelled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(tmp_path, emulated=True)
    assert main(["recurring", f"store={store}", f"output_dir={tmp_path}/out"]) == 0
    assert "(EMULATED)" in capsys.readouterr().out
    assert {row["emulated"] for row in rows_of(tmp_path / "out" / "runs.csv")} == {"True"}


def test_a_store_without_runs_and_one_whose_target_was_never_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of(tmp_path, runs=[])
    assert main(["recurring", f"store={store}", f"output_dir={tmp_path}/out"]) == 0
    assert "not known before a run with the default batch size 32" in capsys.readouterr().out
    BatchSizeOptimizer.of_store(store).observe(32, energy_j=1.0, time_s=1.0, reached_target=False)
    assert main(["recurring", f"store={store}", f"output_dir={tmp_path}/out"]) == 0
    assert "default, best" not in capsys.readouterr().out  # nothing is the best of what was tried in vain
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["best"] is None
    for size in (16, 32, 64):
        BatchSizeOptimizer.of_store(store).observe(size, energy_j=1.0, time_s=1.0, reached_target=False)
    assert main(["recurring", f"store={store}", f"output_dir={tmp_path}/out"]) == 0
    assert "warning: none of the batch sizes [16, 32, 64] has reached the target" in capsys.readouterr().out


def test_nothing_is_the_best_where_no_recent_run_reached_the_target(tmp_path: Path) -> None:
    """The one that did is older than the window."""
    runs = [(16, 60.0, 8.0, True), *((size, 90.0, 9.0, False) for size in (16, 32, 64))]
    store = store_of(tmp_path, runs=runs)
    for window, best in ((4, 16), (3, None)):
        JointOptimizer([16, 32, 64], default=32, max_power_w=10.0, store=store, window=window)
        assert main(["recurring", f"store={store}", f"output_dir={tmp_path}/out"]) == 0
        assert json.loads((tmp_path / "out" / "summary.json").read_text())["best"] == best


def no_store(path: Path) -> None:
    pass


def text(path: Path) -> None:
    path.write_text("batch_size,cost\n8,1.0\n" * 100)


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (name TEXT)")


@pytest.mark.parametrize(
    ("make", "message"),
    [(no_store, "no store "), (text, "is no store of a recurring job"), (foreign, "is another program's")],
)
def test_stores_that_are_not_ours_cost_one_line_and_stay_as_they_are(
    make: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.sqlite"
    make(path)
    before = path.read_bytes() if path.exists() else None
    assert main(["recurring", f"store={path}", f"output_dir={tmp_path}/out"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "store must be given"), (["stor=x"], "did you mean store?"), (["power_limit_w=-1"], "power_limit_w must be")],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = [f"store={store_of(tmp_path)}"] if arguments and "power" in arguments[0] else []
    assert main(["recurring", f"output_dir={tmp_path}/out", *store, *arguments]) != 0
    assert message in capsys.readouterr().err


def test_missed_runs_after_the_last_target_do_not_count_yet() -> None:
    cost = CostRule(eta=1.0, max_power_w=1.0)
    runs = [
        Run(run_id=index, batch_size=8, state="done", reached_target=reached, energy_j=energy_j, time_s=1.0)
        for index, (energy_j, reached) in enumerate([(10.0, True), (4.0, False), (8.0, True), (5.0, False)])
    ]
    saved = savings(runs, 8, cost)
    assert saved is not None
    assert (saved.num_recurrences, saved.energy_j, saved.default_energy_j) == (2, 22.0, 18.0)
    assert saved.saved_cost_j == (-1.0, -4.0)
    assert savings(runs, 16, cost) is None
