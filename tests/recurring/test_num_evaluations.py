"""How often a run looked at its target: kept with the run, read by the policies, and not known in earlier stores."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from earlier_stores import first_version, second_version

from energy_lightning.recurring import POLICIES, BatchSizeOptimizer, JointOptimizer, RecurringError, StoreError
from energy_lightning.recurring.runs import Outcome, View

ARMS = [8, 16, 32, 64]
FIGURES = {"energy_j": 2.0, "time_s": 1.0, "reached_target": True}
REPORTS = """
import os, signal, sys, time
from pathlib import Path
from energy_lightning.recurring import BatchSizeOptimizer, store
worker, dies, path, folder = int(sys.argv[1]), sys.argv[2] == "dies", sys.argv[3], Path(sys.argv[4])
upgrade = store._upgrade
def upgrade_and_die(connection):
    upgrade(connection)
    os.kill(os.getpid(), signal.SIGKILL)  # upgraded, not committed
if dies:
    store._upgrade = upgrade_and_die
(folder / str(worker)).touch()
deadline_s = time.monotonic() + 60.0
while not dies and len(list(folder.iterdir())) < 4 and time.monotonic() < deadline_s:
    time.sleep(0.002)
optimizer = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=100.0, store=path)
optimizer.observe(8, energy_j=1.0, time_s=1.0, reached_target=True, num_evaluations=worker)
"""


def optimizer(path: Path, kind: type[BatchSizeOptimizer] = BatchSizeOptimizer, **settings: Any) -> Any:
    return kind(ARMS, default=32, max_power_w=100.0, store=path, **settings)


def counted(path: Path) -> list[int | None]:
    return [run.num_evaluations for run in BatchSizeOptimizer.of_store(path).runs()]


class Watched:
    """A policy that keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[Outcome] = []

    def suggest(self, view: View, rng: np.random.Generator) -> int:
        self.seen = list(view.outcomes)
        return view.default


def test_policies_see_how_often_a_run_looked_at_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setitem(POLICIES, "learned", watched)  # type: ignore[arg-type]
    path = tmp_path / "job.sqlite"
    chosen = optimizer(path)
    chosen.suggest()
    chosen.observe(32, **FIGURES, num_evaluations=7)
    chosen.observe(16, **FIGURES)
    chosen.observe(8, **FIGURES, num_evaluations=np.int64(3))
    chosen.observe(8, **FIGURES, num_evaluations=torch.tensor(2**53))
    assert counted(path) == [7, None, 3, 2**53]
    BatchSizeOptimizer.of_store(path).suggest()
    assert [one.num_evaluations for one in watched.seen] == [7, None, 3, 2**53]


def test_a_run_under_another_limit_took_as_many_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time alone counts, so the best limit is the one that takes half the time: costs are halved, counts are not."""
    watched = Watched()
    monkeypatch.setitem(POLICIES, "learned", watched)  # type: ignore[arg-type]
    joint = optimizer(tmp_path / "job.sqlite", JointOptimizer, eta=0.0)
    joint.profile(32, [(80.0, 2.0, 1.0), (100.0, 1.0, 1.5)])
    joint.observe(32, **FIGURES, power_limit_w=80.0, num_evaluations=5)
    joint.suggest()
    assert [(one.cost, one.num_evaluations) for one in watched.seen] == [(50.0, 5)]


@pytest.mark.parametrize("given", [0, -1, 2.5, "7", True, float("nan"), float("inf"), 1e30, 2**53 + 1, 2**64, [7]])
def test_what_is_no_count_is_named_and_nothing_is_lost(given: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    chosen = optimizer(path)
    size = chosen.suggest()
    before = path.read_bytes()
    with pytest.raises(RecurringError, match=r"num_evaluations must be a whole number, 1 to 9007199254740992, got "):
        chosen.observe(size, **FIGURES, num_evaluations=given)
    assert path.read_bytes() == before
    chosen.observe(size, **FIGURES, num_evaluations=8.0)
    assert [(run.run_id, run.state, run.num_evaluations) for run in chosen.runs()] == [(1, "done", 8)]


def test_a_run_that_goes_on_has_none_until_it_reports_again(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path / "job.sqlite")
    chosen.observe(16, energy_j=1.0, time_s=1.0, reached_target=False, num_evaluations=4)
    later = optimizer(tmp_path / "job.sqlite")
    later.adopt(1, 16)
    assert counted(tmp_path / "job.sqlite") == [None]
    later.observe(16, **FIGURES, num_evaluations=6)
    assert counted(tmp_path / "job.sqlite") == [6]


@pytest.mark.parametrize("value", ["-1", "0", "'many'", "1e30", "2.5", "x'0007'", str(2**53 + 1), "9e999"])
def test_counts_that_another_program_wrote_are_named(value: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    optimizer(path).observe(8, **FIGURES)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE runs SET num_evaluations = {value}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"run 1 in the store holds .* where a whole number >= 1 belongs"):
        optimizer(path).suggest()
    assert path.read_bytes() == before


EARLIER = pytest.mark.parametrize("write", [first_version, second_version])


@EARLIER
def test_an_earlier_store_is_read_as_it_is_and_upgraded_with_the_first_change(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path, fresh = tmp_path / "job.sqlite", tmp_path / "fresh.sqlite"
    write(path)
    before = path.read_bytes()
    if write is second_version:
        path.chmod(0o400)
        looked = JointOptimizer.of_store(path)
        assert (counted(path), looked.best(), len(looked.profiles()[16])) == ([None] * 3, 16, 2)
        path.chmod(0o600)
    assert path.read_bytes() == before
    optimizer(path).observe(8, **FIGURES, num_evaluations=3)
    assert counted(path) == [None, None, 3, None]  # the last of them is dead
    optimizer(fresh)

    def schema(of: Path) -> tuple[Any, ...]:
        with sqlite3.connect(of) as connection:
            columns = {tuple(row[1:3]) for row in connection.execute("PRAGMA table_info(runs)")}
            return columns, connection.execute("PRAGMA user_version").fetchone()

    assert schema(path) == schema(fresh)


@EARLIER
def test_processes_that_upgrade_at_once_lose_nothing(write: Callable[[Path], None], tmp_path: Path) -> None:
    """The first one is killed in the middle of it and leaves the store as it was."""
    path, folder = tmp_path / "job.sqlite", tmp_path / "ready"
    write(path)
    folder.mkdir()
    with sqlite3.connect(path) as connection:
        tables = connection.execute("SELECT sql FROM sqlite_master").fetchall()
    command = [sys.executable, "-c", REPORTS]
    killed = subprocess.run([*command, "1", "dies", str(path), str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT sql FROM sqlite_master").fetchall() == tables
    workers = range(1, 5)
    arguments = [[*command, str(worker), "reports", str(path), str(folder)] for worker in workers]
    running = [subprocess.Popen(own, env={**os.environ, "OMP_NUM_THREADS": "1"}) for own in arguments]
    assert [process.wait(timeout=120) for process in running] == [0] * 4
    found = BatchSizeOptimizer.of_store(path).runs()
    assert [run.energy_j for run in found[:2]] == [100.0, 40.0]
    assert sorted(run.num_evaluations or 0 for run in found) == [0, 0, 0, *workers]


def test_a_run_that_broke_off_before_its_first_evaluation_tells_no_number(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path / "job.sqlite")
    chosen.observe(32, energy_j=2.0, time_s=1.0, reached_target=False, num_evaluations=0)
    assert counted(tmp_path / "job.sqlite") == [None]
    with pytest.raises(RecurringError, match="num_evaluations must be a whole number, 1 to"):
        chosen.observe(32, **FIGURES, num_evaluations=0)


def test_a_store_of_a_later_version_says_to_update(tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    optimizer(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 4")
    with pytest.raises(StoreError, match=r"store of version 4, this program knows 3; .* Update energy_lightning"):
        optimizer(path)
