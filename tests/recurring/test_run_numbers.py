"""A run's number is that of no other run, also where one was withdrawn."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from earlier_stores import first_version, second_version

from energy_lightning.recurring import BatchSizeOptimizer, rows
from energy_lightning.recurring.store import RunStore


def optimizer(path: Path) -> BatchSizeOptimizer:
    return BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=100.0, store=path)


def test_a_withdrawn_runs_number_is_not_given_again(tmp_path: Path) -> None:
    """Logs, checkpoints and runs.csv had two runs of one number."""
    chosen, numbers = optimizer(tmp_path / "job.sqlite"), []
    for _ in range(3):
        size = chosen.suggest()
        numbers.append(chosen.open_run(size))
        chosen.withdraw(size)
    assert numbers == [1, 2, 3]
    assert chosen.runs() == []


@pytest.mark.parametrize("make", [first_version, second_version])
def test_stores_made_before_keep_their_numbers(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "job.sqlite")
    chosen = optimizer(tmp_path / "job.sqlite")
    size = chosen.suggest()
    assert chosen.open_run(size) == 4
    assert [run.run_id for run in chosen.runs()] == [1, 2, 3, 4]


def test_a_store_is_told_from_another_and_keeps_its_token(tmp_path: Path) -> None:
    tokens = []
    for name in ("job", "other", "job"):
        optimizer(tmp_path / f"{name}.sqlite")
        with RunStore(tmp_path / f"{name}.sqlite").reading() as connection:
            tokens.append(rows.identity(connection))
    assert tokens[0] == tokens[2] != tokens[1]
    assert None not in tokens


@pytest.mark.parametrize("change", ["DROP TABLE identity", "DELETE FROM identity"])
def test_one_of_the_third_version_that_was_made_without_has_none_and_serves(change: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sqlite"
    optimizer(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    chosen = optimizer(path)
    chosen.observe(chosen.suggest(), energy_j=1.0, time_s=1.0, reached_target=True)
    with RunStore(path).reading() as connection:
        assert rows.identity(connection) is None


def test_how_long_a_run_that_goes_on_is_waited_for(tmp_path: Path) -> None:
    now_s = [100.0]
    given = {"default": 8, "max_power_w": 100.0, "store": tmp_path / "job.sqlite", "lease_s": 10.0}
    chosen = BatchSizeOptimizer([8, 16], **given, clock=lambda: now_s[0])  # type: ignore[arg-type]
    size = chosen.suggest()
    assert [run.lease_end_s for run in chosen.runs()] == [110.0]
    now_s[0] = 105.0
    chosen.should_stop(energy_j=1.0, time_s=5.0)
    assert [run.lease_end_s for run in chosen.runs()] == [115.0]
    chosen.observe(size, energy_j=1.0, time_s=5.0, reached_target=True)
    chosen.suggest()
    now_s[0] = 200.0
    assert [(run.state, run.lease_end_s) for run in chosen.runs()] == [("done", None), ("dead", None)]
