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
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlServer

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("dying_ranks.py")
LIMIT_S = 2.0
PATIENCE_S = 60.0  # a busy machine may be slow to get there; what is measured is not

AS_BEFORE, CHANGED = (None, 250.0), ((1005, 1005), 300.0)


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"waited {PATIENCE_S:g} s in vain until {what}"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass
class Machine:
    """Two boards and the process that starts jobs on them."""

    server: NvmlServer
    jobs: subprocess.Popen[str]
    lines: queue.Queue[str]
    state_home: Path
    seen: list[list[str]] = field(default_factory=list)

    def start(self, way: str, folder: Path, *, trains: bool = False) -> list[int]:
        """Process ids of the two ranks, which have changed their GPUs."""
        order = {"way": way, "trains": trains, "port": free_port(), "folder": str(folder)}
        assert self.jobs.stdin is not None
        print(json.dumps(order), file=self.jobs.stdin, flush=True)
        try:
            ready = dict(self.expect("READY") for _ in range(2))
        except queue.Empty:
            pytest.fail("\n".join(path.read_text()[-3000:] for path in folder.glob("stderr-*")) or "no rank is ready")
        return [ready[0], ready[1]]

    def expect(self, word: str) -> tuple[int, int]:
        """The two numbers of the next line that begins with `word`."""
        while not (found := [line for line in self.seen if line[0] == word]):
            self.seen.append(self.lines.get(timeout=PATIENCE_S).split())
        self.seen.remove(found[0])
        return int(found[0][1]), int(found[0][2])

    def is_set(self, index: int) -> tuple[tuple[int, int] | None, float]:
        state = self.server.state(index)
        return state.locked_mhz, state.power_limit_w

    def changed_by(self, index: int, pid: int) -> set[str]:
        return {call.function for call in self.server.state(index).sets if call.pid == pid and call.code == 0}

    def check_restored(self, died_s: float, boards: Sequence[int] = (0, 1)) -> float:
        """Seconds from the death until the boards were as before; at most 2."""
        for index in boards:
            wait_for(lambda index=index: self.is_set(index) == AS_BEFORE, f"board {index} is as before")
        last_s = max(self.server.state(index).sets[-1].time_s for index in boards)
        assert last_s - died_s <= LIMIT_S
        return last_s - died_s

    def check_gone(self, pids: Sequence[int], boards: Sequence[int] = (0, 1)) -> None:
        """The processes end by themselves now; 2 s after the last one the boards are as before."""
        wait_for(lambda: not any(map(is_alive, pids)), f"processes {pids} have ended")
        self.check_restored(time.monotonic(), boards)

    def kill(self, pids: Sequence[int], number: int = signal.SIGKILL) -> float:
        """Returns when."""
        died_s = time.monotonic()
        for pid in pids:
            os.kill(pid, number)
        return died_s

    def watchdogs(self) -> list[int]:
        """Of the jobs on these boards."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_watchdog = any(word.endswith("device/watchdog.py") for word in process.cmdline())
                if is_watchdog and process.environ().get("XDG_STATE_HOME") == str(self.state_home):
                    found.append(process.pid)
        return found

    def records(self) -> list[Path]:
        return sorted((self.state_home / "energy_lightning" / "guard").glob("*.json"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    state_home = tmp_path_factory.mktemp("state")
    boards = [EmulatedBoard(power_limit_w=250.0), EmulatedBoard(power_limit_w=250.0)]
    with NvmlServer(boards) as server:
        environment = server.environment({**os.environ, "XDG_STATE_HOME": str(state_home), "OMP_NUM_THREADS": "1"})
        command = [sys.executable, str(SCRIPT)]
        jobs = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read, args=(jobs, lines), daemon=True).start()
        try:
            assert lines.get(timeout=2 * PATIENCE_S) == "LOADED"
            yield Machine(server, jobs, lines, state_home)
        finally:
            for process in [*psutil.Process(jobs.pid).children(recursive=True), jobs]:
                process.kill()
            jobs.wait()


def _read(jobs: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert jobs.stdout is not None
    for line in jobs.stdout:
        lines.put(line.strip())


@pytest.fixture(autouse=True)
def _nothing_is_left(machine: Machine) -> Iterator[None]:
    assert [machine.is_set(index) for index in range(2)] == [AS_BEFORE, AS_BEFORE]
    yield
    assert not machine.records()
    wait_for(lambda: not machine.watchdogs(), "the watchdogs have ended")


def test_sigkill_of_one_rank_gives_back_its_gpu_and_no_other(machine: Machine, tmp_path: Path) -> None:
    pids = machine.start("wait", tmp_path)
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    assert len(machine.watchdogs()) == 2
    machine.check_restored(machine.kill(pids[:1]), boards=[0])
    assert is_alive(pids[1])
    assert machine.is_set(1) == CHANGED
    machine.check_restored(machine.kill(pids[1:]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signals_to_all_ranks(machine: Machine, tmp_path: Path, number: signal.Signals) -> None:
    """To the whole process group, as a terminal and most launchers send them."""
    pids = machine.start("wait", tmp_path)
    died_s = time.monotonic()
    os.killpg(pids[0], number)
    machine.check_restored(died_s)
    machine.check_gone(pids)


@pytest.mark.parametrize("way", ["exit", "exception", "os._exit"])
def test_ranks_that_end_by_themselves(machine: Machine, tmp_path: Path, way: str) -> None:
    pids = machine.start(way, tmp_path)
    machine.check_gone(pids)
    for index, pid in enumerate(pids):
        assert "nvmlDeviceSetGpuLockedClocks" in machine.changed_by(index, pid)
        restored_itself = "nvmlDeviceResetGpuLockedClocks" in machine.changed_by(index, pid)
        assert restored_itself == (way != "os._exit")


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_neither_give_back_nor_keep_back(machine: Machine, tmp_path: Path, way: str) -> None:
    pids = machine.start(way, tmp_path)
    workers = [machine.expect("WORKERS")[1] for _ in range(2)]
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    died_s = machine.kill(pids)
    machine.check_restored(died_s)
    assert all(map(is_alive, workers))
    assert not machine.records()
    pids = machine.start("wait", tmp_path)  # nor do they keep the next job off the GPUs
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    machine.check_restored(machine.kill(pids))
    machine.kill(workers)


def test_a_killed_watchdog_is_replaced(machine: Machine, tmp_path: Path) -> None:
    pids = machine.start("wait", tmp_path)
    machine.kill(machine.watchdogs())
    said = [tmp_path / f"stderr-{rank}" for rank in range(2)]
    wait_for(lambda: all("number 2 was started" in path.read_text() for path in said), "there are new watchdogs")
    assert [machine.is_set(index) for index in range(2)] == [CHANGED, CHANGED]
    machine.check_restored(machine.kill(pids))


def test_when_everything_stops_at_once_the_next_job_repairs(machine: Machine, tmp_path: Path) -> None:
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


def test_training_gives_back_when_it_ends_though_its_process_lives_on(machine: Machine, tmp_path: Path) -> None:
    machine.start("exit", tmp_path, trains=True)
    trained = [machine.expect("TRAINED")[1] for _ in range(2)]
    machine.check_restored(time.monotonic())
    assert not machine.records()
    assert all(map(is_alive, trained))
    machine.kill(trained)


def test_training_in_which_one_rank_fails(machine: Machine, tmp_path: Path) -> None:
    pids = machine.start("exception", tmp_path, trains=True)
    machine.check_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_training_in_which_one_rank_is_ended(machine: Machine, tmp_path: Path, number: signal.Signals) -> None:
    """Lightning's own handler of SIGTERM then waits for the other rank, which does not know: the GPU is back before."""
    pids = machine.start("wait", tmp_path, trains=True)
    machine.check_restored(machine.kill(pids[1:], number), boards=[1])
    if number == signal.SIGTERM:
        machine.kill(pids)
    machine.check_gone(pids)


def test_training_that_is_told_to_end(machine: Machine, tmp_path: Path) -> None:
    """As a batch system does it: SIGTERM to all ranks."""
    pids = machine.start("wait", tmp_path, trains=True)
    machine.check_restored(machine.kill(pids, signal.SIGTERM))
    machine.check_gone(pids)
