"""The memory of a recurring job: one SQLite file that several processes may use at once (floor 1).

Every change is one transaction that takes the write lock first, so no report is lost and a killed process leaves no
half record. A run that was suggested holds a lease; one whose lease ran out is taken for dead, until it reports after
all. A file that is not ours is refused before anything is written to it. Not for network file systems without locks.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from energy_lightning.recurring.errors import RecurringError, StoreError
from energy_lightning.recurring.runs import MOST_WHOLE, Run

APPLICATION_ID = 0x454C5242  # "ELRB" in the header of our files
VERSION = 3
WAIT_S = 60.0
BEGIN = "BEGIN IMMEDIATE"  # the write lock first: two that had both read could not both write
COLUMNS = "run_id, batch_size, state, lease_end_s, reached_target, energy_j, time_s, power_limit_w, num_evaluations"
NUM_EVALUATIONS = "num_evaluations INTEGER"  # since version 3
TABLES = {
    "runs": f"""CREATE TABLE runs (
    run_id INTEGER PRIMARY KEY, batch_size INTEGER NOT NULL, state TEXT NOT NULL, lease_end_s REAL NOT NULL,
    reached_target INTEGER NOT NULL DEFAULT 0, energy_j REAL, time_s REAL, power_limit_w REAL,
    finished INTEGER UNIQUE, {NUM_EVALUATIONS})""",
    "settings": "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",  # since version 2
    "profiles": """CREATE TABLE profiles (
    batch_size INTEGER NOT NULL, power_limit_w REAL NOT NULL, time_s REAL NOT NULL, energy_j REAL NOT NULL,
    PRIMARY KEY (batch_size, power_limit_w))""",  # since version 2
}


class RunStore:
    """Runs of one job in the SQLite file `path`, made if it is not there and may be made.

    With `create` False nothing is written before the first change; a file of an earlier version is read as it is.
    RecurringError for what is no path; StoreError if the file is not ours or damaged, or missing and not to be made.
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path, self._mode = checked_path(path), "rwc" if create else "rw"
        try:
            self.path.exists()
        except OSError as error:  # a name that is too long, a folder that may not be looked into
            raise StoreError(f"cannot keep runs in {path} ({error.strerror}): give another path") from error
        if not create and not self.path.is_file():
            raise StoreError(
                f"no store {path}: give the file that BatchSizeOptimizer, JointOptimizer or RecurringJob was given as "
                "store=..."
            )
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise StoreError(f"cannot keep runs in {path}: give a file in a folder that exists")
        with self.changing() if create else self.reading() as connection:
            verdict = connection.execute("PRAGMA quick_check").fetchone()[0]
            if verdict != "ok":
                raise StoreError(
                    f"{self.path} is damaged ({' '.join(verdict.split())}); it was left as it is. Give another path"
                )
        self._mode = "rw"  # a store that is taken away later is not begun anew, without its settings

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """A connection that holds the write lock; commits at the end, rolls back on any error."""
        with self._transaction(BEGIN, self._mode) as connection:
            if self._version(connection) < VERSION:
                _upgrade(connection)
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the store and changes nothing, also where it may not be written."""
        with self._transaction("BEGIN", "rw") as connection:
            self._version(connection)
            yield connection

    @contextmanager
    def _transaction(self, begin: str, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            place = f"{self.path.as_uri()}?mode={mode}"
            with closing(sqlite3.connect(place, timeout=WAIT_S, isolation_level=None, uri=True)) as connection:
                connection.execute(begin)
                try:
                    yield connection
                except BaseException:
                    connection.rollback()
                    raise
                connection.commit()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a damaged schema in SQLite's own message
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> StoreError:
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith("SQLITE_CANTOPEN") and self._mode == "rw" and not self.path.exists():
            return StoreError(f"{self.path} is gone: put it back, or make another optimizer, which begins a new one")
        if code.startswith("SQLITE_BUSY"):
            return StoreError(
                f"{self.path} is held by another process for more than {WAIT_S:g} s; nothing was changed. Try again, "
                "or end the process that holds it"
            )
        if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_PERM")):
            return StoreError(
                f"{self.path} cannot be written ({error}); nothing was changed. Give a store in a folder in which this "
                "user may write and that has space left"
            )
        return StoreError(
            f"{self.path} is no store of a recurring job or is damaged ({error}); it was left as it is. Give another "
            "path, or repair or move the file"
        )

    def _version(self, connection: sqlite3.Connection) -> int:
        """0: an empty file. StoreError where it is not ours."""
        owner = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if owner == 0 and tables == 0:
            return 0
        if owner == APPLICATION_ID and version > VERSION:
            known = f"version {version}, this program knows {VERSION}"
            raise StoreError(f"{self.path} is a store of {known}; it was left as it is. Update energy_lightning")
        if owner != APPLICATION_ID or version < 1:
            raise StoreError(
                f"{self.path} is another program's or version's database (application {owner:#x}, version {version}; "
                f"ours {APPLICATION_ID:#x}, {VERSION}); it was left as it is. Give another path"
            )
        return version


def checked_path(store: Any) -> Path:
    """Where the runs are kept, as an absolute path. RecurringError for what is no path of a file."""
    if not isinstance(store, (str, Path)) or str(store) in ("", ":memory:") or "\0" in str(store):
        raise RecurringError(f"store must be the path of a file that stays, e.g. 'job.sqlite', got {store!r}")
    return Path(store).absolute()


def _upgrade(connection: sqlite3.Connection) -> None:
    """Make the tables and the column that are missing, in the transaction of the change that needs them."""
    for table, statement in TABLES.items():
        if not _columns(connection, table):
            connection.execute(statement)
    if "num_evaluations" not in _columns(connection, "runs"):
        connection.execute(f"ALTER TABLE runs ADD COLUMN {NUM_EVALUATIONS}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Their names; none where there is no such table."""
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def read(connection: sqlite3.Connection, now_s: float, lease_s: float) -> list[Run]:
    """All runs: finished ones in the order they reported, then the others in the order they were suggested.

    One that runs is dead when its lease has run out at `now_s`, or ends so much later than one of `lease_s` given now
    that the clock must have been set back since.
    """
    if not (known := _columns(connection, "runs")):
        return []
    wanted = COLUMNS if "num_evaluations" in known else COLUMNS.replace("num_evaluations", "NULL")
    rows = connection.execute(f"SELECT {wanted} FROM runs ORDER BY finished IS NULL, finished, run_id")

    def state_of(state: str, lease_end_s: float) -> str:
        lives = now_s <= lease_end_s <= now_s + 2.0 * lease_s
        return "dead" if state == "running" and not lives else state

    return [
        Run(
            run_id=run_id,
            batch_size=_stored(batch_size, f"run {run_id}"),
            state=state_of(state, _stored(lease_end_s, f"run {run_id}")),
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


def count(connection: sqlite3.Connection) -> int:
    """How many runs there are, in any state."""
    return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])


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


def write_settings(connection: sqlite3.Connection, settings: Mapping[str, Any]) -> None:
    """Keep the job's settings (plain values), for who looks at the store without them."""
    rows = [(name, json.dumps(value)) for name, value in settings.items()]
    connection.executemany("INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", rows)


def read_settings(connection: sqlite3.Connection) -> dict[str, Any]:
    """The settings that the latest optimizer was made with; {} in a store without."""
    if not _columns(connection, "settings"):
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
    if not _columns(connection, "profiles"):
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
