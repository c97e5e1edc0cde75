"""A store's runs, settings and profiles, read and written inside one of RunStore's transactions (floor 1)."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from energy_lightning.recurring.errors import StoreError
from energy_lightning.recurring.runs import MOST_WHOLE, Run
from energy_lightning.recurring.store import columns_of

COLUMNS = "run_id, batch_size, state, lease_end_s, reached_target, energy_j, time_s, power_limit_w, num_evaluations"


def read(connection: sqlite3.Connection, now_s: float, lease_s: float) -> list[Run]:
    """All runs: finished ones in the order they reported, then the others in the order they were suggested.

    One that runs is dead when its lease has run out at `now_s`, or ends so much later than one of `lease_s` given now
    that the clock must have been set back since.
    """
    if not (known := columns_of(connection, "runs")):
        return []
    wanted = COLUMNS if "num_evaluations" in known else COLUMNS.replace("num_evaluations", "NULL")
    rows = connection.execute(f"SELECT {wanted} FROM runs ORDER BY finished IS NULL, finished, run_id")

    def lives(state: str, lease_end_s: float) -> dict[str, Any]:
        if state != "running":
            return {"state": state}
        if now_s <= lease_end_s <= now_s + 2.0 * lease_s:
            return {"state": state, "lease_end_s": lease_end_s}
        return {"state": "dead"}

    return [
        Run(
            run_id=run_id,
            batch_size=_stored(batch_size, f"run {run_id}"),
            **lives(state, _stored(lease_end_s, f"run {run_id}")),
            reached_target=bool(_stored(reached, f"run {run_id}")),
            energy_j=_stored(energy_j, f"run {run_id}"),
            time_s=_stored(time_s, f"run {run_id}"),
            power_limit_w=_stored(limit, f"run {run_id}"),
            num_evaluations=_stored_count(evaluations, f"run {run_id}"),
        )
        for run_id, batch_size, state, lease_end_s, reached, energy_j, time_s, limit, evaluations in rows
    ]


def _stored(value: Any, where: str) -> Any:
    """A number or None; StoreError for what nobody but another program writes."""
    if value is None or (isinstance(value, (int, float)) and 0 <= value < math.inf):
        return value
    raise StoreError(f"{where} in the store holds {value!r} where a number >= 0 belongs: repair or move the file")


def _stored_count(value: Any, where: str) -> int | None:
    if value is None or (isinstance(value, int) and 1 <= value <= MOST_WHOLE):
        return value
    raise StoreError(f"{where} in the store holds {value!r} where a whole number >= 1 belongs: repair or move the file")


def identity(connection: sqlite3.Connection) -> str | None:
    """What tells the store from every other, whose runs have the same numbers; None of one made without."""
    if not columns_of(connection, "identity"):
        return None
    found = connection.execute("SELECT token FROM identity").fetchone()
    return None if found is None else str(found[0])


def count(connection: sqlite3.Connection) -> int:
    """How many runs there are, in any state."""
    return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])


def least_cost(
    connection: sqlite3.Connection, batch_sizes: Sequence[int], of_energy: float, of_time: float, *, window: int | None
) -> float | None:
    """Least of_energy x energy + of_time x time of a run that reached the target; None where there is none.

    Of these sizes, and of their last `window` finished runs with a known cost (CostRule.of). StoreError for figures
    that are none.
    """
    bad = "typeof({0}) NOT IN ('integer', 'real') OR {0} < 0 OR {0} = 9e999"
    recent = (
        "SELECT reached_target, coalesce(energy_j, 0.0) AS energy_j, time_s FROM runs WHERE finished IS NOT NULL "
        "AND time_s IS NOT NULL AND (energy_j IS NOT NULL OR NOT reached_target OR ? = 0.0) "
        f"AND batch_size IN ({','.join('?' * len(batch_sizes))})"
    )
    recent += "" if window is None else f" ORDER BY finished DESC LIMIT {int(window)}"
    least, damaged = connection.execute(
        f"SELECT min(? * energy_j + ? * time_s), max({bad.format('energy_j')} OR {bad.format('time_s')}) "
        f"FROM ({recent}) WHERE reached_target",
        (of_energy, of_time, of_energy, *batch_sizes),
    ).fetchone()
    if damaged:
        read(connection, 0.0, 1.0)  # names the run
    return None if least is None else float(least)


def start(connection: sqlite3.Connection, batch_size: int, lease_end_s: float, power_limit_w: float | None) -> int:
    """Record a suggestion; returns its run_id."""
    cursor = connection.execute(
        "INSERT INTO runs (batch_size, state, lease_end_s, power_limit_w) VALUES (?, 'running', ?, ?)",
        (int(batch_size), lease_end_s, _plain(power_limit_w)),
    )
    return int(cursor.lastrowid or 0)


def renew(connection: sqlite3.Connection, run_id: int, lease_end_s: float) -> None:
    """A running (or wrongly buried) job shows that it lives."""
    connection.execute(
        "UPDATE runs SET state = 'running', lease_end_s = ? WHERE run_id = ? AND state != 'done'", (lease_end_s, run_id)
    )


def reopen(connection: sqlite3.Connection, run_id: int, lease_end_s: float) -> None:
    """A run goes on, also one that has reported that it ended without its target: that report is taken back."""
    connection.execute(
        "UPDATE runs SET state = 'running', lease_end_s = ?, energy_j = NULL, time_s = NULL, finished = NULL, "
        "num_evaluations = NULL WHERE run_id = ? AND NOT (state = 'done' AND reached_target)",
        (lease_end_s, run_id),
    )


def close(connection: sqlite3.Connection, run_id: int) -> None:
    """A run that will not report is over now; nothing happens to one that has."""
    connection.execute("UPDATE runs SET state = 'dead' WHERE run_id = ? AND state != 'done'", (run_id,))


def forget(connection: sqlite3.Connection, run_id: int) -> None:
    """A run that never began; nothing happens to one that has reported."""
    connection.execute("DELETE FROM runs WHERE run_id = ? AND state != 'done'", (run_id,))


def write_settings(connection: sqlite3.Connection, settings: Mapping[str, Any]) -> None:
    """Keep the job's settings (plain values), for who looks at the store without them."""
    rows = [(name, json.dumps(value)) for name, value in settings.items()]
    connection.executemany("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", rows)


def read_settings(connection: sqlite3.Connection) -> dict[str, Any]:
    """The settings that the latest optimizer was made with; {} in a store without."""
    if not columns_of(connection, "settings"):
        return {}
    rows = connection.execute("SELECT name, value FROM settings").fetchall()
    try:
        settings = {str(name): json.loads(value) for name, value in rows}
    except (TypeError, ValueError) as error:
        raise StoreError(f"the settings in the store are damaged ({error}): repair or move the file") from error
    if not isinstance(settings.get("emulated", False), bool):
        raise StoreError(
            f"the settings in the store are damaged (emulated is {settings['emulated']!r}): repair or move the file"
        )
    return settings


def write_profile(connection: sqlite3.Connection, batch_size: int, rows: Sequence[tuple[float, float, float]]) -> None:
    """Replace what is known of a batch size; rows of (power_limit_w, time_s, energy_j)."""
    connection.execute("DELETE FROM profiles WHERE batch_size = ?", (batch_size,))
    connection.executemany("INSERT INTO profiles VALUES (?, ?, ?, ?)", [(batch_size, *row) for row in rows])


def read_profile(connection: sqlite3.Connection, batch_size: int) -> list[tuple[float, float, float]]:
    """(power_limit_w, time_s, energy_j) of a batch size, lowest limit first; [] where it was never profiled."""
    if not columns_of(connection, "profiles"):
        return []
    columns = "SELECT power_limit_w, time_s, energy_j FROM profiles WHERE batch_size = ? ORDER BY power_limit_w"
    where = f"the profile of batch size {batch_size}"
    return [
        (_stored(limit_w, where), _stored(time_s, where), _stored(energy_j, where))
        for limit_w, time_s, energy_j in connection.execute(columns, (batch_size,))
    ]


def _plain(value: float | None) -> float | None:
    """SQLite keeps numpy's numbers as bytes, which nothing reads as numbers again."""
    return None if value is None else float(value)


def finish(connection: sqlite3.Connection, run: Run) -> None:
    """Complete a suggested run. StoreError if it is unknown, has reported before, or had another size."""
    changed = connection.execute(
        "UPDATE runs SET state = 'done', reached_target = ?, energy_j = ?, time_s = ?, num_evaluations = ?, "
        "power_limit_w = coalesce(?, power_limit_w), finished = (SELECT coalesce(max(finished), 0) + 1 FROM runs) "
        "WHERE run_id = ? AND batch_size = ? AND state != 'done'",
        (
            int(run.reached_target),
            *map(_plain, (run.energy_j, run.time_s)),
            run.num_evaluations,
            _plain(run.power_limit_w),
            run.run_id,
            int(run.batch_size),
        ),
    ).rowcount
    if changed != 1:
        raise StoreError(
            f"run {run.run_id} with batch size {run.batch_size} is not waiting for a report: unknown, reported before, "
            "or suggested with another size. Report each suggestion once"
        )
