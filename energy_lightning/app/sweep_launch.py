"""Processes that measure a sweep's runs: started, listened to, and started again where a run took them down.

A crash, a hang or memory that runs out costs the run it happened in, with its reason, and no other.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from energy_lightning.app.sweep_worker import FOLDER_PREFIX, LINE, Orders
from energy_lightning.types import DeviceError

_MODULE = "energy_lightning.app.sweep_worker"
_START_S = 300.0  # to load torch and transformers, on a slow disk too
_LATE_S = 5.0  # for pipes whose processes were killed to be read to their end

Outcome = tuple[str, dict[str, Any]]  # a run's key, and {"row": ...} or {"failed": reason}


def measured_outcomes(orders: Orders, timeout_s: float, *, command: Sequence[str] | None = None) -> Iterator[Outcome]:
    """Outcome of each run, as they end, on the orders' GPUs together; none may take longer than `timeout_s`.

    `command` starts a rank, None: this interpreter's worker; it is given the file with the orders and the rank.

    Raises:
        DeviceError: the processes end before they begin a run.
    """
    command = command or (sys.executable, "-m", _MODULE)
    left = list(orders.runs)
    while left:
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder:
            begun, now = False, replace(orders, runs=left, rendezvous=str(Path(folder) / "rendezvous"))
            with _Ranks(now, Path(folder), command) as ranks:
                for key, content in ranks.outcomes(timeout_s):
                    begun = True
                    left = [run for run in left if run[0] != key]
                    yield key, content
            if left and not begun:
                raise DeviceError(f"measuring on {orders.num_ranks} GPUs cannot start: {ranks.last_words()}")


@dataclass
class _Ranks:
    """The processes of one start, killed at the end of a `with` block whatever happens."""

    orders: Orders
    folder: Path
    command: Sequence[str]
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)
    _lines: queue.SimpleQueue[tuple[int, str | None]] = field(default_factory=queue.SimpleQueue)
    _words: str = ""
    _open: int = 0  # pipes
    _current: str | None = None  # the run that has begun
    _early: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __enter__(self) -> _Ranks:
        file = self.folder / "orders.json"
        file.write_text(json.dumps(asdict(self.orders)), encoding="utf-8")
        for rank in range(self.orders.num_ranks):
            with (self.folder / f"stderr.{rank}").open("w", encoding="utf-8") as stderr:
                process = subprocess.Popen(
                    [*self.command, str(file), str(rank)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
            self._processes.append(process)
            self._open += 1
            threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._words = self._read_words()  # a rank whose stdin closes clears the folder away
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()

    def _listen(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.put((rank, line))
        self._lines.put((rank, None))

    def outcomes(self, timeout_s: float) -> Iterator[Outcome]:
        """Outcomes until every rank has ended, or until one that failed leaves the others waiting."""
        until_s = time.monotonic() + _START_S + timeout_s
        while self._open:
            try:
                rank, line = self._lines.get(timeout=max(until_s - time.monotonic(), 0.0))
            except queue.Empty:
                if self._current is not None:
                    yield self._current, {"failed": f"took longer than timeout_s={timeout_s:g}"}
                return
            if line is None:
                self._open -= 1
                if (reason := self._why_ended(rank)) is not None:
                    yield from self._last_outcomes(reason)
                    return
            elif line.startswith(LINE):
                until_s = time.monotonic() + timeout_s
                if (outcome := self._heard(line)) is not None:
                    yield outcome
                    if "failed" in outcome[1] and len(self._processes) > 1:
                        return

    def _heard(self, line: str) -> Outcome | None:
        """The outcome that a line tells, if it tells one."""
        said = json.loads(line.removeprefix(LINE))
        key = said.pop("key")
        if "begun" in said:
            self._current, said = key, self._early.pop(key, None)
        elif key != self._current:
            if "failed" in said:  # on a rank whose pipe is heard before the first rank's
                self._early[key] = said
            return None
        if said is None:
            return None
        self._current = None
        return key, said

    def _last_outcomes(self, reason: str) -> Iterator[Outcome]:
        """What ranks had said before one ended for `reason`, which is the open run's unless a rank told another."""
        for process in self._processes:
            process.kill()
        with suppress(queue.Empty):
            while self._open:
                _, line = self._lines.get(timeout=_LATE_S)
                if line is None:
                    self._open -= 1
                elif line.startswith(LINE) and (outcome := self._heard(line)) is not None:
                    yield outcome
        if self._current is not None:
            yield self._current, {"failed": reason}

    def _why_ended(self, rank: int) -> str | None:
        """None where the process ended well."""
        code = self._processes[rank].wait()
        if code == 0:
            return None
        if code < 0:
            name = signal.Signals(-code).name
            more = ", as hosts do that run out of memory" if name == "SIGKILL" else ""
            return f"its process was killed by {name}{more}"
        return f"its process ended with exit code {code}: {self._read_words()}"

    def last_words(self) -> str:
        """Last line of what the processes wrote to stderr; once the `with` block has ended."""
        return self._words

    def _read_words(self) -> str:
        for rank in range(len(self._processes)):
            text = (self.folder / f"stderr.{rank}").read_text(encoding="utf-8", errors="replace")
            if lines := [line.strip() for line in text.splitlines() if line.strip()]:
                return lines[-1][:300]
        return "it said nothing"
