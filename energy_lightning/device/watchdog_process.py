"""Watchdog: the changing process's end of the process that undoes its changes (energy_lightning.device.watchdog)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from energy_lightning.device.forking import call_in_forked_child
from energy_lightning.device.undo import Undo

SCRIPT = Path(__file__).with_name("watchdog.py")
_START_TIMEOUT_S = 30.0
_MAX_STARTS = 5

Begin = Mapping[str, str | None]
"""What the script is told first: state_dir, holder, zeusd_socket."""


class WatchdogError(OSError):
    """No watchdog process could be started, or it does not read any more."""


class Watchdog:
    """Undoes what it was told when this process is gone.

    The process behind it starts with the first record. Where it ends early, because somebody killed it, another one is
    started at once and told everything.

    Args:
        begin: what the script needs to know.
        say: takes a line for people.
        start: starts a process; gets `begin` and what to call when it ends.
    """

    def __init__(
        self,
        begin: Begin,
        say: Callable[[str], None],
        start: Callable[[Begin, Callable[[], None]], WatchdogPipe] | None = None,
    ) -> None:
        self._begin, self._say, self._start = begin, say, start or WatchdogPipe
        self._records: dict[tuple[str, str], Undo] = {}
        self._pipe: WatchdogPipe | None = None
        self._num_starts = 0
        self._lock = threading.RLock()
        call_in_forked_child(self._forget)

    def record(self, undo: Undo) -> None:
        """Undo this in the end; replaces the setting's earlier record. Raises WatchdogError."""
        with self._lock:
            if self._pipe is None:
                self._pipe = self._start_pipe()
            self._pipe.send_record(undo)
            self._records[undo.uuid, undo.setting] = undo

    def drop(self, uuid: str, setting: str) -> None:
        """Nothing is left to undo of this setting."""
        with self._lock:
            self._records.pop((uuid, setting), None)
            if self._pipe is not None:
                with suppress(WatchdogError):  # whoever takes its place is not told of it
                    self._pipe.send(f"drop {uuid} {setting}")

    def close(self) -> None:
        """Let the process end; it undoes what is still recorded. Idempotent."""
        with self._lock:
            self._records.clear()
            if self._pipe is not None:
                self._pipe.close()
            self._pipe = None

    def _start_pipe(self) -> WatchdogPipe:
        if self._num_starts >= _MAX_STARTS:
            raise WatchdogError(f"{self._num_starts} watchdog processes have ended early")
        self._num_starts += 1
        return self._start(self._begin, self._gone)

    def _gone(self) -> None:
        """Another one, with all that it must know (called from a thread)."""
        with self._lock:
            self._pipe = None
            if not self._records:
                return
            try:
                for undo in list(self._records.values()):
                    self.record(undo)
            except WatchdogError as error:
                self._say(
                    f"the watchdog process is gone and stays away ({error}): if this process is killed, clocks and "
                    "limits come back only when the next job starts"
                )
            else:
                self._say(f"the watchdog process ended early (killed?), number {self._num_starts} was started")

    def _forget(self) -> None:
        """In a forked child: the watchdog is its parent's."""
        if self._pipe is not None:
            self._pipe.forget()
        self._lock, self._pipe, self._records = threading.RLock(), None, {}


class WatchdogPipe:
    """One watchdog process that runs.

    Args:
        begin: what the script is told first.
        gone: called from a thread when the process has ended, but not after `close`.

    Raises WatchdogError where it cannot be started.
    """

    def __init__(self, begin: Begin, gone: Callable[[], None]) -> None:
        self._gone, self._closing, self._open = gone, False, False
        self._lock = threading.RLock()  # a signal's handler may come while its own thread sends
        call_in_forked_child(self.forget)
        reading, self._writing = os.pipe()  # programs started later do not inherit it
        self._open = True
        try:
            _start(reading)
            self.send(f"begin {json.dumps({**begin, 'path': sys.path})}")
            os.set_blocking(self._writing, False)  # training never waits for a watchdog that was stopped
        except (OSError, subprocess.SubprocessError) as error:
            self.forget()
            raise WatchdogError(f"the watchdog process cannot be started: {error}") from error
        finally:
            os.close(reading)
        threading.Thread(target=self._wait, name="energy_lightning watchdog", daemon=True).start()

    def send_record(self, undo: Undo) -> None:
        """Undo this when the pipe closes; replaces the setting's earlier record. Raises WatchdogError."""
        self.send(f"set {undo.uuid} {undo.setting} {json.dumps(undo.to_dict())}")

    def send(self, line: str) -> None:
        """Raises WatchdogError where the process does not read."""
        with self._lock:
            if not self._open:
                raise WatchdogError("the watchdog process has ended")
            try:
                os.write(self._writing, f"{line}\n".encode())
            except (BrokenPipeError, BlockingIOError) as error:
                raise WatchdogError(f"the watchdog process does not read: {error}") from error

    def close(self) -> None:
        """Tell the process to end."""
        self._closing = True
        with suppress(WatchdogError):
            self.send("end")

    def _wait(self) -> None:
        """Sleep in poll until nobody reads the pipe; costs nothing meanwhile."""
        poll = select.poll()
        poll.register(self._writing, 0)  # that the reader is gone is always reported
        poll.poll()
        with self._lock:
            self.forget()
        if not self._closing:
            self._gone()

    def forget(self) -> None:
        """Close this end; in a forked child, whose copy would keep the watchdog waiting. Idempotent."""
        if self._open:
            self._open = False
            os.close(self._writing)


def _start(reading: int) -> None:
    """Returns when the script runs in a session of its own. Its errors are seen where the job's are."""
    if not sys.executable:
        raise OSError("there is no Python interpreter to run it with (sys.executable is empty)")
    command = [sys.executable, "-S", "-P", str(SCRIPT.resolve())]
    done = subprocess.run(  # in a new session, so that Ctrl-C meanwhile does not reach it
        command, stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True, timeout=_START_TIMEOUT_S
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)} ended with code {done.returncode}")
