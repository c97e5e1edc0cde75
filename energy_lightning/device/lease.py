"""Lease: a GPU's clock and limits are one job's; ranks of that job may share it.

The lease is a shared flock on a file of the GPU, held for the life of the process and let go by the kernel however it
dies. Whoever can lock the same file alone knows that no holder is alive: a record that is still there then is a dead
job's, and is repaired. Only the standard library is imported here.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from energy_lightning.device.forking import call_in_forked_child
from energy_lightning.device.state_file import GpuRecord, GpuState, boot_id, stale_states, try_lock
from energy_lightning.device.undo import AbsentGpuError, GpuControl, Undo, UndoError
from energy_lightning.errors import DeviceError


class LeaseError(DeviceError):
    """Another job controls this GPU."""


class Lease:
    """One process's share of a GPU.

    Args:
        state: the GPU's files.
        holder: this process, "<pid>-<random>".
        job: what the processes that may share the GPU have in common.
        control: gives back what a dead job left.

    Raises:
        LeaseError: another job holds the GPU. OSError: no lease can be had in this folder.
    """

    def __init__(self, state: GpuState, *, holder: str, job: str, control: GpuControl) -> None:
        self.state, self._holder, self._job, self._control = state, holder, job, control
        self._descriptor: int | None = None
        call_in_forked_child(self.close)
        with state.transaction():
            self._descriptor = open_lease(state)
            try:
                self._take(self._descriptor)
            except BaseException:
                self.close()
                raise

    def _take(self, descriptor: int) -> None:
        if try_lock(descriptor, fcntl.LOCK_EX):
            record = repair(self.state, self._control)
        else:
            record = self.state.read()
            if record is None or record.job != self._job:
                raise LeaseError(_refusal(self.state, record))
        if record is None or not record.holders:
            new = self._new_record()
            if record is not None:  # what could not be repaired stays to be given back, the way it was set
                new = replace(new, undo=record.undo, zeusd_socket=new.zeusd_socket or record.zeusd_socket)
            record = new
        try_lock(descriptor, fcntl.LOCK_SH)
        self.state.write(replace(record, holders=(*record.holders, self._holder)))

    def remember(self, undo: Undo) -> Undo:
        """Record what a setting was, on the disk. Returns what comes back in the end: the job's first record of it."""
        with self._recording():
            record = self._own_record()
            first = record.find(undo.setting) or undo
            self.state.write(record.with_undo(replace(first, applied=None)), durable=True)
            return first

    def note_applied(self, undo: Undo) -> None:
        """Record the limit that the device has reported after a change."""
        with self._recording():
            self.state.write(self._own_record().with_undo(undo))

    def forget(self, setting: str) -> None:
        """The setting was not changed after all."""
        with self._recording():
            self.state.write(self._own_record().without(setting))

    def give_back(self, undo: Undo) -> str | None:
        """Give one setting back, unless other ranks still use the GPU. Returns a line where something was left.

        Raises UndoError, OSError.
        """
        with self._recording():
            return give_back(self.state, undo, holder=self._holder, control=self._control, is_alone=self._is_alone)

    def release(self) -> None:
        """Let the GPU go; the last rank gives back what others changed. Raises OSError."""
        try:
            with self.state.transaction():
                leave(self.state, self._holder, self._control, self._is_alone)
                if self._descriptor is not None:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also for children that hold a copy
        finally:
            self.close()

    def close(self) -> None:
        """Close the file; in a forked child, whose copy would hold the lease for as long as it lives. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """A transaction, after which nothing is left where a signal's handler has released the GPU in the middle."""
        with self.state.transaction():
            was_held = self._descriptor is not None
            try:
                yield
            finally:
                if was_held and self._descriptor is None:
                    leave(self.state, self._holder, self._control, self._is_alone)

    def _own_record(self) -> GpuRecord:
        record = self.state.read()
        if record is not None and self._holder in record.holders:
            return record
        return replace(self._new_record(), holders=(self._holder,))  # somebody cleared the folder

    def _new_record(self) -> GpuRecord:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return GpuRecord(self._job, now, boot_id(), zeusd_socket=self._control.zeusd_socket)

    def _is_alone(self) -> bool:
        if self._descriptor is None:
            return False
        alone = try_lock(self._descriptor, fcntl.LOCK_EX)
        try_lock(self._descriptor, fcntl.LOCK_SH)  # a refused change of the lock loses it
        return alone


def open_lease(state: GpuState) -> int:
    """Descriptor of the GPU's lease file, not locked yet and not inherited by programs started later."""
    return os.open(state.path(".lease"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def give_back(
    state: GpuState, undo: Undo, *, holder: str, control: GpuControl, is_alone: Callable[[], bool]
) -> str | None:
    """Give one setting back on behalf of `holder`, once: nothing happens where somebody has done it already.

    Args:
        state: the GPU's files.
        undo: what the holder knows; the record in the file counts if there is one.
        holder: whose change it was.
        control: how settings are changed.
        is_alone: whether no other holder is alive; asked where the record names others.

    Returns a line where the setting was left as it is. Raises UndoError, OSError.
    """
    with state.transaction():
        record = state.read()
        if record is not None:
            found = record.find(undo.setting) if holder in record.holders else None
            if found is None or (len(record.holders) > 1 and not is_alone()):
                return None
            undo = found
        line = control.apply(undo)
        if record is not None:
            state.write(record.without(undo.setting))
        return line


def leave(state: GpuState, holder: str, control: GpuControl, is_alone: Callable[[], bool]) -> None:
    """Take a holder out of the record, in a transaction; the last one gives back whatever the record tells."""
    record = state.read()
    if record is None or holder not in record.holders:
        return
    others = tuple(other for other in record.holders if other != holder)
    if others and not is_alone():
        state.write(replace(record, holders=others))
    else:
        _undo_all(state, record, control)


def end_holder(
    folder: Path | None, holder: str, undone: Iterable[Undo], control: GpuControl, timeout_s: float
) -> list[str]:
    """Give back everything that a dead holder changed, and take it out of the records.

    Args:
        folder: the state directory; None: the holder had none.
        holder: its name in the records.
        undone: what it changed; counts where there is no record.
        control: how settings are changed.
        timeout_s: how long to wait for the leases of processes that may be dying too.

    Returns lines for people; what could not be given back stays in the records.
    """
    said: list[str] = []
    by_gpu: dict[str, list[Undo]] = {}
    for undo in undone:
        by_gpu.setdefault(undo.uuid, []).append(undo)
    for uuid, changed in by_gpu.items():
        state = None if folder is None else GpuState(folder, uuid)
        if state is None or not _end_recorded(state, holder, control, timeout_s):
            for undo in changed:
                said += _apply(control, undo)[1]
        said += [] if state is None else state.said
    return said


def _end_recorded(state: GpuState, holder: str, control: GpuControl, timeout_s: float) -> bool:
    """Whether there was a record to go by."""
    try:
        with state.transaction():
            known = state.read() is not None
            leave(state, holder, control, partial(_becomes_alone, state, timeout_s))
            return known
    except OSError:
        return False


def _becomes_alone(state: GpuState, timeout_s: float) -> bool:
    descriptor = open_lease(state)
    try:
        deadline_s = time.monotonic() + timeout_s
        while not (alone := try_lock(descriptor, fcntl.LOCK_EX)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return alone
    finally:
        os.close(descriptor)


def repair(state: GpuState, control: GpuControl) -> GpuRecord | None:
    """Undo what dead processes left, in a transaction and while no holder lives; lines for people go to `state.said`.

    Returns the record without holders if something in it could not be undone, else None.
    """
    record = state.read()
    if record is None:
        return None
    ended = f"job {record.job}, begun {record.since}, ended without giving this GPU back"
    return _undo_all(state, record, control.through(record.zeusd_socket), ended)


def _undo_all(state: GpuState, record: GpuRecord, control: GpuControl, ended: str = "") -> GpuRecord | None:
    """Undo a record that nobody alive needs; `ended`: what to say of each setting. Returns what is left of it."""
    restarted = record.boot != boot_id()
    for undo in record.undo:
        done, lines = _apply(control, undo, restarted=restarted)
        if done:
            record = record.without(undo.setting)
            lines = lines or ([f"{ended}; now {undo}"] if ended else [])
        state.said += lines
    record = replace(record, holders=())
    if record.undo:
        state.write(record)
        return record
    state.remove()
    return None


def _apply(control: GpuControl, undo: Undo, *, restarted: bool = False) -> tuple[bool, list[str]]:
    """Whether nothing is left to do, and lines for people."""
    try:
        line = control.apply(undo, restarted=restarted)
    except AbsentGpuError:  # a folder that machines share holds records of GPUs elsewhere
        return False, []
    except UndoError as error:
        return False, [str(error)]
    return True, [] if line is None else [line]


def repair_all(folder: Path, control: GpuControl, *, but: str) -> list[str]:
    """Repair what dead jobs left on this machine's other GPUs; returns lines for people. Raises OSError."""
    said: list[str] = []
    for state in stale_states(folder):
        if state.uuid == but:
            continue
        with state.transaction():
            descriptor = open_lease(state)
            try:
                if try_lock(descriptor, fcntl.LOCK_EX):
                    repair(state, control)
            finally:
                os.close(descriptor)
        said += state.said
    return said


def _refusal(state: GpuState, record: GpuRecord | None) -> str:
    what = f"{state.uuid} is controlled by another job"
    if record is not None:
        processes = ", ".join(holder.partition("-")[0] for holder in record.holders)
        what += f" ({record.job}, process {processes}, since {record.since})"
    return f"{what}; two jobs cannot set one GPU's clock: wait until it ends, or choose another GPU"
