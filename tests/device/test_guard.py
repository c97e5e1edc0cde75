"""HardwareGuard in one process, its watchdog replaced by a list of what it is told."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energy_lightning.device.guard import HardwareGuard
from energy_lightning.device.lease import LeaseError
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.device.state_file import GpuRecord, GpuState
from energy_lightning.device.undo import Undo
from energy_lightning.device.watchdog_process import WatchdogError
from energy_lightning.types import DeviceError


class FakePipe:
    """A watchdog process: keeps what it was told."""

    def __init__(self, begin: Any, gone: Callable[[], None]) -> None:
        self.begin, self.gone = begin, gone
        self.told: list[str] = []
        self.broken = False

    def send_record(self, undo: Undo) -> None:
        self.send(f"set {undo.uuid} {undo.setting} {undo.previous} {undo.applied}")

    def send(self, line: str) -> None:
        if self.broken:
            raise WatchdogError("it does not read")
        self.told.append(line)

    def close(self) -> None:
        self.told.append("end")

    def forget(self) -> None:
        self.broken = True


class Exits:
    """The module atexit: what would run at the interpreter's exit."""

    def __init__(self) -> None:
        self.registered: list[Callable[[], None]] = []

    def register(self, call: Callable[[], None]) -> None:
        self.registered.append(call)

    def unregister(self, call: Callable[[], None]) -> None:
        self.registered.remove(call)


class Setup:
    """One guard over one emulated GPU, and the calls that a device makes."""

    def __init__(self, nvml: NvmlEmulator, folder: Path | None) -> None:
        import pynvml

        self.nvml, self.exits = nvml, Exits()
        self.pipes: list[FakePipe] = []
        self.guard = HardwareGuard(folder, job="job one", exits=self.exits, start_watchdog=self.start)
        pynvml.nvmlInit()
        self._pynvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByUUID("GPU-a")

    def start(self, begin: Any, gone: Callable[[], None]) -> Any:
        self.pipes.append(FakePipe(begin, gone))
        return self.pipes[-1]

    def lock(self, clock_mhz: int = 1005) -> None:
        with self.guard.changing("GPU-a", "sm_clock", None):
            self._pynvml.nvmlDeviceSetGpuLockedClocks(self._handle, clock_mhz, clock_mhz)

    def limit(self, limit_w: float = 300.0) -> None:
        previous_w = self._pynvml.nvmlDeviceGetPowerManagementLimit(self._handle) / 1e3
        with self.guard.changing("GPU-a", "power_limit", previous_w) as change:
            self._pynvml.nvmlDeviceSetPowerManagementLimit(self._handle, round(limit_w * 1e3))
            change.applied = limit_w

    def is_set(self) -> tuple[tuple[int, int] | None, float]:
        state = self.nvml.state(0)
        return state.locked_mhz, state.power_limit_w


@pytest.fixture
def nvml() -> Iterator[NvmlEmulator]:
    with NvmlEmulator([EmulatedBoard(uuid="GPU-a", power_limit_w=250.0)]) as emulator:
        yield emulator


@pytest.fixture(params=[True, False], ids=["records", "no records"])
def setup(nvml: NvmlEmulator, tmp_path: Path, request: pytest.FixtureRequest) -> Setup:
    return Setup(nvml, tmp_path if request.param else None)


def test_nothing_is_started_or_written_before_the_first_change(nvml: NvmlEmulator, tmp_path: Path) -> None:
    setup = Setup(nvml, tmp_path)
    setup.guard.restore()
    assert not setup.pipes
    assert not list(tmp_path.iterdir())
    setup.guard.close()
    assert not setup.exits.registered


def test_the_watchdog_knows_before_the_device_does(setup: Setup) -> None:
    with setup.guard.changing("GPU-a", "power_limit", 250.0):
        assert setup.pipes[0].told == ["set GPU-a power_limit 250.0 None"]
        assert not setup.nvml.state(0).sets


def test_everything_comes_back_and_changes_may_follow(setup: Setup) -> None:
    for _ in range(2):
        setup.lock()
        setup.limit()
        setup.limit(350.0)
        assert setup.is_set() == ((1005, 1005), 350.0)
        setup.guard.restore("GPU-a", "sm_clock")
        assert setup.is_set() == (None, 350.0)
        setup.guard.restore("GPU-b")
        assert setup.is_set() == (None, 350.0)
        setup.guard.restore()
        assert setup.is_set() == (None, 250.0)
    (pipe,) = setup.pipes
    assert pipe.told[-2:] == ["drop GPU-a sm_clock", "drop GPU-a power_limit"]


def test_close_gives_back_and_refuses_from_then_on(setup: Setup, tmp_path: Path) -> None:
    setup.lock()
    setup.limit()
    for _ in range(2):
        setup.guard.close()
    assert setup.is_set() == (None, 250.0)
    assert setup.pipes[0].told[-1] == "end"
    assert not list(tmp_path.rglob("*.json"))
    with pytest.raises(DeviceError, match="open the device again"):
        setup.lock()
    assert setup.is_set() == (None, 250.0)


def test_the_interpreters_exit_and_the_end_of_with_close(setup: Setup) -> None:
    setup.lock()
    (at_exit,) = setup.exits.registered
    at_exit()
    assert setup.is_set() == (None, 250.0)
    assert not setup.exits.registered


def test_leaving_with_on_an_error_closes(nvml: NvmlEmulator, tmp_path: Path) -> None:
    setup = Setup(nvml, tmp_path)

    def work() -> None:
        with setup.guard:
            setup.lock()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert setup.is_set() == (None, 250.0)


@pytest.mark.parametrize("raises", [True, False])
def test_a_refused_change_leaves_no_record(setup: Setup, raises: bool) -> None:
    def refuse() -> None:
        with setup.guard.changing("GPU-a", "sm_clock", None) as change:
            change.refused = True
            if raises:
                raise DeviceError("no permission")

    if raises:
        with pytest.raises(DeviceError, match="no permission"):
            refuse()
    else:
        refuse()
    setup.guard.restore()
    assert not setup.nvml.state(0).sets


def test_a_refusal_after_a_change_keeps_the_record(setup: Setup) -> None:
    setup.lock()
    with setup.guard.changing("GPU-a", "sm_clock", None) as change:
        change.refused = True
    setup.guard.restore()
    assert setup.is_set() == (None, 250.0)


def test_ctrl_c_in_the_middle_of_a_change_gives_it_back(setup: Setup) -> None:
    def interrupted() -> None:
        with setup.guard.changing("GPU-a", "sm_clock", None) as change:
            change.refused = True  # as a careful caller may say beforehand
            setup.lock()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    setup.guard.close()
    assert setup.is_set() == (None, 250.0)


def test_a_signal_that_closes_in_the_middle_of_a_change_gives_it_back(setup: Setup) -> None:
    import pynvml

    with setup.guard.changing("GPU-a", "sm_clock", None):
        setup.guard.close()  # as a handler of SIGTERM does, in this very thread
        pynvml.nvmlDeviceSetGpuLockedClocks(pynvml.nvmlDeviceGetHandleByUUID("GPU-a"), 1005, 1005)
    assert setup.is_set() == (None, 250.0)


def test_a_limit_that_somebody_set_meanwhile_stays(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    import pynvml

    setup.limit()
    pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByUUID("GPU-a"), 320_000)
    setup.guard.close()
    assert setup.is_set() == (None, 320.0)
    (line,) = [record.message for record in caplog.records]
    assert "320 W, not the 300 W" in line


def test_what_cannot_be_given_back_is_said_once_and_tried_again(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    setup.lock()
    setup.nvml.permit(0)
    setup.guard.restore()
    setup.guard.restore()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    setup.nvml.permit(0, "sm_clock")
    setup.guard.close()
    assert setup.is_set() == (None, 250.0)


def test_another_job_is_refused_and_told_who_has_the_gpu(nvml: NvmlEmulator, tmp_path: Path) -> None:
    first, second = Setup(nvml, tmp_path), Setup(nvml, tmp_path)
    first.lock()
    with pytest.raises(LeaseError, match=rf"another job \(job one, process {os.getpid()}, since 2"):
        second.guard.lease("GPU-a", owner="job two")
    with pytest.raises(LeaseError, match="another job"):
        second.lock(1200)
    assert first.is_set() == ((1005, 1005), 250.0)
    first.guard.close()
    second.lock(1200)
    assert second.is_set() == ((1200, 1200), 250.0)
    second.guard.close()


def test_without_a_usable_state_directory_the_watchdog_alone_keeps_watch(
    nvml: NvmlEmulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    setup = Setup(nvml, tmp_path / "state")
    setup.lock()
    setup.limit()
    (line,) = [record.message for record in caplog.records]
    assert "cannot be used" in line
    assert "XDG_STATE_HOME" in line
    assert setup.pipes[0].told[0] == "set GPU-a sm_clock None None"
    setup.guard.close()
    assert setup.is_set() == (None, 250.0)


def test_a_disk_that_fills_up_between_two_changes_keeps_neither_from_coming_back(
    nvml: NvmlEmulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(state: GpuState, record: GpuRecord, *, durable: bool = False) -> None:
        raise OSError(28, "No space left on device")

    setup = Setup(nvml, tmp_path)
    setup.lock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GpuState, "write", full)
        setup.limit()
    assert setup.is_set() == ((1005, 1005), 300.0)
    (line,) = [record.message for record in caplog.records]
    assert "no record can be written" in line
    setup.lock(1200)  # there is room again, but half a record would pass for a whole one
    assert not list(tmp_path.rglob("*.json"))
    setup.guard.close()
    assert setup.is_set() == (None, 250.0)


@pytest.mark.parametrize("damage", ["cleared", "damaged"])
def test_records_that_are_lost_meanwhile_do_not_matter(setup: Setup, tmp_path: Path, damage: str) -> None:
    setup.lock()
    setup.limit()
    for path in tmp_path.rglob("*.json"):
        path.unlink() if damage == "cleared" else path.write_text("{")
    setup.guard.close()
    assert setup.is_set() == (None, 250.0)


def test_without_a_watchdog_nothing_is_changed(nvml: NvmlEmulator, tmp_path: Path) -> None:
    def fails(begin: Any, gone: Callable[[], None]) -> Any:
        raise WatchdogError("no process can be started")

    guard = HardwareGuard(tmp_path, exits=Exits(), start_watchdog=fails)
    with (
        pytest.raises(DeviceError, match="nothing is changed, because nothing outside this process could undo it"),
        guard.changing("GPU-a", "sm_clock", None),
    ):
        pytest.fail("the change must not be made")
    guard.close()
    assert not list(tmp_path.rglob("*.json"))


def test_a_watchdog_that_ends_early_is_replaced_and_told_everything(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.lock()
    setup.limit()
    setup.pipes[0].gone()
    assert setup.pipes[1].told == ["set GPU-a sm_clock None None", "set GPU-a power_limit 250.0 300.0"]
    assert setup.pipes[1].begin == setup.pipes[0].begin
    assert "number 2 was started" in caplog.records[-1].message
    for _ in range(4):
        setup.pipes[-1].gone()
    assert "the watchdog process is gone and stays away (5 watchdog processes have ended" in caplog.records[-1].message
    setup.lock(1200)  # known to the state file and to this process
    setup.guard.close()
    assert setup.is_set() == (None, 250.0)


def test_a_watchdog_that_does_not_read_never_stops_the_training(setup: Setup) -> None:
    setup.limit()
    setup.pipes[0].broken = True
    setup.limit(350.0)
    with pytest.raises(DeviceError, match="it does not read"):
        setup.lock()
    setup.guard.close()
    assert setup.is_set() == (None, 250.0)


def test_no_restore_comes_between_a_record_and_its_change(setup: Setup) -> None:
    recorded, order = threading.Event(), []

    def restore() -> None:
        recorded.wait(10.0)
        setup.guard.restore()
        order.append("restore")

    other = threading.Thread(target=restore)
    other.start()
    with setup.guard.changing("GPU-a", "sm_clock", None):
        recorded.set()
        setup.lock()
        other.join(0.05)  # it cannot finish
        order.append("change")
    other.join(10.0)
    assert order == ["change", "restore"]
    assert setup.is_set() == (None, 250.0)


def test_a_forked_child_has_no_part_in_it(setup: Setup) -> None:
    setup.lock()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            setup.guard.close()
            setup.guard.restore()
            try:
                setup.lock(1200)
            except DeviceError as error:
                code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert setup.is_set() == ((1005, 1005), 250.0)
    assert setup.pipes[0].told == ["set GPU-a sm_clock None None"]
    setup.guard.close()
    assert setup.is_set() == (None, 250.0)
