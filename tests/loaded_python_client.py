"""The program that stands in for the interpreter: `client.py SOCKET [python's arguments]` (see loaded_python).

Hands its arguments, folder, environment and open files to the loaded process, passes signals on to the process that was
forked there, and ends as that one does. Options that change the interpreter itself (`-S`, `-I`, `-i`, ...) start a real
one in its place.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def can_be_forked(arguments: list[str]) -> bool:
    """Whether these are `[-u] [-B] (-m MODULE | -c CODE | FILE) ...`."""
    for word in arguments:
        if word not in ("-u", "-B"):
            return word in ("-m", "-c") or not word.startswith("-")
    return False


def open_files() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # the listing's own
            continue
        found.append(int(name))
    return found


def number_from(connection: socket.socket) -> int:
    """What the loaded process says next; ends this one where that has ended."""
    said = connection.recv(8, socket.MSG_WAITALL)
    if len(said) < 8:
        os._exit(1)
    return int.from_bytes(said, "little", signed=True)


def main() -> None:
    path, *arguments = sys.argv[1:]
    if not can_be_forked(arguments):
        os.execv(sys.executable, [sys.executable, *arguments])
    files = open_files()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    order = marshal.dumps((arguments, os.getcwd(), dict(os.environ), files))
    socket.send_fds(connection, [len(order).to_bytes(8, "little")], files)
    connection.sendall(order)
    for file in files:  # ends of pipes must close with the process that uses them
        os.close(file)
    pid = number_from(connection)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    exit_code = number_from(connection)
    if exit_code < 0:
        signal.signal(-exit_code, signal.SIG_DFL) if -exit_code != signal.SIGKILL else None
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)


if __name__ == "__main__":
    main()
