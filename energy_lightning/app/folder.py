"""A run's folder: config.yaml, plan.yaml, measurements.jsonl, metrics.csv, frontier.png, search.png, summary.json."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energy_lightning.report.summary import read_summary, write_json
from energy_lightning.types import EnergyLightningError

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


def recorded(folder: RunFolder, work: Callable[[], None]) -> str:
    """Do `work`; its status, as the summary in `folder` then says too. A user's mistake costs one line.

    Raises SystemExit(130) after Ctrl-C, and what is no user's mistake, once the summary says so.
    """
    try:
        try:
            work()
        except EnergyLightningError as error:
            print(f"error: {error}", file=sys.stderr)
            folder.update(status=FAILED, error=str(error))
            return FAILED
        except Exception as error:  # a full disk too, whose update then fails in the same way
            folder.update(status=FAILED, error=f"{type(error).__name__}: {error}")
            raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        folder.update(status=INTERRUPTED, error="interrupted by the user")
        raise SystemExit(130) from None  # as shells count an interrupt
    except OSError as error:
        place = "give another folder with output_dir=FOLDER"
        print(f"error: cannot write into {folder.path}: {error.strerror or error}; {place}", file=sys.stderr)
        return FAILED
    return COMPLETED
