"""Jobs of two ranks die in every way there is; clocks and limits come back within 2 s of it.

Two emulated boards in a process of their own, each with a power limit of 250 W that somebody set before (the default is
400 W). The ranks lock the clock, set 300 W, and die. The time is the emulator's, of its last change, against the death.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from emulated_machine import PATIENCE_S, Machine, is_alive, started, wait_for

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlServer

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("dying_ranks.py")
CHANGED = ((1005, 1005), 300.0)


class Jobs(Machine):
    """The process that forks two ranks for each line of its input."""

    def start(self, way: str, folder: Path, *, trains: bool = False) -> list[int]:
        """Process ids of the two ranks, which have changed their GPUs."""
        self.send(json.dumps({"way": way, "trains": trains, "port": free_port(), "folder": str(folder)}))
        try:
            ready = dict(self.expect("READY") for _ in range(2))
        except queue.Empty:
            pytest.fail("\n".join(path.read_text()[-3000:] for path in folder.glob("stderr-*")) or "no rank is ready")
        return [ready[0], ready[1]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    state_home, board = tmp_path_factory.mktemp("state"), EmulatedBoard(power_limit_w=250.0)
    command = [sys.executable, str(SCRIPT)]
    with NvmlServer([board, board]) as server, started(server, command, state_home, {}, None) as (jobs, lines):
        assert lines.get(timeout=2 * PATIENCE_S) == "LOADED"
        yield Jobs(server, jobs, lines, state_home)


@pytest.fixture(autouse=True)
def _nothing_is_left(machine: Jobs) -> Iterator[None]:
    with machine.nothing_left():
        yield


def test_sigkill_of_one_rank_gives_back_its_gpu_and_no_other(machine: Jobs, tmp_path: Path) -> None:
    pids = machine.start("wait", tmp_path)
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    assert len(machine.watchdogs()) == 2
    machine.check_restored(machine.kill(pids[:1]), boards=[0])
    assert is_alive(pids[1])
    assert machine.is_set(1) == CHANGED
    machine.check_restored(machine.kill(pids[1:]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signals_to_all_ranks(machine: Jobs, tmp_path: Path, number: signal.Signals) -> None:
    """To the whole process group, as a terminal and most launchers send them."""
    pids = machine.start("wait", tmp_path)
    died_s = time.monotonic()
    os.killpg(pids[0], number)
    machine.check_restored(died_s)
    machine.check_gone(pids)


@pytest.mark.parametrize("way", ["exit", "exception", "os._exit"])
def test_ranks_that_end_by_themselves(machine: Jobs, tmp_path: Path, way: str) -> None:
    pids = machine.start(way, tmp_path)
    machine.check_gone(pids)
    for index, pid in enumerate(pids):
        assert "nvmlDeviceSetGpuLockedClocks" in machine.changed_by(index, pid)
        restored_itself = "nvmlDeviceResetGpuLockedClocks" in machine.changed_by(index, pid)
        assert restored_itself == (way != "os._exit")


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_neither_give_back_nor_keep_back(machine: Jobs, tmp_path: Path, way: str) -> None:
    pids = machine.start(way, tmp_path)
    workers = [machine.expect("WORKERS")[1] for _ in range(2)]
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    died_s = machine.kill(pids)
    machine.check_restored(died_s)
    assert all(map(is_alive, workers))
    machine.check_no_records()
    pids = machine.start("wait", tmp_path)  # nor do they keep the next job off the GPUs
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    machine.check_restored(machine.kill(pids))
    machine.kill(workers)


def test_a_killed_watchdog_is_replaced(machine: Jobs, tmp_path: Path) -> None:
    pids = machine.start("wait", tmp_path)
    machine.kill(machine.watchdogs())
    said = [tmp_path / f"stderr-{rank}" for rank in range(2)]
    wait_for(lambda: all("number 2 was started" in path.read_text() for path in said), "there are new watchdogs")
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    machine.check_restored(machine.kill(pids))


def test_when_everything_stops_at_once_the_next_job_repairs(machine: Jobs, tmp_path: Path) -> None:
    """As a power failure does it: ranks and watchdogs are gone, and the machine starts anew."""
    pids = machine.start("wait", tmp_path)
    watchdogs = machine.watchdogs()
    machine.kill([*watchdogs, *pids])
    wait_for(lambda: not any(map(is_alive, [*pids, *machine.watchdogs()])), "all have ended")
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    for path in machine.records():
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "boot": "an earlier one"}))
    pids = machine.start("exit", tmp_path)
    machine.check_gone(pids)
    said = "".join((tmp_path / f"stderr-{rank}").read_text() for rank in range(2))
    assert said.count("ended without giving this GPU back") == 4  # two settings of two GPUs, each once


def test_training_gives_back_when_it_ends_though_its_process_lives_on(machine: Jobs, tmp_path: Path) -> None:
    machine.start("exit", tmp_path, trains=True)
    trained = [machine.expect("TRAINED")[1] for _ in range(2)]
    machine.check_restored(time.monotonic())
    machine.check_no_records()
    assert all(map(is_alive, trained))
    machine.kill(trained)


def test_training_in_which_one_rank_fails(machine: Jobs, tmp_path: Path) -> None:
    pids = machine.start("exception", tmp_path, trains=True)
    machine.check_gone(pids)


@pytest.mark.parametrize(
    ("way", "number"),
    [
        ("wait", signal.SIGKILL),
        ("wait", signal.SIGTERM),
        ("slow start", signal.SIGTERM),
        ("limits", signal.SIGTERM),
    ],
)
def test_training_in_which_one_rank_is_ended(machine: Jobs, tmp_path: Path, way: str, number: signal.Signals) -> None:
    """Lightning's own handler of SIGTERM then waits for the other rank, which does not know: the GPU is back before."""
    pids = machine.start(way, tmp_path, trains=True)
    machine.check_restored(machine.kill(pids[1:], number), boards=[1])
    if number == signal.SIGTERM:
        machine.kill(pids)
    machine.check_gone(pids)


def test_training_that_is_told_to_end(machine: Jobs, tmp_path: Path) -> None:
    """As a batch system does it: SIGTERM to all ranks, and SIGKILL to those that are still there.

    Lightning's handlers broadcast, and wait for ever where one rank's meets the other's all-reduce of gradients.
    """
    pids = machine.start("wait", tmp_path, trains=True)
    machine.check_restored(machine.kill(pids, signal.SIGTERM))
    for pid in pids:
        with suppress(ProcessLookupError):
            machine.kill([pid])
    machine.check_gone(pids)
