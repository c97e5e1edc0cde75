"""The suggestions of one process that wait for a report (floor 1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any


class OpenRuns:
    """Number in the store -> batch size, oldest first. Pickles; threads of one process may share it.

    with open_runs.held:  # no other thread changes them from a look at them to their change
        run_id = open_runs.oldest(32)
    """

    def __init__(self) -> None:
        self._runs: dict[int, int] = {}
        self.held = threading.RLock()

    def add(self, run_id: int, batch_size: int) -> None:
        """One that was suggested."""
        with self.held:
            self._runs[run_id] = batch_size

    def remove(self, run_id: int) -> None:
        """One that is over; nothing happens to one that is not there."""
        with self.held:
            self._runs.pop(run_id, None)

    def oldest(self, batch_size: int) -> int | None:
        """The first of that size; None: there is none."""
        with self.held:
            return next((run_id for run_id, size in self._runs.items() if size == batch_size), None)

    def __iter__(self) -> Iterator[int]:
        with self.held:
            return iter(list(self._runs))

    def __getstate__(self) -> dict[str, Any]:
        with self.held:
            return {"_runs": dict(self._runs)}  # a lock is of its process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._runs, self.held = state["_runs"], threading.RLock()
