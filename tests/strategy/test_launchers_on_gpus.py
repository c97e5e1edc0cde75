"""Jobs whose two ranks Lightning itself starts, from a script and from a notebook's cells, on two emulated boards.

The ranks lock the clock and set a power limit. However they end, both are as before within 2 s, and the process that
called fit lives on and can call it again.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from emulated_machine import AS_BEFORE, PATIENCE_S, Machine, started, wait_for

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlServer

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("launched_on_gpus.py")
CHANGED = ((1005, 1005), 300.0)
LOADING_S = 2 * PATIENCE_S  # interpreters that start and load Lightning
LOCK, SET_LIMIT = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetPowerManagementLimit"

FIRST_CELL = "import os, signal, traceback; from launched_on_gpus import fit, say; say('LOADED', 0, os.getpid())"
# as kernels of notebooks do, this one lives on where Lightning would have it exit, and can be interrupted again
CELL = """
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    fit("{strategy}", "{way}", "{folder}")
except BaseException:
    traceback.print_exc()

say("OVER", 0, os.getpid())
"""


def has_ended(pid: int) -> bool:
    """Whether its parent has asked for its exit code or not: after an interruption, Lightning does not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class Parent(Machine):
    """The process that calls fit and lives on."""

    interactive: bool
    errors: Path

    def fit(self, strategy: str, way: str, folder: Path) -> list[int]:
        """Process ids of the two ranks, which have changed their GPUs."""
        arguments = {"strategy": strategy, "way": way, "folder": str(folder)}
        if self.interactive:
            self.send(CELL.format(**arguments))
        else:
            self.send(json.dumps(arguments))
        try:
            ready = dict(self.expect("READY", LOADING_S) for _ in range(2))
        except queue.Empty:
            pytest.fail(f"no rank is ready: {self.errors.read_text()[-4000:]}")
        return [ready[0], ready[1]]

    def check_over(self, pids: list[int]) -> None:
        """The fit has ended, its ranks too, the GPUs are as before, and the parent has not touched them."""
        assert self.expect("OVER")[1] == self.jobs.pid
        self.check_restored(time.monotonic())
        wait_for(lambda: all(map(has_ended, pids)), f"ranks {pids} have ended")
        for index, pid in enumerate(pids):
            assert {LOCK, SET_LIMIT} <= self.changed_by(index, pid)
            assert not self.changed_by(index, self.jobs.pid)


@contextmanager
def parent_on(server: NvmlServer, folder: Path, *, python: str | None) -> Iterator[Parent]:
    """`python`: what runs the processes that are spawned from a script; None: it is a notebook."""
    interactive = python is None
    command = [sys.executable, "-i", "-q"] if python is None else [sys.executable, str(SCRIPT), python]
    paths = [str(SCRIPT.parent), str(SCRIPT.parents[2])]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    with started(server, command, folder, environment, folder / "stderr") as (process, lines):
        parent = Parent(server, process, lines, folder)
        parent.interactive, parent.errors = interactive, folder / "stderr"
        if interactive:
            parent.send(FIRST_CELL)
        assert parent.expect("LOADED", LOADING_S)[1] == process.pid
        yield parent


@pytest.fixture(scope="module")
def server() -> Iterator[NvmlServer]:
    board = EmulatedBoard(power_limit_w=250.0, counter_refresh_s=0.0, clock_lag_s=0.0)
    with NvmlServer([board, board]) as server:
        yield server


@pytest.fixture(scope="module")
def notebook(server: NvmlServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    with parent_on(server, tmp_path_factory.mktemp("notebook"), python=None) as parent:
        yield parent


@pytest.mark.slow
def test_spawned_ranks_of_a_script(server: NvmlServer, tmp_path: Path, quick_python: str) -> None:
    with parent_on(server, tmp_path, python=quick_python) as parent, parent.nothing_left():
        for way in ("exception", "exit"):
            parent.check_over(parent.fit("kareus_spawn", way, tmp_path / way))
        assert parent.errors.read_text().count("RuntimeError: as it was told") == 1


@pytest.mark.parametrize("strategy", ["kareus_fork", "kareus_notebook"])
def test_forked_ranks_of_a_notebook(notebook: Parent, tmp_path: Path, strategy: str) -> None:
    with notebook.nothing_left():
        before = notebook.errors.read_text().count("RuntimeError: as it was told")
        for way in ("exit", "exception", "exit"):
            notebook.check_over(notebook.fit(strategy, way, tmp_path / way))
        assert notebook.errors.read_text().count("RuntimeError: as it was told") == before + 1


def test_the_button_that_stops_a_cell(notebook: Parent, tmp_path: Path) -> None:
    """It sends SIGINT to the kernel's process group."""
    with notebook.nothing_left():
        pids = notebook.fit("kareus_notebook", "wait", tmp_path)
        assert [notebook.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
        os.killpg(notebook.jobs.pid, signal.SIGINT)
        notebook.check_over(pids)
        notebook.check_over(notebook.fit("kareus_notebook", "exit", tmp_path))


def test_a_kernel_that_is_killed(notebook: Parent, tmp_path: Path) -> None:
    """The last test: the ranks that were forked from the kernel do not go on without it."""
    with notebook.nothing_left():
        pids = notebook.fit("kareus_notebook", "wait", tmp_path)
        assert [notebook.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
        notebook.kill([notebook.jobs.pid])
        notebook.jobs.wait()
        wait_for(lambda: all(map(has_ended, pids)), f"ranks {pids} have ended")
        notebook.check_restored(time.monotonic())
        assert [notebook.is_set(index) for index in range(2)] == [AS_BEFORE, AS_BEFORE]
