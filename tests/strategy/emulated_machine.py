"""A machine of two emulated boards in a process of their own, and a process on it that starts jobs of two ranks."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from energy_lightning.device.nvml_emulator import NvmlServer

LIMIT_S = 2.0
PATIENCE_S = 60.0  # a busy machine may be slow to get there; what is measured is not

AS_BEFORE = (None, 250.0)  # no locked clock, and a power limit in W that somebody set before


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
    """Two boards and the process that starts jobs on them, which prints lines of a word and two numbers."""

    server: NvmlServer
    jobs: subprocess.Popen[str]
    lines: queue.Queue[str]
    state_home: Path
    seen: list[list[str]] = field(default_factory=list)

    def send(self, line: str) -> None:
        """To the process that starts the jobs."""
        assert self.jobs.stdin is not None
        print(line, file=self.jobs.stdin, flush=True)

    def expect(self, word: str, patience_s: float = PATIENCE_S) -> tuple[int, int]:
        """The two numbers of the next line that begins with `word`; queue.Empty where none comes."""
        while not (found := [line for line in self.seen if line[0] == word]):
            self.seen.append(self.lines.get(timeout=patience_s).split() or [""])
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

    def check_no_records(self) -> None:
        """They go right after what they tell has been undone."""
        wait_for(lambda: not self.records(), "the records are gone")

    @contextmanager
    def nothing_left(self) -> Iterator[None]:
        """Around one test."""
        assert [self.is_set(index) for index in range(2)] == [AS_BEFORE, AS_BEFORE]
        yield
        self.check_no_records()
        wait_for(lambda: not self.watchdogs(), "the watchdogs have ended")


@contextmanager
def started(
    server: NvmlServer, command: Sequence[str], state_home: Path, environment: Mapping[str, str], errors: Path | None
) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str]]]:
    """A process on the boards, in a session of its own, and what it prints; killed at the end with its children.

    `errors`: where its error output goes; None: to ours.
    """
    everything = {**os.environ, "XDG_STATE_HOME": str(state_home), "OMP_NUM_THREADS": "1", **environment}
    with open(errors or os.devnull, "a") as file:
        jobs = subprocess.Popen(
            command,
            env=server.environment(everything),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file if errors else None,
            text=True,
            start_new_session=True,
        )
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(jobs, lines), daemon=True).start()
    try:
        yield jobs, lines
    finally:
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(jobs.pid).children(recursive=True):
                process.kill()
        jobs.kill()
        jobs.wait()


def _read(jobs: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert jobs.stdout is not None
    for line in jobs.stdout:
        lines.put(line.strip())
