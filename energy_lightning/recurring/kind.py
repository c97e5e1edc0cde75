"""The kind of a store's runs: measured and emulated ones cannot be compared, so it holds one of them (floor 1)."""

from __future__ import annotations

from pathlib import Path
from sqlite3 import Connection

from energy_lightning.recurring import rows
from energy_lightning.recurring.errors import RecurringError

_NAMES = {True: "emulated", False: "measured"}


def check(connection: Connection, emulated: bool, path: Path) -> bool | None:
    """Raise RecurringError where the store at `path` holds runs of the other kind.

    Returns whether its runs are emulated; None before the first report.
    """
    known: bool | None = rows.read_settings(connection).get("emulated")
    if known is not None and known != emulated:
        raise RecurringError(
            f"{path} holds {_NAMES[known]} runs and this one is {_NAMES[emulated]}: they cannot be compared. Give "
            "another store"
        )
    return known


def keep(connection: Connection, emulated: bool, path: Path) -> None:
    """As `check`; from the first report on the store knows its kind."""
    if check(connection, emulated, path) is None:
        rows.write_settings(connection, {"emulated": emulated})
