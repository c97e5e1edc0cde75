"""NvmlServer: emulated boards in a process of their own, for jobs of several processes and tests of how they die."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from energy_lightning.device.nvml_emulator.board import EmulatedBoard
from energy_lightning.device.nvml_emulator.client.codes import Code
from energy_lightning.device.nvml_emulator.client.connection import Connection
from energy_lightning.device.nvml_emulator.client.library import EmulatedLibrary
from energy_lightning.device.nvml_emulator.client.site import sitecustomize
from energy_lightning.device.nvml_emulator.controls import BoardView, Controls
from energy_lightning.device.nvml_emulator.driver import EmulatedDriver
from energy_lightning.device.nvml_emulator.live import BoardState, ControlCall
from energy_lightning.device.nvml_emulator.local import installed
from energy_lightning.types import DeviceError

_END_S = 5.0
_SOCKET = "nvml"
_PACKAGE_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class _Running:
    folder: Path
    process: subprocess.Popen[bytes]
    owner_pid: int


class NvmlServer(Controls):
    """While entered, a separate process holds these boards; it outlives any client and ends with this process.

    Children started with `environment()`, and theirs, get the emulated NVML under pynvml without a line of code. Not
    reached: interpreters that ignore PYTHONPATH (`python -I`, `-E`, `-S`), and programs that load NVML without pynvml.

    Args:
        boards: in NVML's order.
        init_error: return code that nvmlInit ends with (9: driver not loaded); 0: it works.

    Raises:
        DeviceError: two GPUs of one UUID, or a board's unknown GPU model.
    """

    def __init__(self, boards: Sequence[EmulatedBoard], *, init_error: int = 0) -> None:
        EmulatedDriver(boards, now_s=lambda: 0.0)  # boards that cannot be are refused here, not in the other process
        self._boards, self._init_error = tuple(boards), init_error
        self.boards = tuple(BoardView(self, index) for index in range(len(boards)))
        self._running: _Running | None = None

    def __enter__(self) -> NvmlServer:
        folder = Path(tempfile.mkdtemp(prefix="emulated-nvml-"))  # only this user may enter
        try:
            process = _started(folder / _SOCKET)
        except OSError:
            shutil.rmtree(folder)
            raise
        assert process.stdin is not None
        pickle.dump((self._boards, self._init_error), process.stdin)
        process.stdin.flush()
        self._running = _Running(folder, process, os.getpid())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running = self._known()
        if running.owner_pid != os.getpid():
            return  # a forked child leaves the block too; the boards are its parent's
        assert running.process.stdin is not None
        running.process.stdin.close()
        try:
            running.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
        shutil.rmtree(running.folder, ignore_errors=True)

    def _known(self) -> _Running:
        if self._running is None:
            raise DeviceError("the emulated NVML has not been started; use `with NvmlServer(...) as server:`")
        return self._running

    @property
    def socket_path(self) -> Path:
        """The Unix socket that clients call."""
        return self._known().folder / _SOCKET

    @property
    def pid(self) -> int:
        """The process that holds the boards."""
        return self._known().process.pid

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """`base` and what gives a child, and its children, the emulated NVML."""
        site = str(Path(sitecustomize.__file__).parent)
        return {**_prepended(base, "PYTHONPATH", site), sitecustomize.SOCKET_VARIABLE: str(self.socket_path)}

    def installed(self) -> AbstractContextManager[None]:
        """While entered, pynvml in this process talks to the boards too."""
        return installed(EmulatedLibrary(Connection(str(self.socket_path))))

    def state(self, index: int) -> BoardState:
        """What a board is set to and does now."""
        values = self._control("state", index)
        return BoardState(**{**values, "sets": tuple(ControlCall(**call) for call in values["sets"])})

    def _control(self, name: str, *arguments: Any) -> Any:
        code, outputs = Connection(str(self.socket_path))(f"control.{name}", list(arguments))
        if code == Code.SUCCESS:
            return outputs[0]
        raise DeviceError(outputs[0] if outputs else "the process that holds the emulated GPUs has ended")


def _started(path: Path) -> subprocess.Popen[bytes]:
    """The process, answering at `path`; its boards are still to be written to its standard input."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(128)  # clients may call at once: they wait while the process starts
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.server_process", str(listener.fileno()), str(os.getpid())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env=_prepended(os.environ, "PYTHONPATH", str(_PACKAGE_ROOT)),
            start_new_session=True,  # what ends a job's process group or terminal does not end the boards
        )


def _prepended(environment: Mapping[str, str], name: str, entry: str) -> dict[str, str]:
    return {**environment, name: os.pathsep.join(filter(None, [entry, environment.get(name)]))}
