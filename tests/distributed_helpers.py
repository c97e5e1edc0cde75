"""Runs many checks in one launch of a few gloo processes and reports every failing one by name.

    CHECKS = {"sums": check_sums, "gathers": partial(check_gathers, size=3)}      # called with the process group
    failures = run_checks(CHECKS, num_processes=2, python=quick_python)           # {} when all hold on all ranks

Checks are module-level functions (or partials of them): the processes are spawned and import them. Each check gets a
process group of its own, so that one that fails between collectives does not disturb the ones after it.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from loaded_python import spawned_by

Check = Callable[[dist.ProcessGroup], None]

_COLLECTIVE_TIMEOUT = timedelta(seconds=30)  # how long a rank waits for one that failed


def run_checks(
    checks: Mapping[str, Check],
    *,
    num_processes: int,
    timeout_s: float = 600.0,
    backend: str = "gloo",
    python: str = sys.executable,
) -> dict[str, str]:
    """Returns {check name: what every rank on which it failed says}. With nccl in `backend`, rank n has GPU n.

    `python` runs the processes.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_run_rank, args=(rank, num_processes, dict(checks), folder, backend), daemon=True)
            for rank in range(num_processes)
        ]
        with spawned_by(python):
            for process in processes:
                process.start()
        for process in processes:
            process.join(timeout_s)
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        return _collect(Path(folder), list(checks), [process.exitcode for process in processes])


def _run_rank(rank: int, num_processes: int, checks: Mapping[str, Check], folder: str, backend: str) -> None:
    torch.set_num_threads(1)
    if "nccl" in backend:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=num_processes,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    for index, (name, check) in enumerate(checks.items()):
        group = dist.new_group(timeout=_COLLECTIVE_TIMEOUT)
        assert group is not None
        try:
            check(group)
            outcome = None
        except Exception:
            outcome = traceback.format_exc()
        Path(folder, f"{index}.{rank}").write_bytes(pickle.dumps((name, rank, outcome)))
    dist.destroy_process_group()


def _collect(folder: Path, names: list[str], exit_codes: list[int | None]) -> dict[str, str]:
    failures: dict[str, list[str]] = {}
    for index, name in enumerate(names):
        for rank, exit_code in enumerate(exit_codes):
            file = folder / f"{index}.{rank}"
            if not file.exists():
                failures.setdefault(name, []).append(f"rank {rank}: did not finish (exit code {exit_code})")
                continue
            _, _, outcome = pickle.loads(file.read_bytes())
            if outcome is not None:
                failures.setdefault(name, []).append(f"rank {rank}: {outcome}")
    return {name: "\n".join(lines) for name, lines in failures.items()}
