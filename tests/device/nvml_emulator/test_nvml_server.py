"""Emulated boards in a process of their own: what children see, what their deaths leave, and how the server ends."""

from __future__ import annotations

import contextlib
import ctypes
import marshal
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pynvml
import pytest

from energy_lightning.device.nvml_emulator import Code, EmulatedBoard, NvmlServer
from energy_lightning.types import DeviceError

LOCK = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex({index})
pynvml.nvmlDeviceSetGpuLockedClocks(gpu, {mhz}, {mhz})
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NvmlServer]:
    with NvmlServer([EmulatedBoard(uuid="GPU-a"), EmulatedBoard(gpu="h100-sxm", uuid="GPU-b")]) as running:
        yield running


@pytest.fixture(autouse=True)
def _unlocked(server: NvmlServer) -> Iterator[None]:
    yield
    with server.installed():
        pynvml.nvmlInit()
        for index in (0, 1):
            pynvml.nvmlDeviceResetGpuLockedClocks(pynvml.nvmlDeviceGetHandleByIndex(index))


def python(server: NvmlServer, code: str, **options: object) -> str:
    """Standard output of a child that runs `code`."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=server.environment(), capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited too long"
        time.sleep(0.01)


# what children see


def test_children_and_theirs_reach_the_same_boards(server: NvmlServer) -> None:
    """A child, a child of it by subprocess, by fork and by spawn, and one of its threads: nine control calls."""
    out = python(
        server,
        """
        import multiprocessing, os, subprocess, sys, threading
        import pynvml

        def lock(mhz):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
            pynvml.nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)

        if __name__ == "__main__":
            pynvml.nvmlInit()
            print(os.getpid(), pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)))
            lock(300)
            forked = os.fork()
            if forked == 0:
                lock(600)
                os._exit(0)
            os.waitpid(forked, 0)
            lock(900)
            code = "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceSetGpuLockedClocks("
            code += "pynvml.nvmlDeviceGetHandleByUUID('GPU-b'), 1200, 1200)"
            subprocess.run([sys.executable, "-c", code], check=True)
            thread = threading.Thread(target=lock, args=(1500,))
            thread.start(); thread.join()
            lock(1800)
            print(forked)
        """,
    )
    pid, *name = out.splitlines()[0].split()
    assert " ".join(name) == "NVIDIA H100 80GB HBM3"
    calls = server.state(1).sets[-6:]
    assert [call.arguments[0] for call in calls] == [300, 600, 900, 1200, 1500, 1800]
    assert [call.pid == int(pid) for call in calls] == [True, False, True, False, True, True]
    assert calls[1].pid == int(out.splitlines()[1])
    assert all(0.0 < time.monotonic() - call.time_s < 60.0 for call in calls)
    assert server.state(1).locked_mhz == (1800, 1800)
    assert server.state(0).locked_mhz is None


def test_parent_and_forked_child_call_at_the_same_time(server: NvmlServer) -> None:
    """Each gets the answers to its own questions."""
    out = python(
        server,
        """
        import os, pynvml
        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
        child = os.fork()
        mine = 0 if child else 1
        for _ in range(1000):
            if pynvml.nvmlDeviceGetUUID(gpus[mine]) != ("GPU-a", "GPU-b")[mine]:
                os._exit(1)
        if child == 0:
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        """,
    )
    assert out.strip() == "0"


def test_spawned_workers_reach_the_boards(server: NvmlServer, tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(
        "import multiprocessing\nimport pynvml\n"
        "def lock(mhz):\n    pynvml.nvmlInit()\n"
        "    pynvml.nvmlDeviceSetGpuLockedClocks(pynvml.nvmlDeviceGetHandleByIndex(0), mhz, mhz)\n"
        "if __name__ == '__main__':\n"
        "    worker = multiprocessing.get_context('spawn').Process(target=lock, args=(750,))\n"
        "    worker.start()\n    worker.join()\n",
        encoding="utf-8",
    )
    subprocess.run([sys.executable, str(script)], env=server.environment(), check=True, timeout=60)
    assert server.state(0).locked_mhz == (750, 750)


def test_a_child_without_pynvml_loads_nothing_of_it(server: NvmlServer) -> None:
    """Against the same interpreter without us: only the two names of our own appear, and nothing connects."""
    code = "import sys; print(*sorted(sys.modules))"
    ours = set(python(server, code).split())
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ours - set(plain.stdout.split()) <= {"sitecustomize", "__future__"}


def test_a_child_with_pynvml_loads_neither_numpy_nor_this_package(server: NvmlServer) -> None:
    code = "import sys, pynvml; pynvml.nvmlInit(); print(*sys.modules)"
    loaded = set(python(server, code).split())
    assert not {name for name in loaded if name.startswith("energy_lightning.device")}
    assert "numpy" not in loaded


def test_another_sitecustomize_runs_too(server: NvmlServer, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.from_another = True\n", encoding="utf-8")
    environment = server.environment({**os.environ, "PYTHONPATH": str(tmp_path)})
    code = "import sys, sitecustomize, pynvml; print(sys.from_another, sitecustomize.__file__, pynvml.nvmlLib.emulated)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", str(tmp_path / "sitecustomize.py"), "True"]


def test_the_environment_is_added_to(server: NvmlServer) -> None:
    base = {"PATH": "/bin", "PYTHONPATH": "/mine"}
    environment = server.environment(base)
    assert environment["PATH"] == "/bin"
    assert environment["PYTHONPATH"].split(os.pathsep)[1:] == ["/mine"]
    assert base == {"PATH": "/bin", "PYTHONPATH": "/mine"}
    assert server.environment({})["PYTHONPATH"] == environment["PYTHONPATH"].split(os.pathsep)[0]


# controls over the wire


def test_controls_reach_the_boards(server: NvmlServer) -> None:
    with server.installed():
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        server.hold_power(0, 123.0)
        wait_for(lambda: pynvml.nvmlDeviceGetPowerUsage(gpu) == 123_000)
        server.permit(0)
        with pytest.raises(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 900, 900)
        server.permit(0, "sm_clock")
        pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 900, 900)
        server.fail(0, "nvmlDeviceGetPowerUsage", Code.UNKNOWN, after=1)
        assert pynvml.nvmlDeviceGetPowerUsage(gpu) > 0
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetPowerUsage(gpu)
        server.fail(0, "nvmlDeviceGetPowerUsage", Code.SUCCESS)
        server.load(0, 1.0)
        server.cap_clock(0, 600)
        wait_for(lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) == 600)
        server.cap_clock(0, None)
        server.occupy(0, 42, 10**9)
        assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)] == [42]
        server.occupy(0, 42, 0)
        server.lose(0)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetPowerUsage(gpu)
        server.lose(0, False)
        server.permit(0, "sm_clock", "power_limit")
        server.load(0, 0.0)
        assert server.boards[0].state.uuid == "GPU-a"
        assert server.state(0).sets[-1].pid == os.getpid()


def test_mistakes_come_back_as_errors(server: NvmlServer) -> None:
    with pytest.raises(DeviceError, match="share from 0 to 1, got 2"):
        server.load(0, 2.0)
    with pytest.raises(DeviceError, match="no emulated GPU 2; there are 2"):
        server.state(2)


def test_energy_goes_on_between_clients(server: NvmlServer) -> None:
    """200 W by the server's own clock, read by two children of which neither lives in between."""
    code = "import pynvml, time; pynvml.nvmlInit(); gpu = pynvml.nvmlDeviceGetHandleByIndex(1)\n"
    code += "print(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu), time.monotonic())"
    server.hold_power(1, 200.0)
    (first_mj, first_s), (second_mj, second_s) = (map(float, python(server, code).split()) for _ in range(2))
    assert (second_mj - first_mj) / 1e3 == pytest.approx(200.0 * (second_s - first_s), abs=200.0 * 0.11)


# deaths


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda how: how.name)
def test_the_death_of_a_client_leaves_the_boards_as_they_are(how: signal.Signals, server: NvmlServer) -> None:
    busy = LOCK.format(index=0, mhz=900) + "print('locked', flush=True)\n"
    busy += "while True: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)\n"
    command = [sys.executable, "-c", busy]
    with subprocess.Popen(command, env=server.environment(), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        child.send_signal(how)
        if how is signal.SIGSTOP:  # one that hangs keeps nobody waiting
            assert server.state(0).locked_mhz == (900, 900)
            child.kill()
        child.wait()
    state = server.state(0)
    assert state.locked_mhz == (900, 900)
    assert state.sets[-1].pid == child.pid


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


@pytest.mark.parametrize(
    "data",
    [
        b"\x10",
        b"\x10\x00\x00\x00half",
        framed(b"oops"),
        framed(b"i"),
        framed(b""),
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xff" + bytes(1 << 21),
        framed(marshal.dumps(5)),
        framed(marshal.dumps((1, 2, 3))),
        framed(marshal.dumps((1, ["nvmlInit_v2"], []))),
        framed(marshal.dumps((1, "nvmlDeviceGetFanSpeed", [0]))),
        framed(marshal.dumps((1, "control.call", []))),
    ],
)
def test_half_messages_and_nonsense_disturb_nobody(data: bytes, server: NvmlServer) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(server.socket_path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # let go before all was sent
            stranger.sendall(data)
        assert server.state(0).uuid == "GPU-a"
    assert server.state(0).uuid == "GPU-a"


def test_requests_in_one_piece_and_in_many_are_answered(server: NvmlServer) -> None:
    request = framed(marshal.dumps((1, "nvmlDeviceGetCount_v2", [])))
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10.0)
        client.connect(str(server.socket_path))
        client.sendall(request + request[:3])
        answer = client.recv(65536)
        for byte in request[3:]:
            client.sendall(bytes([byte]))
        assert marshal.loads(answer[4:]) == (0, (2,))
        assert client.recv(65536) == answer


def test_many_clients_at_once(server: NvmlServer) -> None:
    code = "import pynvml; pynvml.nvmlInit(); gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
    code += "for _ in range(1000): pynvml.nvmlDeviceGetPowerUsage(gpu); pynvml.nvmlDeviceSetPersistenceMode(gpu, 1)"
    server.permit(0, "persistence", "sm_clock")
    before = len(server.state(0).sets)
    children = [subprocess.Popen([sys.executable, "-c", code], env=server.environment()) for _ in range(4)]
    assert [child.wait(60) for child in children] == [0] * 4
    assert len(server.state(0).sets) == before + 4 * 1000
    assert {call.pid for call in server.state(0).sets[before:]} == {child.pid for child in children}


def test_a_call_from_a_signal_handler_in_the_middle_of_calls(server: NvmlServer) -> None:
    """The handler's call and the one it interrupts both get their own answers."""
    out = python(
        server,
        """
        import pynvml, signal, time
        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
        seen = []
        def handler(*_):
            seen.append(pynvml.nvmlDeviceGetUUID(gpus[1]))
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        end = time.monotonic() + 10
        while len(seen) < 100 and time.monotonic() < end:
            assert pynvml.nvmlDeviceGetUUID(gpus[0]) == "GPU-a"
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(len(seen) >= 100, set(seen))
        """,
    )
    assert out.strip() == "True {'GPU-b'}"


def test_long_answers_wait_for_a_slow_reader(server: NvmlServer) -> None:
    """Many times what a socket holds, asked for at once and read later."""
    request = framed(marshal.dumps((1, "nvmlDeviceGetSupportedGraphicsClocks", [_handle(server), 1215])))
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10.0)
        client.connect(str(server.socket_path))
        client.sendall(request * 3000)
        time.sleep(0.1)
        data = b""
        while len(data) < 4 or len(data) < 3000 * (4 + int.from_bytes(data[:4], "little")):
            more = client.recv(1 << 20)
            assert more, f"let go after {len(data)} bytes"
            data += more
    assert server.state(0).uuid == "GPU-a"


def _handle(server: NvmlServer) -> int:
    with server.installed():
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return ctypes.cast(handle, ctypes.c_void_p).value or 0


# the end of the server


def test_the_server_ends_with_the_block_and_clients_are_told() -> None:
    with NvmlServer([EmulatedBoard()]) as server:
        with server.installed():
            pynvml.nvmlInit()
            pid, folder = server.pid, server.socket_path.parent
            assert pynvml.nvmlDeviceGetCount() == 1
            server.__exit__(None, None, None)
            with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
                pynvml.nvmlDeviceGetCount()
        with pytest.raises(DeviceError, match="has ended"):
            server.state(0)
        assert not psutil.pid_exists(pid)
        assert not folder.exists()


def test_the_server_ends_with_its_owner() -> None:
    """Killed, and a forked child that holds the owner's pipes lives on. Beside that: a driver that is not loaded."""
    code = """
    import os, sys, time
    import pynvml
    from energy_lightning.device.nvml_emulator import Code, EmulatedBoard, NvmlServer
    if __name__ == "__main__":
        with NvmlServer([EmulatedBoard()], init_error=Code.DRIVER_NOT_LOADED) as server, server.installed():
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError_DriverNotLoaded:
                print(server.pid, server.state(0).power_limit_w, server.socket_path.parent, flush=True)
            if os.fork() == 0:
                sys.exit(0)  # leaves the blocks, and must not end the server
            os.wait()
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            print(server.state(0).power_limit_w, flush=True)
            time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        assert owner.stdout is not None
        pid, limit_w, folder = owner.stdout.readline().split()
        assert limit_w == "400.0"
        assert Path(folder).is_dir()
        assert owner.stdout.readline() == "400.0\n"
        server = psutil.Process(int(pid))
        owner.kill()
        try:
            wait_for(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
            assert not Path(folder).exists()
        finally:
            os.killpg(owner.pid, signal.SIGKILL)


def test_ctrl_c_of_the_terminal_does_not_reach_the_server(server: NvmlServer) -> None:
    assert os.getsid(server.pid) == server.pid != os.getsid(0)
    os.kill(server.pid, signal.SIGINT)
    assert server.state(0).uuid == "GPU-a"


def test_boards_that_cannot_be_are_refused_by_the_owner() -> None:
    with pytest.raises(DeviceError, match="two emulated GPUs have the UUID GPU-a"):
        NvmlServer([EmulatedBoard(uuid="GPU-a"), EmulatedBoard(uuid="GPU-a")])
    with pytest.raises(DeviceError, match="has not been started"):
        NvmlServer([EmulatedBoard()]).environment()
