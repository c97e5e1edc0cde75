"""HardwareGuard: the clocks and limits that a process changes come back, however it ends.

Three nets, each enough by itself and all harmless together: `restore` and `close` (called on success and exceptions,
and at interpreter exit), a watchdog process for every end that runs no Python (SIGKILL, SIGTERM, os._exit), and a state
file for the end of everything at once (the machine stops, a container is killed): the next job repairs what it tells.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from energy_lightning.device.forking import call_in_forked_child
from energy_lightning.device.lease import Lease, repair_all
from energy_lightning.device.state_file import GpuState, default_state_dir
from energy_lightning.device.undo import GpuControl, Previous, Setting, Undo, UndoError
from energy_lightning.device.watchdog_process import Begin, Watchdog, WatchdogError, WatchdogPipe
from energy_lightning.errors import DeviceError

__all__ = ["Change", "HardwareGuard", "default_state_dir"]

_log = logging.getLogger(__name__)
_FOLDER = "guard"  # below the state directory
_LOCK_TIMEOUT_S = 2.0  # a change that hangs in the driver does not keep the others from coming back


@dataclass
class Change:
    """A change under way, for its maker to tell what became of it.

    Attributes:
        applied: the power limit in W that the device reports afterwards.
        refused: the device did not change anything.
    """

    applied: float | None = None
    refused: bool = False


class HardwareGuard:
    """What one process changes on its GPUs, and how it was before.

    Args:
        state_dir: folder of the records, e.g. `default_state_dir()`; None: none are kept. Where it cannot be written,
            one line says so and the watchdog alone keeps watch: another job on the same GPU is then not noticed, and a
            machine that stops is not repaired.
        job: what the processes that may share a GPU have in common; None: this process alone.
        nvml: the module pynvml or its like; None imports it when it is needed.
        zeusd_socket: the Zeus daemon through which settings are changed; None: through NVML.
        exits: registers and unregisters `close` for the interpreter's exit (the module atexit).
        start_watchdog: makes a `WatchdogPipe`; None: starts the watchdog process.

    A forked child has no part in its parent's guard: there, `restore` and `close` do nothing and changes are refused.
    Not covered: a lock of the SM clock that somebody set before or since (NVML cannot tell it; a power limit is told
    and left), and jobs of other users, whose state directory is another one.
    """

    def __init__(
        self,
        state_dir: Path | None,
        *,
        job: str | None = None,
        nvml: Any = None,
        zeusd_socket: str | None = None,
        exits: Any = atexit,
        start_watchdog: Callable[[Begin, Callable[[], None]], WatchdogPipe] | None = None,
    ) -> None:
        self._folder, self._exits = None if state_dir is None else Path(state_dir).absolute() / _FOLDER, exits
        self._holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._job = job or f"process {os.getpid()}"
        self._control = GpuControl(nvml, zeusd_socket)
        self._lock = threading.RLock()
        self._undo: dict[tuple[str, Setting], Undo] = {}
        self._leases: dict[str, Lease] = {}
        self._unrecorded: set[str] = set()  # GPUs whose records cannot be written any more
        self._said: set[str] = set()
        folder = None if self._folder is None else str(self._folder)
        begin = {"state_dir": folder, "holder": self._holder, "zeusd_socket": zeusd_socket}
        self._watchdog = Watchdog(begin, self._say, start_watchdog)
        self._closed: str | None = None  # why
        exits.register(self.close)
        call_in_forked_child(self._forget)

    # before a change

    def lease(self, uuid: str, owner: str | None = None) -> None:
        """Keep other jobs off this GPU until `close`; repairs first what dead jobs left on this machine's GPUs.

        Args:
            uuid: the GPU.
            owner: replaces the guard's `job`.

        Raises LeaseError naming the process, its job and since when, where another job has the GPU.
        """
        with self._lock:
            self._check_open()
            self._job = owner or self._job
            if self._folder is None or uuid in self._leases:
                return
            state = GpuState(self._folder, uuid)
            try:
                if not self._leases:
                    self._say(*repair_all(self._folder, self._control, but=uuid))
                self._leases[uuid] = Lease(state, holder=self._holder, job=self._job, control=self._control)
            except OSError as error:
                self._say(
                    f"the state directory {self._folder} cannot be used ({error}): another job on {uuid} is not "
                    "noticed, and after a power failure clocks are not given back. Choose another with XDG_STATE_HOME"
                )
                self._folder = None
            finally:
                self._say(*state.said)

    @contextmanager
    def changing(self, uuid: str, setting: Setting, previous: Previous) -> Iterator[Change]:
        """Around the call that changes a setting: recorded before, and no restore comes in between.

        Arguments and errors as of `before_change`. Set `refused` of the yielded Change where the device refused, so
        that nothing is recorded as changed, and `applied` to the power limit that it reports. An error other than
        DeviceError (KeyboardInterrupt) keeps the record: giving back what was not changed is harmless.
        """
        with self._lock:
            first = (uuid, setting) not in self._undo
            self.before_change(uuid, setting, previous)
            undo, change = self._undo[uuid, setting], Change()
            try:
                yield change
            except DeviceError:
                self._settle(undo, change, first=first)
                raise
            self._settle(undo, change, first=first)

    def _settle(self, undo: Undo, change: Change, *, first: bool) -> None:
        if self._closed is not None and not change.refused:  # meanwhile, by a signal's handler
            self._undo[undo.uuid, undo.setting] = undo
            self._give_back(undo)
        elif change.refused and first:
            self._drop(undo.uuid, undo.setting)
        elif change.applied is not None:
            self.after_change(undo.uuid, undo.setting, change.applied)

    def before_change(self, uuid: str, setting: Setting, previous: Previous) -> None:
        """Record what a setting was; call before every change of it, the first call counts.

        Args:
            uuid: the GPU, "GPU-...".
            setting: "sm_clock" or "power_limit".
            previous: W, as nvmlDeviceGetPowerManagementLimit gives it (in mW); for the SM clock the locked range
                (least, most) in MHz or None. NVML cannot tell an earlier lock: None then, which comes back as unlocked.

        Raises DeviceError where the change must not be made: another job has the GPU, or nothing outside this process
            could undo it (no watchdog process can be started), or the guard is closed.
        """
        with self._lock:
            self._check_open()
            known = self._undo.get((uuid, setting))
            if known is not None:
                if known.applied is not None:
                    self._update(replace(known, applied=None))  # a change is in flight
                return
            undo = Undo(uuid, setting, previous)
            undo.check()
            self.lease(uuid)
            undo = self._remember(undo)
            self._undo[uuid, setting] = undo
            try:
                self._watchdog.record(undo)
            except WatchdogError as error:
                self._drop(uuid, setting)
                raise DeviceError(
                    f"{uuid}: nothing is changed, because nothing outside this process could undo it: {error}"
                ) from error

    def after_change(self, uuid: str, setting: Setting, applied: float) -> None:
        """Note the power limit in W that the device reports after a change.

        With it, a limit that somebody else sets later is told from ours, and is left as it is.
        """
        with self._lock:
            known = self._undo.get((uuid, setting))
            if known is not None and known.applied != applied:
                self._update(replace(known, applied=applied))

    # giving back

    def restore(self, uuid: str | None = None, setting: Setting | None = None) -> None:
        """Give back everything, or what belongs to one GPU, or one setting. Idempotent; changes may follow.

        What cannot be given back now is said in one line and tried again by `close`, by the watchdog and by the next
        job.
        """
        with self._held():
            for key in reversed(list(self._undo)):
                if uuid in (None, key[0]) and setting in (None, key[1]):
                    self._give_back(self._undo[key])

    def close(self) -> None:
        """Give everything back, let the GPUs and the watchdog go; changes are refused from then on. Idempotent."""
        with self._held():
            if self._closed is not None:
                return
            self.restore()
            self._closed = "the hardware was given back"
            for lease in self._leases.values():
                with suppress(OSError):
                    lease.release()
                self._say(*lease.state.said)
            self._leases.clear()
            self._watchdog.close()
            self._exits.unregister(self.close)

    def __enter__(self) -> HardwareGuard:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _give_back(self, undo: Undo) -> None:
        try:
            lease = self._leases.get(undo.uuid)
            try:
                line = lease.give_back(undo) if lease else self._control.apply(undo)
            except OSError:  # no record can be read: what we know must do
                line = self._control.apply(undo)
        except UndoError as error:
            self._say(str(error))
            return
        self._say(*([line] if line else []))
        del self._undo[undo.uuid, undo.setting]
        self._watchdog.drop(undo.uuid, undo.setting)

    # records

    def _remember(self, undo: Undo) -> Undo:
        """What comes back in the end, recorded; where no record can be written the watchdog alone knows it."""
        lease = self._recording(undo.uuid)
        try:
            return undo if lease is None else replace(lease.remember(undo), applied=None)
        except OSError as error:
            self._unrecorded.add(undo.uuid)
            with suppress(OSError):  # one that lacks this change would pass for the truth
                self._leases[undo.uuid].state.remove()
            self._say(f"{undo.uuid}: no record can be written ({error}); after a power failure it is not given back")
            return undo

    def _recording(self, uuid: str) -> Lease | None:
        return None if uuid in self._unrecorded else self._leases.get(uuid)

    def _update(self, undo: Undo) -> None:
        self._undo[undo.uuid, undo.setting] = undo
        with suppress(OSError, WatchdogError):  # the first record stands: without `applied` it is given back unasked
            if (lease := self._recording(undo.uuid)) is not None:
                lease.note_applied(undo)
            self._watchdog.record(undo)

    def _drop(self, uuid: str, setting: Setting) -> None:
        """The setting was not changed after all."""
        self._undo.pop((uuid, setting), None)
        with suppress(OSError):
            if (lease := self._recording(uuid)) is not None:
                lease.forget(setting)
        self._watchdog.drop(uuid, setting)

    # this object

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The lock, or after a while without it: a change that hangs in the driver must not keep others from back."""
        locked = self._lock.acquire(timeout=_LOCK_TIMEOUT_S)
        try:
            yield
        finally:
            if locked:
                self._lock.release()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise DeviceError(f"clocks and limits cannot be changed any more ({self._closed}); open the device again")

    def _say(self, *lines: str) -> None:
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                _log.warning("energy_lightning: %s", line)

    def _forget(self) -> None:
        """In a forked child."""
        for lease in self._leases.values():  # before they are dropped: their own hooks come too late then
            lease.close()
        self._lock = threading.RLock()
        self._closed = "this process was forked from the one that opened the device"
        self._undo, self._leases = {}, {}
