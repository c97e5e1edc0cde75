"""A clock for tests."""

from __future__ import annotations


class ManualClock:
    """A clock that moves when told to."""

    def __init__(self, time_s: float = 50.0) -> None:
        self.time_s = time_s

    def __call__(self) -> float:
        return self.time_s
