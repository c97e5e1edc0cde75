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
    """Load now what undoing needs: later, memory or this folder may be gone."""
    import site
    import types

    site.main()  # left out at the start (-S), so that the job waited for less
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, folder in (("energy_lightning", root), ("energy_lightning.device", os.path.join(root, "device"))):
        package = types.ModuleType(name)  # without what the package itself would import
        package.__path__ = [folder]
        sys.modules[name] = package
    import energy_lightning.device.lease  # noqa: F401


def listen(descriptor: int) -> tuple[str | None, dict[tuple[str, str], str]]:
    """Read until the pipe closes. Returns the `begin` record and, by (uuid, setting), what is left to undo."""
    begin: str | None = None
    left: dict[tuple[str, str], str] = {}
    rest = b""
    while chunk := os.read(descriptor, _READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for word, *more in (line.decode().split(" ", 3) for line in lines):
            if word == "begin":
                begin = " ".join(more)
            elif word == "set":
                left[more[0], more[1]] = more[2]
            elif word == "drop":
                left.pop((more[0], more[1]), None)
            elif word == "end":
                return begin, left
    return begin, left


def undo_all(begin: dict[str, str | None], records: list[str]) -> list[str]:
    """Undo what is left; returns lines for people."""
    import json
    from pathlib import Path

    from energy_lightning.device.lease import end_holder
    from energy_lightning.device.undo import GpuControl, Undo

    folder, holder = begin["state_dir"], begin["holder"]
    assert holder is not None
    control = GpuControl(zeusd_socket=begin["zeusd_socket"])
    undone = [Undo.from_dict(json.loads(record)) for record in records]
    return end_holder(None if folder is None else Path(folder), holder, undone, control, _OTHERS_TIMEOUT_S)


def main() -> None:
    """Detach, wait for the end of the pipe, undo."""
    detach()
    prepare()
    begin, left = listen(sys.stdin.fileno())
    if begin is None or not left:
        return
    import json

    told = json.loads(begin)
    sys.path.extend(folder for folder in told["path"] if folder not in sys.path)
    for line in undo_all(told, list(left.values())):
        print(f"energy_lightning: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
