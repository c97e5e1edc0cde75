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
_PACKAGE_ROOT = Path(__file__).parents[3]


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
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NvmlServer:
        self._folder = Path(tempfile.mkdtemp(prefix="emulated-nvml-"))  # only this user may enter
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self.socket_path))
            listener.listen(128)  # clients may call at once: they wait while the process starts
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.server_process", str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env=_prepended(os.environ, "PYTHONPATH", str(_PACKAGE_ROOT)),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        pickle.dump((self._boards, self._init_error), self._process.stdin)
        self._process.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._folder is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def socket_path(self) -> Path:
        """The Unix socket that clients call."""
        if self._folder is None:
            raise DeviceError("the emulated NVML has not been started; use `with NvmlServer(...) as server:`")
        return self._folder / "nvml"

    @property
    def pid(self) -> int:
        """The process that holds the boards."""
        if self._process is None:
            raise DeviceError("the emulated NVML has not been started; use `with NvmlServer(...) as server:`")
        return self._process.pid

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


def _prepended(environment: Mapping[str, str], name: str, entry: str) -> dict[str, str]:
    return {**environment, name: os.pathsep.join(filter(None, [entry, environment.get(name)]))}
