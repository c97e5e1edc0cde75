"""SM counts asked for and SM counts granted, kept where a person can read them."""

from __future__ import annotations

import logging
from collections import Counter

logger = logging.getLogger(__name__)

Grant = tuple[str, int | None, int | None]
"""Operation ("all_reduce", ...), SMs asked for, SMs granted; None: left to the backend, or it cannot tell."""


class GrantLedger:
    """Counts what one backend granted. Says once per kind of collective when it is not what was asked.

    `speaks`: whether this process writes log lines.
    """

    def __init__(self, backend: str, *, speaks: bool = True) -> None:
        self.counts: Counter[Grant] = Counter()
        """Number of collectives by (operation, asked, granted)."""
        self._backend = backend
        self._speaks = speaks

    def note(self, operation: str, asked: int | None, granted: int | None) -> None:
        """One collective is about to be issued."""
        grant = (operation, asked, granted)
        if self._speaks and asked is not None and asked != granted and grant not in self.counts:
            logger.warning(f"energy_lightning: {self._line(grant)}")
        self.counts[grant] += 1

    def differences(self) -> list[str]:
        """One line for each kind of collective that was not granted what it asked for, most frequent first."""
        different = [(g, n) for g, n in self.counts.most_common() if g[1] is not None and g[1] != g[2]]
        return [f"{self._line(grant)} ({count} times)" for grant, count in different]

    def to_rows(self) -> list[dict[str, object]]:
        """Plain values for a file: one row per (operation, asked, granted)."""
        return [
            {"operation": operation, "asked_sm_count": asked, "granted_sm_count": granted, "count": count}
            for (operation, asked, granted), count in sorted(self.counts.items(), key=str)
        ]

    def _line(self, grant: Grant) -> str:
        operation, asked, granted = grant
        given = "does not take SM counts" if granted is None else f"granted {granted}"
        return f"{operation} asked for {asked} SMs, {self._backend} {given}"
