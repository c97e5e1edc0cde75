"""A stand-in for the Python interpreter whose processes begin with torch, Lightning and transformers already loaded.

    with loaded_python(folder) as python:
        subprocess.run([python, "script.py"])          # also -m MODULE and -c CODE; sys.executable in it is `python`

One process loads them once and forks for each start: loading takes most of the time of a short training. All of it is
of other projects; energy_lightning itself is imported by each process, anew. Processes have the arguments, folder,
environment (a sitecustomize of PYTHONPATH included), open files, signals and exit codes that they would have; not the
process id, parent and session, nor a hash seed of their own (sets of texts have one order in all of them), and what is
loaded is not taken apart at the end. Tests of those, and of what loading does, take sys.executable; `pytest
--real-python` starts a real interpreter in all of them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import marshal
import multiprocessing
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from multiprocessing import resource_tracker, spawn
from pathlib import Path

LOADED = (
    "torch",
    "lightning.pytorch",
    "hydra",
    "omegaconf",
    "pandas",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
)
CLIENT = Path(__file__).with_name("loaded_python_client.py")
_ABOVE = 500  # file descriptors from here on are in nobody's way
_MAX_FILES = 253  # that one message can carry


@contextmanager
def loaded_python(folder: Path, loaded: Sequence[str] = LOADED) -> Iterator[str]:
    """The path of the stand-in, in `folder`; with the block, its processes end."""
    path, python = folder / "socket", folder / "python"
    command = [sys.executable, "-I", "-S", str(CLIENT), str(path)]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    python.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(64)  # clients may call at once: they wait while the process loads
        command = [sys.executable, __file__, str(listener.fileno()), str(python), *loaded]
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], start_new_session=True, cwd=folder
        )
    try:
        yield str(python)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


@contextmanager
def spawned_by(python: str) -> Iterator[None]:
    """What multiprocessing spawns in the block runs in this interpreter."""
    resource_tracker.ensure_running()  # of the whole process: it stays
    before = spawn.get_executable()
    multiprocessing.set_executable(python)
    try:
        yield
    finally:
        multiprocessing.set_executable(before)


class Server:
    """Forks a process for each connection, tells its id, later its exit code; kills it where the client is gone."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._running = listener, dict[int, socket.socket]()
        self._woken, self._waking = socket.socketpair()
        self._waking.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking.fileno())
        self._poll = select.poll()
        for file in (sys.stdin, listener, self._woken):
            self._poll.register(file, select.POLLIN)

    def serve(self) -> socket.socket | None:
        """The connection whose order is this process's to fulfil; None: nobody will order any more."""
        while True:
            files = {file for file, _ in self._poll.poll()}
            if sys.stdin.fileno() in files:
                for pid in self._running:
                    os.kill(pid, signal.SIGKILL)
                return None
            if self._woken.fileno() in files:
                self._woken.recv(4096)
                self._reap()
            for pid, connection in self._running.items():
                if connection.fileno() in files:
                    os.kill(pid, signal.SIGKILL)
                    self._poll.unregister(connection)
            if self._listener.fileno() in files and (mine := self._fork()) is not None:
                return mine

    def _fork(self) -> socket.socket | None:
        """The connection, in the new process; None in this one."""
        connection, _ = self._listener.accept()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._listener, self._woken, self._waking, *self._running.values()):
                other.close()
            return connection
        self._running[pid] = connection
        self._poll.register(connection, 0)  # that the client has gone; its order is the new process's to read
        return None

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                connection = self._running.pop(ended[0], None)
                if connection is None:  # a process that a loaded module has started
                    continue
                with suppress(KeyError):
                    self._poll.unregister(connection)
                with suppress(OSError):
                    connection.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(8, "little", signed=True))
                connection.close()


def take(connection: socket.socket) -> list[str]:
    """Become the process that was ordered, and return the interpreter's arguments."""
    os.setsid()
    header, received, _, _ = socket.recv_fds(connection, 8, _MAX_FILES)
    arguments, folder, environment, files = marshal.loads(
        connection.recv(int.from_bytes(header, "little"), socket.MSG_WAITALL)
    )
    connection.sendall(os.getpid().to_bytes(8, "little"))
    connection.close()
    high = [fcntl(file, F_DUPFD_CLOEXEC, _ABOVE) for file in received]
    for file in {0, 1, 2, *received}:
        os.close(file)
    for file, wanted in zip(high, files, strict=True):
        os.dup2(file, wanted)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return list(arguments)


def follow_environment() -> None:
    """Forget what loaded modules took from the environment of the process that loaded them."""
    tempfile.tempdir = None
    if "torch" in sys.modules and (count := os.environ.get("OMP_NUM_THREADS")):
        sys.modules["torch"].set_num_threads(int(count))


def customize_site() -> None:
    """As the interpreter does at its start, of PYTHONPATH; pynvml, which torch has loaded, is loaded again for it."""
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
        if "pynvml" in sys.modules:
            importlib.reload(sys.modules["pynvml"])


def run(arguments: list[str]) -> None:
    """What the interpreter does with its arguments."""
    while arguments[0] in ("-u", "-B"):
        sys.dont_write_bytecode |= arguments[0] == "-B"
        if arguments.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    kind = arguments.pop(0)
    if kind == "-m":
        sys.argv, sys.path[:0] = arguments, [os.getcwd()]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[:0] = ["-c", *arguments[1:]], [""]
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(arguments[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[:0] = [kind, *arguments], [str(Path(kind).resolve().parent)]
        runpy.run_path(kind, run_name="__main__")


def run_and_leave(arguments: list[str]) -> None:
    """Run, and end after threads and exit handlers, without what Python then does to take all that was loaded apart."""
    exit_code: object = 1

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code if isinstance(exit_code, int) else bool(exit_code))

    atexit.register(leave)  # the first one is the last to be called
    try:
        run(arguments)
        exit_code = 0
    except SystemExit as ending:
        exit_code = ending.code
        raise
    except KeyboardInterrupt:  # ends as by the signal
        atexit.unregister(leave)
        raise


def main(listener_file: str, python: str, *loaded: str) -> None:
    """Load, serve, and be each of the ordered processes."""
    del sys.path[0]  # this file's folder
    for name in loaded:
        importlib.import_module(name)
    assert "energy_lightning" not in sys.modules
    gc.collect()
    gc.freeze()  # processes that end do not look through all that was loaded
    connection = Server(socket.socket(fileno=int(listener_file))).serve()
    if connection is None:
        return
    arguments = take(connection)
    follow_environment()
    customize_site()
    sys.executable = python
    multiprocessing.set_executable(python)
    run_and_leave(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
