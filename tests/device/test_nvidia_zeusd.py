"""Control through zeusd: Zeus's own client against a stand-in daemon, boards on which this process may set nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvidia_boards import AAAA, BBBB, NO_CUDA, Machine, machine
from zeusd_stand_in import zeusd

from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import EmulatedBoard

BOARDS = (
    EmulatedBoard(uuid=AAAA, permissions=(), counter_j=1e4, power_limit_w=250.0),
    EmulatedBoard(uuid=BBBB, permissions=(), counter_j=5e4),
)


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="zeusd") as folder:  # paths of Unix sockets must be short
        path = Path(folder) / "zeusd.sock"
        monkeypatch.setenv("ZEUSD_SOCK_PATH", str(path))
        yield path


def open_without_guard(m: Machine, index: int = 0) -> NvidiaDevice:
    """The device makes its own guard, which must go through the daemon too."""
    return NvidiaDevice(index, host=m.host(torch=NO_CUDA))


def test_clocks_and_limits_are_set_and_given_back_through_the_daemon(tmp_path: Path, socket: Path) -> None:
    with machine(tmp_path, *BOARDS) as m, zeusd(m.nvml, socket, order=(0, 1)) as daemon:
        device = open_without_guard(m)
        assert device.mode == "full"
        assert f"through zeusd at {socket}" in device.mode_reason
        device.lock_frequency(900)
        assert m.settings() == ((900, 900), 250.0)
        assert device.set_power_limit(200.0) == 200.0
        device.close()
        assert m.settings() == (None, 250.0)
        asked = [(path.removeprefix("/gpu/"), query["gpu_ids"]) for path, query in daemon.asked]
        assert asked[:2] == [("set_gpu_locked_clocks", "0"), ("set_power_limit", "0")]
        assert sorted(asked[2:]) == [("reset_gpu_locked_clocks", "0"), ("set_power_limit", "0")]


@pytest.mark.parametrize(
    ("groups", "order", "why"),
    [
        (("gpu-read",), (0, 1), "API group 'gpu-control' is not enabled"),
        (
            ("gpu-read", "gpu-control"),
            (1, 0),
            f"GPU 0 of zeusd at {{socket}} is another one than {AAAA}: their energy counters",
        ),
        (("gpu-read", "gpu-control"), (), "GPU indices [0] not available"),
    ],
    ids=["may only read", "counts otherwise", "has no such GPU"],
)
def test_a_daemon_that_is_no_use_leaves_what_this_process_may(
    tmp_path: Path, socket: Path, groups: tuple[str, ...], order: tuple[int, ...], why: str
) -> None:
    with machine(tmp_path, *BOARDS) as m, zeusd(m.nvml, socket, groups=groups, order=order) as daemon:
        device = open_without_guard(m)
        device.lock_frequency(900)
        assert device.mode == "measure-only"
        assert "SYS_ADMIN" in device.mode_reason
        assert why.format(socket=socket) in device.mode_reason
        assert daemon.asked == []


def test_a_socket_where_nobody_listens(tmp_path: Path, socket: Path) -> None:
    with machine(tmp_path, *BOARDS) as m:
        device = open_without_guard(m)
        assert device.mode == "measure-only"
        assert "zeusd at" in device.mode_reason
        assert "Cannot reach Zeusd" in device.mode_reason


def test_who_may_control_without_the_daemon_does_so_where_it_is_away(tmp_path: Path, socket: Path) -> None:
    with machine(tmp_path) as m:
        assert "through NVML" in m.open().mode_reason


@pytest.mark.parametrize("away", [False, True], ids=["refuses", "is gone"])
def test_a_daemon_that_refuses_in_a_run_lowers_the_mode_with_one_line(
    tmp_path: Path, socket: Path, away: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with machine(tmp_path, *BOARDS) as m:
        with zeusd(m.nvml, socket) as daemon:
            device = open_without_guard(m)
            daemon.refusing = "the administrator said no"
            if not away:
                device.lock_frequency(900)
        if away:
            device.lock_frequency(900)
        device.lock_frequency(900)
        assert (device.can_lock_frequency, device.requested_frequency_mhz()) == (False, None)
        assert m.settings() == (None, 250.0)
        (line,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert "locking the SM clock was refused by zeusd at" in line
        device.close()
