"""BatchSizeOptimizer under threads, in other processes, with clocks that tell no time and paths of no file."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from energy_lightning.recurring import BatchSizeOptimizer, JointOptimizer, RecurringError, StoreError

REPORTS = """
import pickle, sys
optimizer = pickle.load(sys.stdin.buffer)
optimizer.observe(32, energy_j=1.0, time_s=1.0, reached_target=True)
sys.stdout.buffer.write(pickle.dumps(optimizer))
"""


def optimizer(store: Any, **options: Any) -> BatchSizeOptimizer:
    return BatchSizeOptimizer([8, 16, 32], default=32, max_power_w=100.0, store=store, **options)


def test_threads_of_one_optimizer_each_report_a_run_of_their_own(tmp_path: Path) -> None:
    shared, together, faults = optimizer(tmp_path / "job.sqlite"), threading.Barrier(8), list[RecurringError]()
    for _ in range(8):
        shared.adopt(None, 32)

    def observe() -> None:
        together.wait()
        try:
            shared.observe(32, energy_j=1.0, time_s=1.0, reached_target=True)
        except RecurringError as error:
            faults.append(error)

    threads = [threading.Thread(target=observe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [run.state for run in shared.runs()] == ["done"] * 8


@pytest.mark.parametrize("kind", [BatchSizeOptimizer, JointOptimizer])
def test_an_optimizer_goes_into_another_process_with_its_suggestions(
    kind: type[BatchSizeOptimizer], tmp_path: Path
) -> None:
    here = kind([8, 16, 32], default=32, max_power_w=100.0, store=tmp_path / "job.sqlite", seed=7, policy="published")
    assert here.suggest() == 32
    done = subprocess.run([sys.executable, "-c", REPORTS], input=pickle.dumps(here), capture_output=True, check=True)
    (run,) = here.runs()
    assert (run.state, run.reached_target) == ("done", True)
    back = pickle.loads(done.stdout)
    assert (type(back), back.settings, back.open_run(32)) == (kind, here.settings, None)
    assert back.suggest() == 16  # the published policy walks down


@pytest.mark.parametrize("told", [float("inf"), float("nan"), -1.0, None, "now"])
def test_a_clock_that_tells_no_time_leaves_the_store_readable(told: Any, tmp_path: Path) -> None:
    wrong = optimizer(tmp_path / "job.sqlite", clock=lambda: told)
    for ask in (wrong.suggest, lambda: wrong.adopt(None, 32)):
        with pytest.raises(RecurringError, match="the clock"):
            ask()
    assert BatchSizeOptimizer.of_store(tmp_path / "job.sqlite", clock=time.time).runs() == []


def test_a_store_that_was_taken_away_is_not_begun_anew(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "job.sqlite", tmp_path / "moved.sqlite"
    running = optimizer(path)
    size = running.suggest()
    path.rename(elsewhere)
    for ask in (running.suggest, running.runs, lambda: running.should_stop(energy_j=1.0, time_s=1.0)):
        with pytest.raises(StoreError, match="is gone: put it back"):
            ask()
    assert not path.exists()
    elsewhere.rename(path)
    running.observe(size, energy_j=1.0, time_s=1.0, reached_target=True)
    assert [run.state for run in running.runs()] == ["done"]


@pytest.mark.parametrize(("name", "kind"), [("job\0.sqlite", RecurringError), ("j" * 300, StoreError)])
def test_a_name_that_no_file_can_have_is_named(name: str, kind: type[RecurringError], tmp_path: Path) -> None:
    with pytest.raises(kind, match="path"):
        optimizer(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_suggestion_that_was_not_followed_is_forgotten(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path / "job.sqlite")
    chosen.observe(32, energy_j=1.0, time_s=1.0, reached_target=True)
    first = chosen.suggest()
    chosen.withdraw(first)
    assert len(chosen.runs()) == 1
    assert chosen.suggest() == first  # as if it had not been asked
    chosen.observe(first, energy_j=1.0, time_s=1.0, reached_target=True)
    chosen.withdraw(first)  # nothing is open
    later = chosen.suggest()
    other = BatchSizeOptimizer.of_store(tmp_path / "job.sqlite")
    other.adopt(chosen.open_run(later), later)
    other.observe(later, energy_j=1.0, time_s=1.0, reached_target=True)
    chosen.withdraw(later)  # somebody else has followed it
    assert [run.state for run in chosen.runs()] == ["done", "done", "done"]
    with pytest.raises(RecurringError, match="batch size 7 is none of"):
        chosen.withdraw(7)
