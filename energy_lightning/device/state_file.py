"""What this machine's jobs have changed on one GPU, in a file that outlives them.

One JSON file a GPU, replaced as a whole, so that a reader never sees half of one. Beside it two empty files are locked
with flock, which the kernel lets go when a process dies: `.lock` for the moment of a change (`GpuState.transaction`)
and `.lease` for the life of a job (energy_lightning.device.lease). Only the standard library is imported here.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from energy_lightning.device.undo import Undo

_VERSION = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.005


def boot_id() -> str:
    """Another text after every start of the machine; "" on systems without /proc."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's programs keep state (XDG base directories, which ignore relative paths).

    $XDG_STATE_HOME/energy_lightning, else ~/.local/state/energy_lightning. A user without a home, as some containers
    have, gets a folder beside the temporary files, the same for every job.
    """
    given = Path(environment.get("XDG_STATE_HOME") or "")
    if given.is_absolute():
        return given / "energy_lightning"
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    if home.is_absolute():
        return home / ".local" / "state" / "energy_lightning"
    return Path(tempfile.gettempdir()) / f"energy_lightning-{os.getuid()}"


@dataclass(frozen=True)
class GpuRecord:
    """Who holds a GPU, and what comes back when they are gone.

    Attributes:
        job: what the holders have in common.
        since: when the job took the GPU (ISO 8601, UTC).
        boot: `boot_id()` at that time.
        holders: one text a holder, "<pid>-<random>".
        undo: by setting, what it was before the job.
        zeusd_socket: set through the Zeus daemon there; None: through NVML.
    """

    job: str
    since: str
    boot: str
    holders: tuple[str, ...] = ()
    undo: tuple[Undo, ...] = ()
    zeusd_socket: str | None = None

    def find(self, setting: str) -> Undo | None:
        """What a setting was; None where nothing was recorded."""
        return next((undo for undo in self.undo if undo.setting == setting), None)

    def with_undo(self, undo: Undo) -> GpuRecord:
        """With this undo in place of the setting's earlier one."""
        return replace(self.without(undo.setting), undo=(*self.without(undo.setting).undo, undo))

    def without(self, setting: str) -> GpuRecord:
        """Without a setting."""
        return replace(self, undo=tuple(undo for undo in self.undo if undo.setting != setting))

    def to_json(self) -> str:
        """Indented, for people."""
        values = {
            "version": _VERSION,
            "job": self.job,
            "since": self.since,
            "boot": self.boot,
            "holders": list(self.holders),
            "undo": [undo.to_dict() for undo in self.undo],
            "zeusd_socket": self.zeusd_socket,
        }
        return json.dumps(values, indent=1)

    @classmethod
    def from_json(cls, text: str) -> GpuRecord:
        """Inverse of `to_json`. Raises ValueError on anything else."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("version") != _VERSION:
            raise ValueError(f"not a record of version {_VERSION}")
        texts = [values.get(key) for key in ("job", "since", "boot")]
        socket, holders, undo = (values.get(key) for key in ("zeusd_socket", "holders", "undo"))
        if not all(isinstance(text, str) for text in (*texts, socket or "")):
            raise ValueError("job, since, boot and zeusd_socket must be texts")
        if not isinstance(holders, list) or not isinstance(undo, list):
            raise ValueError("holders and undo must be lists")
        job, since, boot = map(str, texts)
        return cls(job, since, boot, tuple(map(str, holders)), tuple(map(_parse_undo, undo)), socket)


@dataclass
class GpuState:
    """The files of one GPU.

    Attributes:
        folder: the state directory.
        uuid: the GPU.
        said: lines for people, e.g. about a damaged file; who prints them empties the list.
    """

    folder: Path
    uuid: str
    said: list[str] = field(default_factory=list)
    _entered: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Thread and lock file of every transaction under way: several where a signal's handler came in between."""

    def path(self, suffix: str) -> Path:
        """A file of this GPU: `.json`, `.lock` or `.lease`."""
        return self.folder / (re.sub(r"[^A-Za-z0-9._-]", "_", self.uuid) + suffix)

    @contextmanager
    def transaction(self, timeout_s: float = 10.0) -> Iterator[None]:
        """Nobody else reads or changes this GPU's record meanwhile.

        A signal's handler may come in between and begin another one: it then uses the lock that its own thread has, for
        which it could only wait in vain.

        Raises OSError (TimeoutError) where the folder cannot be written, is another user's, has no locks, or another
        one holds this lock.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_owner(self.folder)
        thread = threading.get_ident()
        outer = next((lock for owner, lock in self._entered if owner == thread), None)
        lock = os.open(self.path(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if outer is None else outer
        entry = thread, lock
        self._entered.append(entry)
        try:
            deadline_s = time.monotonic() + timeout_s
            while not try_lock(lock, fcntl.LOCK_EX):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{self.path('.lock')} is held by another process for more than {timeout_s} s")
                time.sleep(_POLL_S)
            yield
        finally:
            if outer is None:
                fcntl.flock(lock, fcntl.LOCK_UN)  # also for a child forked meanwhile, which holds a copy
            self._entered.remove(entry)
            if outer is None:
                os.close(lock)

    def read(self) -> GpuRecord | None:
        """The record; None where there is none, or a damaged one, which is set aside with a line in `said`."""
        path = self.path(".json")
        try:
            return GpuRecord.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, OverflowError, RecursionError) as error:  # also bytes that are no text
            aside = path.with_suffix(f".damaged-{time.time_ns()}")
            path.replace(aside)
            self.said.append(
                f"{path} is damaged ({error}) and was set aside as {aside.name}. If the clock of {self.uuid} is still "
                f"locked: nvidia-smi -i {self.uuid} --reset-gpu-clocks"
            )
            return None

    def write(self, record: GpuRecord, *, durable: bool = False) -> None:
        """Replace the record. `durable`: it is on the disk before this returns, for a machine that stops."""
        temporary = self.path(f".tmp{len(self._entered)}")  # a signal's handler, in between, has one of its own
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(record.to_json())
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(self.path(".json"))

    def remove(self) -> None:
        """Forget the record. The lock files stay: removing them would let two processes lock two files."""
        self.path(".json").unlink(missing_ok=True)


def _check_owner(folder: Path) -> None:
    """PermissionError where somebody else could have us set a GPU to what they like: records there are acted upon."""
    owner = folder.stat().st_uid
    if os.getuid() not in (0, owner) and owner != 0:
        raise PermissionError(f"{folder} belongs to another user (uid {owner})")


def stale_states(folder: Path) -> list[GpuState]:
    """The GPUs that have a record in this folder, of living and dead jobs."""
    return [GpuState(folder, path.stem) for path in sorted(folder.glob("*.json"))]


def try_lock(descriptor: int, kind: int) -> bool:
    """Lock an open file without waiting; False where somebody else holds it. Raises OSError where locks do not work."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parse_undo(values: Any) -> Undo:
    if not isinstance(values, dict):
        raise ValueError(f"an undo record is a table, got {values!r}")
    return Undo.from_dict(values)
