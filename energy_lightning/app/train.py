"""`energy-lightning train`: Hydra chooses configuration and folder, then each job trains in a process of its own.

A process for each job, because Lightning and torch.distributed keep the environment and process group of the first
training in a process, and because a job whose other rank dies is killed: something must be left to say so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from energy_lightning.app import torchrun
from energy_lightning.app.folder import COMPLETED, FAILED, RUNNING, RunFolder
from energy_lightning.app.hydra_jobs import checked_arguments, exit_code, run_hydra
from energy_lightning.app.orphans import end_with_parent
from energy_lightning.app.settings import check_settings
from energy_lightning.types import EnergyLightningError

_GRACE_S = 30.0  # as torchrun itself leaves its ranks between SIGTERM and SIGKILL
WORKER_MODULE = "energy_lightning.app.worker"


def train(arguments: Sequence[str]) -> int:
    """Run the jobs that `arguments` (Hydra overrides and flags) describe; 0 when all of them completed."""
    if torchrun.is_rank(os.environ):
        end_with_parent(os.getppid(), grace_s=_GRACE_S)
    if torchrun.is_follower(os.environ):
        return torchrun.follow(os.environ, run_worker)
    checked = checked_arguments(arguments)
    with torchrun.announcing(os.environ) as announce:
        statuses = run_hydra(checked, lambda config, path: run_job(config, path, announce))
    return exit_code(statuses, COMPLETED)


def run_job(config: Any, path: Path, announce: Callable[[Path], None]) -> str:
    """Train in the folder `path` and return the job's status; a folder that cannot be written to fails the job."""
    try:
        return _run_in(RunFolder(path), config, announce)
    except OSError as error:
        print(
            f"error: cannot write into the run's folder {path}: {error.strerror or error}. What was measured before is "
            "kept; free the disk, or give another folder with output_dir=FOLDER",
            file=sys.stderr,
        )
        return FAILED


def _run_in(folder: RunFolder, config: Any, announce: Callable[[Path], None]) -> str:
    from omegaconf import OmegaConf

    path = folder.path
    try:
        check_settings(config)
    except EnergyLightningError as error:
        folder.update(status=FAILED, error=str(error))
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    config.output_dir = str(path)
    path.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder.config, resolve=True)
    folder.update(status=RUNNING, error=None)
    announce(path)
    return folder.end(run_worker(path))


def run_worker(path: Path) -> int:
    """Train what the folder's config.yaml says in a child process; its exit code (negative: the signal's number).

    Ctrl-C reaches the child from the terminal, and a SIGTERM ends it in the same way: on SIGTERM itself Lightning's
    handler broadcasts, which blocks forever while the ranks are in another collective. The child ends when this
    process dies.
    """
    with _interrupts_are_the_childs():
        child = subprocess.Popen([sys.executable, "-m", WORKER_MODULE, str(path)])
        previous = signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGINT))
        try:
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, previous)


@contextmanager
def _interrupts_are_the_childs() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the child would inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
