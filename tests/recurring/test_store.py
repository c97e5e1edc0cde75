"""The store: several real processes at once, jobs that are killed, files that are not ours."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from earlier_stores import first_version

from energy_lightning.recurring import BatchSizeOptimizer, RecurringError, StoreError, store

ARMS = [8, 16, 32, 64]
WORKER = """
import sys
from energy_lightning.recurring import BatchSizeOptimizer
worker, rounds, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
optimizer = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=100.0, store=path, seed=worker)
for index in range(rounds):
    size = optimizer.suggest()
    optimizer.should_stop(energy_j=1.0, time_s=1.0)
    optimizer.observe(size, energy_j=1000.0 * worker + index, time_s=1.0, reached_target=True)
"""
DIES = """
import os, signal, sqlite3, sys
from energy_lightning.recurring import BatchSizeOptimizer, rows
optimizer = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=100.0, store=sys.argv[1])
size = optimizer.suggest()
finish = rows.finish
def killed(connection, run):
    finish(connection, run)
    os.kill(os.getpid(), signal.SIGKILL)  # written, not committed
rows.finish = killed
optimizer.observe(size, energy_j=5.0, time_s=1.0, reached_target=True)
"""

RACES = """
import sys, time
from pathlib import Path
from energy_lightning.recurring import BatchSizeOptimizer, rows, store
begin, wait_s, own, other, path = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]
def meet(suffix, wait_s):
    own.with_suffix(suffix).touch()
    deadline_s = time.monotonic() + wait_s
    while not other.with_suffix(suffix).exists() and time.monotonic() < deadline_s:
        time.sleep(0.002)
store.BEGIN = begin
optimizer = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=100.0, store=path)
read = rows.read_settings
def read_and_wait(connection):  # has read, has not written
    found = read(connection)
    meet(".read", wait_s)
    return found
rows.read_settings = read_and_wait
meet(".ready", 60.0)
optimizer.observe(8, energy_j=1.0, time_s=1.0, reached_target=True)
"""


def optimizer(path: Path, **settings: object) -> BatchSizeOptimizer:
    return BatchSizeOptimizer(ARMS, default=32, max_power_w=100.0, store=path, **settings)  # type: ignore[arg-type]


def test_processes_at_once_lose_no_run(tmp_path: Path) -> None:
    path, workers, rounds = tmp_path / "job.sqlite", 4, 15
    command = [sys.executable, "-c", WORKER]
    running = [subprocess.Popen([*command, str(worker), str(rounds), str(path)]) for worker in range(workers)]
    assert [process.wait(timeout=120) for process in running] == [0] * workers
    runs = optimizer(path).runs()
    assert sorted(-1.0 if run.energy_j is None else run.energy_j for run in runs) == [
        1000.0 * worker + index for worker in range(workers) for index in range(rounds)
    ]
    assert {run.state for run in runs} == {"done"}


@pytest.mark.parametrize(
    ("begin", "wait_s", "num_runs"), [("BEGIN IMMEDIATE", 0.5, 2), ("BEGIN DEFERRED", 60.0, 1)], ids=["ours", "without"]
)
def test_taking_the_write_lock_first_is_what_keeps_both(
    begin: str, wait_s: float, num_runs: int, tmp_path: Path
) -> None:
    """Two jobs that report at once: where both may read before either writes, SQLite refuses one, and it is lost."""
    path = tmp_path / "job.sqlite"
    optimizer(path)
    command = [sys.executable, "-c", RACES, begin, str(wait_s)]
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    running = [
        subprocess.Popen([*command, *own, str(path)], stderr=subprocess.DEVNULL) for own in (places, places[::-1])
    ]
    codes = [process.wait(timeout=120) for process in running]
    assert codes.count(0) == num_runs
    assert [run.state for run in optimizer(path).runs()] == ["done"] * num_runs


def test_a_job_killed_while_it_reports_leaves_no_half_record(tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    done = subprocess.run([sys.executable, "-c", DIES, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (run,) = optimizer(path).runs()
    assert (run.state, run.energy_j, run.time_s, run.reached_target) == ("running", None, None, False)
    assert optimizer(path).suggest() == 32  # and the file is usable


def test_a_lease_that_ran_out_frees_the_run_and_a_late_report_still_counts(tmp_path: Path) -> None:
    path, now_s = tmp_path / "job.sqlite", [0.0]
    slow = optimizer(path, lease_s=10.0, clock=lambda: now_s[0])
    size = slow.suggest()
    now_s[0] = 9.0
    slow.should_stop(energy_j=1.0, time_s=9.0)  # shows that it lives: the lease ends at 19 s
    other = optimizer(path, lease_s=10.0, clock=lambda: now_s[0])
    now_s[0] = 18.0
    other.suggest()
    assert [run.state for run in other.runs()] == ["running", "running"]
    now_s[0] = 30.0
    other.suggest()
    assert [run.state for run in other.runs()] == ["dead", "dead", "running"]
    slow.observe(size, energy_j=7.0, time_s=30.0, reached_target=True)
    assert [(run.run_id, run.energy_j) for run in other.runs() if run.state == "done"] == [(1, 7.0)]


def test_a_store_of_the_first_version_keeps_its_runs_and_learns_on(tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    first_version(path)
    chosen = optimizer(path)
    assert [(run.batch_size, run.state, run.energy_j) for run in chosen.runs()] == [
        (32, "done", 100.0),
        (16, "done", 40.0),
        (8, "dead", None),
    ]
    assert chosen.best() == 16
    chosen.observe(chosen.suggest(), energy_j=50.0, time_s=1.0, reached_target=True)
    again = BatchSizeOptimizer.of_store(path)  # it has settings now
    assert (again.batch_sizes, len([run for run in again.runs() if run.state == "done"])) == (tuple(ARMS), 3)


def test_who_only_looks_changes_nothing_and_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of the first version stays one, and a job that writes meanwhile is no hindrance."""
    old, path = tmp_path / "old.sqlite", tmp_path / "job.sqlite"
    first_version(old)
    before = old.read_bytes()
    with pytest.raises(StoreError, match=r"holds no settings yet.*RecurringJob"):
        BatchSizeOptimizer.of_store(old)
    assert old.read_bytes() == before
    optimizer(path).observe(8, energy_j=1.0, time_s=1.0, reached_target=True)
    monkeypatch.setattr(store, "WAIT_S", 0.0)
    with sqlite3.connect(path, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        looked = BatchSizeOptimizer.of_store(path)
        assert (looked.best(), len(looked.runs()), looked.emulated) == (8, 1, False)
        with pytest.raises(StoreError, match="held by another process for more than 0 s"):
            looked.suggest()
        writer.rollback()


def test_a_clock_that_was_set_back_leaves_no_run_alive_for_ever(tmp_path: Path) -> None:
    path, now_s = tmp_path / "job.sqlite", [1e9]
    optimizer(path, lease_s=10.0, clock=lambda: now_s[0]).suggest()  # and dies
    states = []
    for hours in (0.0, -1.0):  # the clock was an hour ahead
        now_s[0] = 1e9 + 3600.0 * hours
        states += [run.state for run in optimizer(path, lease_s=10.0, clock=lambda: now_s[0]).runs()]
    assert states == ["running", "dead"]


def test_numbers_of_numpy_are_kept_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    chosen = optimizer(path)
    size = np.int64(chosen.suggest())
    figures = {"energy_j": np.float32(2.5), "time_s": np.float64(1.5), "power_limit_w": np.float32(90.0)}
    chosen.observe(size, **figures, reached_target=bool(np.bool_(True)))  # type: ignore[arg-type]
    chosen.observe(size, **figures, reached_target=True)  # type: ignore[arg-type]  # nobody suggested it
    assert [(run.batch_size, run.energy_j, run.time_s, run.power_limit_w) for run in optimizer(path).runs()] == [
        (32, 2.5, 1.5, 90.0)
    ] * 2
    assert optimizer(path).best() == 32


@pytest.mark.parametrize("energy_j", [None, "5 J", float("nan"), 1e308])
def test_a_report_without_sense_is_refused_and_the_run_stays_open(energy_j: Any, tmp_path: Path) -> None:
    chosen = optimizer(tmp_path / "job.sqlite")
    size = chosen.suggest()
    with pytest.raises(RecurringError, match=r"energy_j|costs 5e"):
        chosen.observe(size, energy_j=energy_j, time_s=1.0, reached_target=True)
    assert [(run.state, run.energy_j) for run in chosen.runs()] == [("running", None)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE runs SET energy_j = 'much'", "run 1 in the store holds 'much' where a number >= 0 belongs"),
        ("UPDATE runs SET time_s = x'0001'", "run 1 in the store holds b'.* where a number >= 0 belongs"),
        (
            "UPDATE runs SET time_s = 0",
            "run 1 in the store: need 0 <= energy_j and 0 < time_s, .* repair or move the file",
        ),
        ("UPDATE runs SET energy_j = 1e300", "run 1 in the store: a run of 1e.300 J .* repair or move the file"),
        ("UPDATE settings SET value = '[' WHERE name = 'eta'", "the settings in the store are damaged"),
        ("UPDATE settings SET value = '1' WHERE name = 'emulated'", "the settings in the store are damaged"),
        ("UPDATE runs SET lease_end_s = 'late'", "run 1 in the store holds 'late'"),
    ],
)
def test_values_that_another_program_wrote_are_named(change: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    optimizer(path).observe(8, energy_j=1.0, time_s=1.0, reached_target=True)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message):
        optimizer(path).suggest()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE settings SET value = '7' WHERE name = 'eta'", "eta weighs"),
        ("DELETE FROM settings WHERE name = 'default'", "missing .*default"),
        ("INSERT INTO settings VALUES ('temper', '1')", "unexpected .*temper"),
    ],
)
def test_settings_that_cannot_be_are_named_with_their_store(change: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    optimizer(path)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    with pytest.raises(StoreError, match=rf"settings in .*job.sqlite are damaged .*{message}"):
        BatchSizeOptimizer.of_store(path)


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (name TEXT)")


def damaged_database(path: Path) -> None:
    chosen = optimizer(path)
    for index in range(200):
        chosen.observe(ARMS[index % 4], energy_j=1.0, time_s=1.0, reached_target=True)
    content = bytearray(path.read_bytes())
    content[4096:8192] = os.urandom(4096)
    path.write_bytes(content)


def damaged_schema(path: Path) -> None:
    """SQLite's message about it is no text then."""
    optimizer(path)
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE runs", b"CREATE \xf5\xf5BLE runs"))


def newer_version(path: Path) -> None:
    optimizer(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("batch_size,cost\n8,1.0\n" * 100),
        foreign_database,
        damaged_database,
        damaged_schema,
        newer_version,
    ],
    ids=["text", "another program", "damaged", "damaged schema", "another version"],
)
def test_a_store_that_is_not_ours_is_refused_and_left_as_it_is(make: object, tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    make(path)  # type: ignore[operator]
    before = path.read_bytes()
    for use in (optimizer, BatchSizeOptimizer.of_store):
        with pytest.raises(StoreError, match=r"^[^\n]*left as it is[^\n]*$"):
            use(path)
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folder that exists"):
        optimizer(tmp_path / "none" / "job.sqlite")
    with pytest.raises(StoreError, match="folder that exists"):
        optimizer(tmp_path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    path.symlink_to(tmp_path / "none" / "job.sqlite")
    with pytest.raises(StoreError, match=r"job.sqlite cannot be written \(unable to open .* this user may write"):
        optimizer(path)
