"""A run's folder: config.yaml, plan.yaml, measurements.jsonl, metrics.csv, frontier.png, search.png, summary.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energy_lightning.report.summary import read_summary, write_json

RUNNING, COMPLETED, FAILED, INTERRUPTED = "running", "completed", "failed", "interrupted"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Names of the files in one run's folder."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def summary(self) -> Path:
        """Status and results."""
        return self.path / "summary.json"

    @property
    def frontier_picture(self) -> Path:
        """The frontier, the budget, the chosen plan."""
        return self.path / "frontier.png"

    @property
    def search_picture(self) -> Path:
        """What the search of each partition found."""
        return self.path / "search.png"

    def read(self) -> dict[str, Any]:
        """The summary so far; EnergyLightningError when there is none."""
        return read_summary(self.summary)

    def update(self, **values: Any) -> None:
        """Write `values` over those of the summary."""
        known = self.read() if self.summary.exists() else {}
        write_json(self.summary, {**known, **values})

    def end(self, exit_code: int) -> str:
        """The status, after making sure that a run that died without a word is not left as running."""
        known = self.read() if self.summary.exists() else {}
        if known.get("status", RUNNING) == RUNNING:
            reason = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
            self.update(status=FAILED, error=f"the training process {reason}")
        return str(self.read()["status"])
