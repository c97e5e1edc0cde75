"""Stores as earlier versions wrote them, from their own statements."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

_RUNS = (
    "CREATE TABLE runs (run_id INTEGER PRIMARY KEY, batch_size INTEGER NOT NULL, state TEXT NOT NULL, "
    "lease_end_s REAL NOT NULL, reached_target INTEGER NOT NULL DEFAULT 0, energy_j REAL, time_s REAL, "
    "power_limit_w REAL, finished INTEGER UNIQUE)"
)
_SETTINGS = {
    "batch_sizes": [8, 16, 32, 64],
    "default": 32,
    "max_power_w": 100.0,
    "eta": 0.5,
    "beta": 2.0,
    "policy": "learned",
    "window": None,
    "lease_s": 21600.0,
    "emulated": False,
}


def first_version(path: Path) -> None:
    """Runs only."""
    with sqlite3.connect(path) as connection:
        connection.execute(_RUNS)
        runs = [
            (32, "done", 0.0, 1, 100.0, 1.0, 1),
            (16, "done", 0.0, 1, 40.0, 1.0, 2),
            (8, "dead", 0.0, 0, *[None] * 3),
        ]
        columns = "batch_size, state, lease_end_s, reached_target, energy_j, time_s, finished"
        connection.executemany(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", runs)
        connection.execute("PRAGMA application_id = 1162629698")
        connection.execute("PRAGMA user_version = 1")


def second_version(path: Path) -> None:
    """The same runs, with settings and a profile of batch size 16."""
    first_version(path)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        rows = [(name, json.dumps(value)) for name, value in _SETTINGS.items()]
        connection.executemany("INSERT INTO settings VALUES (?, ?)", rows)
        connection.execute(
            "CREATE TABLE profiles (batch_size INTEGER NOT NULL, power_limit_w REAL NOT NULL, time_s REAL NOT NULL, "
            "energy_j REAL NOT NULL, PRIMARY KEY (batch_size, power_limit_w))"
        )
        connection.executemany(
            "INSERT INTO profiles VALUES (?, ?, ?, ?)", [(16, 80.0, 2.0, 1.0), (16, 100.0, 1.0, 1.5)]
        )
        connection.execute("PRAGMA user_version = 2")
