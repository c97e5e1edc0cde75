"""The process behind NvmlServer: holds the boards, answers clients, ends with its owner.

Started as `python -m ... <listening socket's descriptor> <owner's pid>`; the boards come pickled over standard input,
whose end is the owner's end. One thread: calls are served one after the other.
"""

from __future__ import annotations

import marshal
import os
import pickle
import selectors
import shutil
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from energy_lightning.device.nvml_emulator.client.codes import Code
from energy_lightning.device.nvml_emulator.client.connection import LENGTH, packed
from energy_lightning.device.nvml_emulator.client.signatures import SIGNATURES
from energy_lightning.device.nvml_emulator.controls import CONTROLS
from energy_lightning.device.nvml_emulator.driver import EmulatedDriver
from energy_lightning.types import DeviceError

_OWNER_CHECK_S = 0.5  # standard input may stay open in children that the owner forked
_MAX_MESSAGE_BYTES = 1 << 20
_CHUNK_BYTES = 65536
_PATIENCE_S = 5.0  # for a client that does not take a long answer
_KNOWN = {*SIGNATURES, *(f"control.{name}" for name in CONTROLS)}


class Server:
    """Answers requests on `listener` until standard input closes or the owner is gone."""

    def __init__(self, driver: EmulatedDriver, listener: socket.socket, owner_pid: int) -> None:
        self._driver, self._listener, self._owner_pid = driver, listener, owner_pid
        self._selector = selectors.DefaultSelector()
        self._unread: dict[socket.socket, bytes] = {}

    def run(self) -> None:
        """Serve."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        while os.getppid() == self._owner_pid:
            for key, _ in self._selector.select(_OWNER_CHECK_S):
                if key.fd == 0:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # gone again
            return
        client.settimeout(_PATIENCE_S)
        self._unread[client] = b""
        self._selector.register(client, selectors.EVENT_READ)

    def _read(self, client: socket.socket) -> None:
        """Answer what `client` asks; one that is gone or talks nonsense is let go."""
        try:
            requests = self._requests(client, client.recv(_CHUNK_BYTES))
        except (OSError, ValueError, EOFError, TypeError):
            self._let_go(client)
            return
        answers = b"".join(packed(self._answer(*request)) for request in requests)
        try:
            client.sendall(answers)
        except OSError:
            self._let_go(client)

    def _let_go(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        del self._unread[client]
        client.close()

    def _requests(self, client: socket.socket, data: bytes) -> list[tuple[int, str, list[Any]]]:
        """The complete requests among what has come; the rest is kept. Raises where the client has ended or errs."""
        if not data:
            raise EOFError
        data, requests = self._unread[client] + data, []
        while len(data) >= LENGTH.size and len(data) >= (end := LENGTH.size + LENGTH.unpack_from(data)[0]):
            pid, name, inputs = marshal.loads(data[LENGTH.size : end])
            if name not in _KNOWN:
                raise ValueError(name)
            requests.append((pid, name, inputs))
            data = data[end:]
        if len(data) > _MAX_MESSAGE_BYTES:
            raise ValueError(f"a request of more than {_MAX_MESSAGE_BYTES} bytes")
        self._unread[client] = data
        return requests

    def _answer(self, pid: int, name: str, inputs: list[Any]) -> tuple[int, tuple[Any, ...]]:
        if name in SIGNATURES:
            return self._driver.call(name, inputs, pid)
        try:
            result = getattr(self._driver, name.removeprefix("control."))(*inputs)
        except DeviceError as error:
            return int(Code.INVALID_ARGUMENT), (str(error),)
        return int(Code.SUCCESS), (None if result is None else asdict(result),)


def main() -> None:
    """Serve the boards that standard input brings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner's job, whose guard still needs the boards
    boards, init_error = pickle.load(sys.stdin.buffer)
    driver = EmulatedDriver(boards, now_s=time.monotonic, init_error=init_error)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        folder = os.path.dirname(listener.getsockname())
        Server(driver, listener, owner_pid=int(sys.argv[2])).run()
    shutil.rmtree(folder, ignore_errors=True)  # an owner that was killed has not done it


if __name__ == "__main__":
    main()
