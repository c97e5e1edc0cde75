"""Connection: calls over a Unix socket to the process that holds the emulated GPUs.

A message is its length (4 bytes) and a marshalled tuple: (pid, name, inputs) there, (code, outputs) back. Each thread
has a socket of its own, each forked child opens a new one, and a call made by a signal handler in the middle of another
call does too: the socket in use is out of reach until its answer is complete.
"""

from __future__ import annotations

import marshal
import os
import socket
import struct
import threading
from typing import Any

from .codes import Code

LENGTH = struct.Struct("<I")
_CHUNK_BYTES = 65536


def packed(message: tuple[Any, ...]) -> bytes:
    """The bytes of a message, its length before it."""
    body = marshal.dumps(message)
    return LENGTH.pack(len(body)) + body


class Connection:
    """A `library.Transport` to the socket at `path`; where nobody answers, calls end with DRIVER_NOT_LOADED."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle = threading.local()

    def __call__(self, name: str, inputs: list[Any]) -> tuple[int, tuple[Any, ...]]:
        """One call; return code and outputs."""
        try:
            return self._exchange(name, inputs)
        except OSError:
            return int(Code.DRIVER_NOT_LOADED), ()

    def _exchange(self, name: str, inputs: list[Any]) -> tuple[int, tuple[Any, ...]]:
        pid = os.getpid()
        held = self._idle.__dict__.pop("socket", None)
        if held is None or held[0] != pid:
            held = pid, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            held[1].connect(self._path)
        held[1].sendall(packed((pid, name, inputs)))
        answer: tuple[int, tuple[Any, ...]] = marshal.loads(_received(held[1]))
        self._idle.socket = held
        return answer


def _received(source: socket.socket) -> bytes:
    data = source.recv(_CHUNK_BYTES)
    while data and (len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]):
        more = source.recv(_CHUNK_BYTES)
        data = data + more if more else b""
    if not data:
        raise ConnectionResetError("the process that holds the emulated GPUs has ended")
    return data[LENGTH.size :]
