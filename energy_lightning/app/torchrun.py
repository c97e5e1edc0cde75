"""Under torchrun every rank runs the command. Rank 0 reads the command line and chooses folders; the others wait to
be told the folder of each job, through the key-value store that torchrun serves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

_NO_MORE_JOBS = ""
_WAIT = timedelta(hours=24)  # a rank waits as long as the jobs before take


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in environment


def is_follower(environment: Mapping[str, str]) -> bool:
    """Whether torchrun started this process as a rank other than 0."""
    return is_rank(environment) and environment.get("RANK", "0") != "0"


def follow(environment: Mapping[str, str], run_worker: Callable[[Path], int]) -> int:
    """Run each job that rank 0 announces; 0 when all of them ended well, 1 also where torchrun is gone."""
    from torch.distributed import DistError

    exit_codes: list[int] = []
    try:
        store = _store(environment)
        while (path := store.get(_key(environment, len(exit_codes))).decode()) != _NO_MORE_JOBS:
            exit_codes.append(run_worker(Path(path)))
    except DistError as error:
        reason = str(error).partition("\n")[0]
        print(f"error: rank {environment['RANK']} cannot reach torchrun any more: {reason}", file=sys.stderr)
        return 1
    return 0 if not any(exit_codes) else 1


@contextmanager
def announcing(environment: Mapping[str, str]) -> Iterator[Callable[[Path], None]]:
    """A function that tells the other ranks the folder of the next job; does nothing without torchrun."""
    if not is_rank(environment):
        yield lambda path: None
        return
    store, num_jobs = _store(environment), 0

    def announce(path: Path) -> None:
        nonlocal num_jobs
        store.set(_key(environment, num_jobs), str(path))
        num_jobs += 1

    try:
        yield announce
    finally:
        store.set(_key(environment, num_jobs), _NO_MORE_JOBS)


def _key(environment: Mapping[str, str], job: int) -> str:
    # A restart by torchrun must not read the announcements of the attempt before.
    return f"energy_lightning/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}/{job}"


def _store(environment: Mapping[str, str]) -> Any:
    import torch.distributed as dist

    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, timeout=_WAIT)  # type: ignore[attr-defined]
