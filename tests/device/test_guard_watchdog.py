"""The watchdog process itself: lean, out of reach of what ends a job, replaced when it dies."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pynvml
import pytest

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlServer
from energy_lightning.device.undo import Undo
from energy_lightning.device.watchdog import listen
from energy_lightning.device.watchdog_process import Watchdog, WatchdogError, WatchdogPipe

LIMIT = Undo("GPU-a", "power_limit", 250.0, applied=300.0)


@pytest.fixture(scope="module")
def machine() -> Iterator[NvmlServer]:
    with NvmlServer([EmulatedBoard(uuid="GPU-a", power_limit_w=300.0)]) as nvml:
        yield nvml


@pytest.fixture
def server(machine: NvmlServer, monkeypatch: pytest.MonkeyPatch) -> NvmlServer:
    """The power limit is 300 W, and a watchdog started now sees it."""
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    with machine.installed():
        pynvml.nvmlInit()
        pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), 300_000)
    return machine


def begin(folder: Path | None = None) -> dict[str, str | None]:
    return {"state_dir": None if folder is None else str(folder), "holder": "1-a", "zeusd_socket": None}


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < deadline_s, f"waited in vain until {what}"
        time.sleep(0.005)


def only_watchdog(server: NvmlServer) -> psutil.Process | None:
    """The one that talks to this server, once it is detached and loaded."""
    for process in psutil.process_iter():
        try:
            if process.cmdline()[-1:] and process.cmdline()[-1].endswith("device/watchdog.py"):
                environment = process.environ()
                detached = os.getsid(process.pid) != process.pid
                if str(server.socket_path) in environment.values() and detached:
                    return process
        except (psutil.Error, ProcessLookupError):
            continue
    return None


def test_it_is_lean_and_nobodys_child(server: NvmlServer) -> None:
    pipe = WatchdogPipe(begin(), lambda: None)
    process = only_watchdog(server)
    assert process is not None
    assert os.getsid(process.pid) not in (os.getsid(0), process.pid)
    assert os.getpgid(process.pid) != os.getpgid(0)
    assert process.pid not in [child.pid for child in psutil.Process().children(recursive=True)]
    pipe.send_record(LIMIT)
    wait_for(lambda: "_ctypes" in _libraries(process), "it has loaded what it needs")
    wait_for(lambda: process.status() == psutil.STATUS_SLEEPING, "it sleeps")
    assert process.num_threads() == 1
    assert process.memory_info().rss < 40e6
    assert not {"torch", "numpy", "zeus"} & _libraries(process)
    pipe.close()
    process.wait(60.0)
    assert server.state(0).power_limit_w == 250.0


def _libraries(process: psutil.Process) -> set[str]:
    """Packages whose shared libraries a process has loaded, and the names of the libraries."""
    return {part.partition(".")[0] for region in process.memory_maps() for part in Path(region.path).parts}


def test_what_it_is_told_decides_what_is_left() -> None:
    reading, writing = os.pipe()
    lines = ["begin {1}", "set a x {2 3}", "set a y {4}", "set b x {5}", "set a x {6 7}", "drop a y", "drop b x"]
    os.write(writing, "\n".join(lines).encode())  # the last line is not complete: a process that was killed in it
    os.close(writing)
    begun: list[str] = []
    assert listen(reading, begun.append) == {("a", "x"): "{6 7}", ("b", "x"): "{5}"}
    assert begun == ["{1}"]
    os.close(reading)


@pytest.mark.parametrize("python", ["", "/nowhere/python", "/bin/false"])
def test_where_no_process_can_be_started_the_error_says_so(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    monkeypatch.setattr(sys, "executable", python)
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(WatchdogError, match="the watchdog process cannot be started"):
        WatchdogPipe(begin(), lambda: None)
    assert os.listdir("/proc/self/fd") == descriptors


def test_the_end_of_the_process_is_noticed_and_told_once(server: NvmlServer) -> None:
    gone = threading.Event()
    pipe = WatchdogPipe(begin(), gone.set)
    process = only_watchdog(server)
    assert process is not None
    process.kill()
    assert gone.wait(60.0)
    with pytest.raises(WatchdogError, match="has ended"):
        pipe.send("drop a x")
    pipe.close()


def test_close_is_no_early_end(server: NvmlServer) -> None:
    said: list[str] = []
    watchdog = Watchdog(begin(), said.append)
    watchdog.record(LIMIT)
    process = only_watchdog(server)
    assert process is not None
    watchdog.drop("GPU-a", "power_limit")
    watchdog.close()
    watchdog.close()
    process.wait(60.0)
    assert not said
    assert server.state(0).power_limit_w == 300.0


def test_a_stopped_watchdog_does_not_stop_the_training(server: NvmlServer) -> None:
    pipe = WatchdogPipe(begin(), lambda: None)
    process = only_watchdog(server)
    assert process is not None
    process.suspend()

    def fill() -> None:
        for _ in range(100_000):
            pipe.send_record(LIMIT)

    with pytest.raises(WatchdogError, match="does not read"):
        fill()
    process.kill()
