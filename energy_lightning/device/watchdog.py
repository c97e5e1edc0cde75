"""The watchdog, run as a script: gives the GPUs back when the process that changed them is gone.

It holds nothing but the reading end of a pipe and sleeps in read. The kernel closes the pipe however that process dies,
and what was recorded and not dropped by then is undone. It lives in a session of its own and is nobody's child, so
Ctrl-C in the terminal, signals to the job's process group and the end of its process tree do not reach it. Not covered:
a batch system or container that kills every process of the job; the state file is then repaired by the next job.

Lines on the pipe: `begin {...}`, `set <uuid> <setting> {...}`, `drop <uuid> <setting>`, `end`. The script imports the
standard library, four small files of this package and pynvml; never torch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in typing, which need not be loaded
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_OTHERS_TIMEOUT_S = 0.3  # a rank that died at the same time may need a moment until its lease is gone
_READ_BYTES = 65536


def detach() -> None:
    """Return as a process that nobody started; the one that was started (in a session of its own) ends."""
    if os.fork():
        os._exit(0)
    import signal

    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):  # it ends by itself, right after the job
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def prepare() -> None:
    """Make this package's lean modules importable, without what the package itself would import."""
    import site
    import types

    site.main()  # left out at the start (-S), so that the job waited for less
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, folder in (("energy_lightning", root), ("energy_lightning.device", os.path.join(root, "device"))):
        package = types.ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package


def load(begin: str) -> dict[str, Any]:
    """Read what the job tells first; import what undoing needs: later, memory, time or these files may be short."""
    import json

    told: dict[str, Any] = json.loads(begin)
    sys.path.extend(folder for folder in told["path"] if folder not in sys.path)
    import energy_lightning.device.lease  # noqa: F401

    for name in ("pynvml", *(("zeus.utils.zeusd",) if told["zeusd_socket"] else ())):
        try:
            __import__(name)
        except ImportError as error:
            _say(f"clocks and limits will not come back if this job is killed: {error}")
    return told


def listen(descriptor: int, on_begin: Callable[[str], object]) -> dict[tuple[str, str], str]:
    """Read until the pipe closes; `on_begin` gets the first line. Returns what is left, by (uuid, setting)."""
    left: dict[tuple[str, str], str] = {}
    rest = b""
    while chunk := os.read(descriptor, _READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for word, _, more in (line.decode().partition(" ") for line in lines):
            if word == "begin":
                on_begin(more)
            elif word == "set":
                uuid, setting, record = more.split(" ", 2)
                left[uuid, setting] = record
            elif word == "drop":
                uuid, setting = more.split(" ")
                left.pop((uuid, setting), None)
            elif word == "end":
                return left
    return left


def undo_all(told: dict[str, Any], records: Iterable[str]) -> None:
    """Undo what is left, and say what somebody must know."""
    import json
    from pathlib import Path

    from energy_lightning.device.lease import end_holder
    from energy_lightning.device.undo import GpuControl, Undo

    folder = None if told["state_dir"] is None else Path(told["state_dir"])
    control = GpuControl(zeusd_socket=told["zeusd_socket"])
    undone = [Undo.from_dict(json.loads(record)) for record in records]
    _say(*end_holder(folder, told["holder"], undone, control, _OTHERS_TIMEOUT_S))


def _say(*lines: str) -> None:
    for line in lines:
        print(f"energy_lightning: {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Detach, wait for the end of the pipe, undo."""
    detach()
    prepare()
    told: dict[str, Any] = {}
    left = listen(sys.stdin.fileno(), lambda begin: told.update(load(begin)))
    if left:
        undo_all(told, left.values())


if __name__ == "__main__":
    main()
