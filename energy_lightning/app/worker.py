"""`python -m energy_lightning.app.worker FOLDER`: one rank of one job, configured by FOLDER/config.yaml.

Lightning starts the other ranks with the same command, so every rank reads the same file and none resolves anything.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from energy_lightning.app.folder import COMPLETED, FAILED, INTERRUPTED, RunFolder
from energy_lightning.app.orphans import end_with_parent
from energy_lightning.types import EnergyLightningError

_RANK_NAMES = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


def main(argv: Sequence[str]) -> int:
    """Train; the exit code. Rank 0 leaves the status in the folder's summary."""
    folder = RunFolder(Path(argv[0]))
    is_first = is_rank_zero(os.environ)
    end_with_parent(os.getppid())
    try:
        with StatusInSummary(folder if is_first else None):
            from energy_lightning.app.job import run_training  # torch and Lightning load here

            run_training(folder)
    except EnergyLightningError as error:
        if is_first:
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


class StatusInSummary:
    """Writes how its `with` block ended into the folder's summary (None: nowhere), and lets every error pass."""

    def __init__(self, folder: RunFolder | None) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._folder is None:
            return
        if error is None:
            self._folder.update(status=COMPLETED, error=None)
        # Lightning leaves with SystemExit after a Ctrl-C.
        elif isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            self._folder.update(status=INTERRUPTED, error="interrupted by the user")
        elif isinstance(error, EnergyLightningError):
            self._folder.update(status=FAILED, error=str(error))
        else:
            self._folder.update(status=FAILED, error="".join(traceback.format_exception_only(error)).strip())


def is_rank_zero(environment: Mapping[str, str]) -> bool:
    """Whether this process is the job's first, as launchers say it (no variable: it is the one that launches)."""
    return all(environment.get(name, "0") == "0" for name in _RANK_NAMES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
