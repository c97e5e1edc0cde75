"""The memory of a recurring job: one SQLite file that several processes may use at once (floor 1).

Every change is one transaction that takes the write lock first, so no report is lost and a killed process leaves no
half record. A run that was suggested holds a lease; one whose lease ran out is taken for dead, until it reports after
all. A file that is not ours is refused before anything is written to it. Not for network file systems without locks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from energy_lightning.recurring.errors import RecurringError, StoreError

APPLICATION_ID = 0x454C5242  # "ELRB" in the header of our files
VERSION = 3
WAIT_S = 60.0
BEGIN = "BEGIN IMMEDIATE"  # the write lock first: two that had both read could not both write
NUM_EVALUATIONS = "num_evaluations INTEGER"  # since version 3
TABLES = {  # a number that a withdrawn run had is given to no other run; stores made before may do so still
    "runs": f"""CREATE TABLE runs (
    run_id INTEGER PRIMARY KEY AUTOINCREMENT, batch_size INTEGER NOT NULL, state TEXT NOT NULL,
    lease_end_s REAL NOT NULL, reached_target INTEGER NOT NULL DEFAULT 0, energy_j REAL, time_s REAL,
    power_limit_w REAL, finished INTEGER UNIQUE, {NUM_EVALUATIONS})""",
    "settings": "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",  # since version 2
    "profiles": """CREATE TABLE profiles (
    batch_size INTEGER NOT NULL, power_limit_w REAL NOT NULL, time_s REAL NOT NULL, energy_j REAL NOT NULL,
    PRIMARY KEY (batch_size, power_limit_w))""",  # since version 2
    "identity": "CREATE TABLE identity AS SELECT lower(hex(randomblob(8))) AS token",  # not in all of version 3
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
        if not columns_of(connection, table):
            connection.execute(statement)
    if "num_evaluations" not in columns_of(connection, "runs"):
        connection.execute(f"ALTER TABLE runs ADD COLUMN {NUM_EVALUATIONS}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    """Their names; none where there is no such table."""
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}
