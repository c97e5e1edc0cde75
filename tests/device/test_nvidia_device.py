"""NvidiaDevice on emulated boards under unmodified pynvml and Zeus: readings, sources, modes, control, giving back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nvidia_boards import AAAA, BBBB, cuda_properties, cuda_torch, machine

from energy_lightning.device import Device
from energy_lightning.device.modes import describe_mode
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import Code, EmulatedBoard, NvmlEmulator
from energy_lightning.device.readings import memory_clock_in_use
from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError

LOCK, UNLOCK = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
LIMIT = "nvmlDeviceSetPowerManagementLimit"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


# readings


def test_readings_are_in_our_units(tmp_path: Path) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, counter_refresh_s=0.0, counter_j=5000.0)) as m:
        device = m.open()
        m.nvml.hold_power(0, 123.0)
        start_j = device.energy_j()
        m.wait(10.0)
        assert start_j is not None
        assert device.energy_j() == pytest.approx(start_j + 1230.0, abs=2e-3)  # the counter counts mJ
        assert (device.power_w(), device.power_limit_w) == (123.0, 400.0)
        assert device.temperature_c() == pytest.approx(m.nvml.state(0).temperature_c, abs=1.0)
        assert device.power_limit_range_w == (100.0, 400.0)
        assert (device.num_sms, device.energy_source, device.uuid) == (108, "counter", AAAA)
        assert device.frequencies_mhz == GPU.load("a100-sxm4-40gb").frequencies_mhz


def test_it_is_a_device_and_says_that_its_hardware_is_emulated(tmp_path: Path) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        assert isinstance(device, Device)
        assert (device.name, device.emulated_hardware) == ("A100-SXM4-40GB (emulated NVML)", True)
        assert not device.virtual_clock


def test_the_counters_refresh_is_probed_when_first_asked_for(tmp_path: Path) -> None:
    for refresh_s in (0.02, 0.1):
        with machine(tmp_path, EmulatedBoard(uuid=AAAA, counter_refresh_s=refresh_s)) as m:
            device = m.open()
            opened_s = device.now_s()
            assert device.counter_refresh_s == pytest.approx(refresh_s, rel=0.1)
            assert 0.0 < device.now_s() - opened_s < 1.2
            probed_s = device.now_s()
            assert device.counter_refresh_s > 0.0
            assert device.now_s() == probed_s


@pytest.mark.parametrize(
    ("board", "source", "mode", "why"),
    [
        ({}, "counter", "full", "SM clocks and power limits are set through NVML"),
        ({"has_counter": False}, "power", "full", "no energy counter"),
        (
            {"has_counter": False, "has_power": False, "has_power_fields": False},
            "none",
            "time-only",
            "no energy counter (Not Supported) and no power reading",
        ),
        ({"permissions": ()}, "counter", "measure-only", "root or the capability SYS_ADMIN"),
    ],
    ids=["counter", "power", "none", "no permission"],
)
def test_source_and_mode_are_what_the_board_has(
    tmp_path: Path, board: dict[str, object], source: str, mode: str, why: str
) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, **board)) as m:  # type: ignore[arg-type]
        device = m.open()
        assert (device.energy_source, device.mode) == (source, mode)
        assert (device.energy_j() is None) == (source != "counter")
        assert (device.power_w() is None) == (source == "none")
        line = describe_mode(device)
        assert why in line
        assert "\n" not in line
        assert AAAA in line


@pytest.mark.parametrize("has_fields", [True, False])
def test_power_is_todays_where_the_board_tells_it_and_else_nvmls_mean(tmp_path: Path, has_fields: bool) -> None:
    board = EmulatedBoard(gpu="a40", uuid=AAAA, has_power_fields=has_fields, counter_refresh_s=0.0, average_s=1.0)
    with machine(tmp_path, board) as m:
        device = m.open()
        m.nvml.hold_power(0, 100.0)
        m.wait(5.0)
        m.nvml.hold_power(0, 200.0)
        m.wait(0.25)
        assert device.power_w() == pytest.approx(200.0 if has_fields else 125.0)
        m.wait(1.0)
        assert device.power_w() == pytest.approx(200.0)


def test_a_counter_that_stops_answering_is_no_energy_and_no_error(tmp_path: Path) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        m.nvml.fail(0, "nvmlDeviceGetTotalEnergyConsumption", Code.UNKNOWN)
        assert device.energy_j() is None


@pytest.mark.parametrize(
    ("now_mhz", "state", "expected_mhz"),
    [(9251, 2, 9251), (9501, 0, 9501), (405, 8, 9501), (810, 5, 9501), (405, 2, 405), (700, 0, 9501)],
    ids=["compute state", "fastest", "idle", "nearly idle", "locked low", "not listed"],
)
def test_clocks_are_those_of_the_memory_clock_under_work(now_mhz: int, state: int, expected_mhz: int) -> None:
    assert memory_clock_in_use([9501, 9251, 810, 405], now_mhz=now_mhz, state=state) == expected_mhz


@pytest.mark.parametrize(
    ("missing", "listed"),
    [("nvmlDeviceGetPerformanceState", True), ("nvmlDeviceGetSupportedGraphicsClocks", False)],
)
def test_clocks_are_locked_where_they_are_listed(tmp_path: Path, missing: str, listed: bool) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, errors={missing: Code.NOT_SUPPORTED})) as m:
        device = m.open()
        assert bool(device.frequencies_mhz) == device.can_lock_frequency == listed
        assert ("does not list the SM clocks" in device.mode_reason) != listed
        assert device.can_set_power_limit


def test_the_clock_follows_a_lock_after_its_lag(tmp_path: Path) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, clock_lag_s=0.02)) as m:
        device = m.open()
        m.nvml.load(0, 1.0)
        m.wait(1.0)
        fast_mhz = device.frequency_mhz()
        device.lock_frequency(900)
        assert (device.requested_frequency_mhz(), device.frequency_mhz()) == (900, fast_mhz)
        m.wait(0.021)
        assert device.frequency_mhz() == 900
        device.reset_frequency()
        assert device.requested_frequency_mhz() is None


def test_a_clock_that_is_held_down_tells_why(tmp_path: Path) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        m.nvml.load(0, 1.0)
        device.lock_frequency(1410)
        m.wait(1.0)
        assert device.throttle_reasons() == ()
        m.nvml.cap_clock(0, 1200, "sw_power_cap")
        m.wait(1.0)
        assert (device.requested_frequency_mhz(), device.frequency_mhz()) == (1410, 1200)
        assert device.throttle_reasons() == ("sw_power_cap",)


def test_drivers_without_the_newest_calls_are_read_too(tmp_path: Path) -> None:
    newest = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetC2cModeInfoV")
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, errors=dict.fromkeys(newest, Code.FUNCTION_NOT_FOUND))) as m:
        device = m.open()
        m.nvml.load(0, 1.0)
        m.nvml.cap_clock(0, 1200, "sw_thermal_slowdown")
        m.wait(1.0)
        assert device.temperature_c() == pytest.approx(m.nvml.state(0).temperature_c, abs=1.0)
        assert device.throttle_reasons() == ("sw_thermal_slowdown",)


# what is permitted


def test_looking_for_permission_changes_nothing(tmp_path: Path) -> None:
    board = EmulatedBoard(uuid=AAAA, power_limit_w=250.0, locked_mhz=(900, 1200))
    with machine(tmp_path, board) as m:
        assert m.open().mode == "full"
        assert m.settings() == ((900, 1200), 250.0)
        assert [(call.function, call.code) for call in m.nvml.state(0).sets] == [
            (LIMIT, Code.SUCCESS),
            (LOCK, Code.INVALID_ARGUMENT),
        ]


def test_without_permission_nothing_is_tried_and_the_line_names_the_capability(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, permissions=())) as m:
        device = m.open()
        device.lock_frequency(1200)
        assert device.set_power_limit(200.0) == 400.0
        device.close()
        assert m.calls() == []
        assert (device.can_lock_frequency, device.can_set_power_limit) == (False, False)
        assert device.requested_frequency_mhz() is None
        assert "SYS_ADMIN" in device.mode_reason
        assert "zeusd" in device.mode_reason
    assert warnings_of(caplog) == []


def test_a_permission_that_is_lost_in_a_run_is_one_line_and_measuring_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, fail_after={LOCK: (1, Code.NO_PERMISSION)})) as m:
        device = m.open()
        device.lock_frequency(1200)
        for _ in range(3):
            device.lock_frequency(900)
        assert device.set_power_limit(200.0) == 400.0
        assert (device.mode, device.can_lock_frequency, device.can_set_power_limit) == ("measure-only", False, False)
        assert device.requested_frequency_mhz() is None
        assert m.settings() == (None, 400.0)  # not 1200 MHz for the rest of the run
        assert m.calls() == [LOCK, LOCK, UNLOCK]
        (line,) = warnings_of(caplog)
        assert "SYS_ADMIN" in line
        assert "Training goes on" in line
        assert device.energy_j() is not None
        device.close()
        assert m.settings() == (None, 400.0)


def test_a_limit_for_a_gpu_that_is_lost_is_a_refusal_as_any_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        assert device.set_power_limit(300.0) == 300.0
        m.nvml.lose(0)
        assert device.set_power_limit(200.0) == 300.0  # what it told last
        assert device.can_set_power_limit is False
        m.nvml.lose(0, False)
        device.close()
        assert m.settings() == (None, 400.0)
    assert "Training goes on" in warnings_of(caplog)[0]


def test_a_first_lock_that_is_refused_is_not_recorded_as_a_change(tmp_path: Path) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        m.nvml.fail(0, LOCK, Code.NO_PERMISSION)
        device.lock_frequency(1200)
        device.close()
        assert device.requested_frequency_mhz() is None
        assert m.calls() == [LOCK]  # nothing to give back, so no reset


def test_a_limit_comes_back_where_a_refused_lock_shows_that_the_permission_is_gone(tmp_path: Path) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        device.set_power_limit(300.0)
        m.nvml.fail(0, LOCK, Code.NO_PERMISSION)
        device.lock_frequency(1200)
        assert (device.can_lock_frequency, device.can_set_power_limit) == (False, False)
        assert m.settings() == (None, 400.0)  # not 300 W for the rest of the run


@pytest.mark.parametrize(
    ("permission", "settings"), [("sm_clock", ((1200, 1200), 400.0)), ("power_limit", (None, 200.0))]
)
def test_one_of_the_two_permissions_is_found_and_used(
    tmp_path: Path, permission: str, settings: tuple[Any, float]
) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, permissions=(permission,))) as m:
        device = m.open()
        device.lock_frequency(1200)
        device.set_power_limit(200.0)
        assert (device.can_lock_frequency, device.can_set_power_limit) == (settings[0] is not None, settings[1] < 400.0)
        assert (device.mode, m.settings()) == ("full", settings)
        assert "SYS_ADMIN" in device.mode_reason
        device.close()
        assert m.settings() == (None, 400.0)


def test_a_board_that_locks_no_clocks_may_still_take_limits(tmp_path: Path) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, has_clock_control=False)) as m:
        device = m.open()
        device.lock_frequency(1200)
        assert (device.can_lock_frequency, device.can_set_power_limit, device.mode) == (False, True, "full")
        assert device.set_power_limit(200.0) == 200.0
        device.close()


def test_a_lock_on_its_way_while_the_device_closes_is_given_back(tmp_path: Path) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        control = device._control._control
        assert control is not None
        at_driver, go_on, lock_clocks = threading.Event(), threading.Event(), control.lock_clocks

        def slow(least_mhz: int, most_mhz: int) -> None:
            at_driver.set()
            assert go_on.wait(10.0)
            lock_clocks(least_mhz, most_mhz)

        control.lock_clocks = slow  # type: ignore[method-assign]
        locking = threading.Thread(target=device.lock_frequency, args=(900,))
        closing = threading.Thread(target=device.close)
        locking.start()
        assert at_driver.wait(10.0)
        closing.start()
        go_on.set()
        locking.join(10.0)
        closing.join(10.0)
        assert m.settings() == (None, 400.0)
        device.lock_frequency(900)
        assert m.settings() == (None, 400.0)


def test_a_lock_that_waits_while_the_device_closes_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        device.lock_frequency(1200)
        guard, waits = device.guard, threading.Event()
        changing = guard.changing

        def announced(*arguments: Any) -> Any:
            waits.set()
            return changing(*arguments)

        monkeypatch.setattr(guard, "changing", announced)
        locking = threading.Thread(target=device.lock_frequency, args=(900,))
        with guard._lock:
            locking.start()
            assert waits.wait(10.0)
            device.close()
        locking.join(10.0)
        assert m.settings() == (None, 400.0)
        assert device.requested_frequency_mhz() is None


def test_a_limit_that_cannot_be_read_back_is_given_back_all_the_same(tmp_path: Path) -> None:
    read = "nvmlDeviceGetPowerManagementLimit"
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, power_limit_w=250.0)) as m:
        device = m.open()
        m.nvml.fail(0, read, Code.UNKNOWN, after=1)  # read before, and not after the change
        assert device.set_power_limit(200.0) == 200.0
        assert not device.can_set_power_limit
        m.nvml.fail(0, read, 0)
        device.close()
        assert m.settings() == (None, 250.0)


def test_a_gpu_that_another_job_controls_is_only_measured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with machine(tmp_path) as m:
        first = m.open(job="pretraining")
        same_job = m.open(job="pretraining")
        assert (first.mode, same_job.mode) == ("full", "full")
        other = m.open(job="evaluation")
        assert (other.mode, other.can_lock_frequency, other.can_set_power_limit) == ("measure-only", False, False)
        assert "pretraining" in other.mode_reason
        (line,) = warnings_of(caplog)
        assert "pretraining" in line
        other.lock_frequency(900)
        other.close()
        assert m.calls() == [LIMIT, LOCK] * 2  # the three looks for permission


# values


def test_a_clock_it_lacks(tmp_path: Path) -> None:
    with machine(tmp_path) as m, pytest.raises(DeviceError, match="no SM clock of 1400 MHz; nearest: 1395, 1410"):
        m.open().lock_frequency(1400)


def test_a_limit_is_read_back_and_the_previous_one_comes_back(tmp_path: Path) -> None:
    board = EmulatedBoard(uuid=AAAA, power_limit_w=250.0, limit_granularity_w=5.0)
    with machine(tmp_path, board) as m:
        device = m.open()
        assert device.set_power_limit(183.0) == 185.0
        assert device.power_limit_w == 185.0
        assert device.set_power_limit(150.0) == 150.0
        device.reset_power_limit()
        assert device.power_limit_w == 250.0
        device.set_power_limit(120.0)
        device.close()
        assert m.settings() == (None, 250.0)  # the one before us, not the default of 400 W


@pytest.mark.parametrize("limit_w", [99.0, 401.0, float("nan")])
def test_a_limit_outside_the_boards_range(tmp_path: Path, limit_w: float) -> None:
    with machine(tmp_path) as m:
        with pytest.raises(DeviceError, match="takes power limits of 100 to 400 W, got"):
            m.open().set_power_limit(limit_w)
        assert m.calls() == []


def test_clock_and_limit_are_given_back_each_for_itself_and_once(tmp_path: Path) -> None:
    with machine(tmp_path) as m:
        device = m.open()
        device.reset_frequency()
        device.reset_power_limit()
        assert m.calls() == []
        device.lock_frequency(1200)
        device.lock_frequency(900)
        device.set_power_limit(300.0)
        device.reset_frequency()
        assert m.settings() == (None, 300.0)
        device.close()
        device.close()
        assert m.settings() == (None, 400.0)
        assert m.calls() == [LOCK, LOCK, LIMIT, UNLOCK, LIMIT]


def test_a_mig_slice_shares_its_energy_and_is_not_controlled(tmp_path: Path) -> None:
    slices = ("MIG-11110000-0000-0000-0000-000000000001", "MIG-22220000-0000-0000-0000-000000000002")
    with machine(tmp_path, EmulatedBoard(uuid=AAAA), EmulatedBoard(uuid=BBBB, mig_uuids=slices)) as m:
        device = m.open(None, visible=slices[1])
        device.lock_frequency(1200)
        assert device.set_power_limit(200.0) == 400.0
        assert m.settings(1) == (None, 400.0)
        assert m.nvml.state(1).sets == ()  # permission is not even looked for
        assert (device.uuid, device.mode, device.is_mig) == (BBBB, "measure-only", True)
        assert "MIG slice; energy of the whole GPU" in device.name
        assert "shared with its other slices" in describe_mode(device)


# opening


def test_no_driver(tmp_path: Path) -> None:
    with (
        NvmlEmulator([EmulatedBoard()], init_error=Code.DRIVER_NOT_LOADED),
        pytest.raises(DeviceError, match="is the NVIDIA driver loaded"),
    ):
        NvidiaDevice(0)


def test_a_board_without_a_packaged_model_takes_its_idle_power(tmp_path: Path) -> None:
    new = replace(GPU.load("a100-sxm4-40gb"), name="new", display_name="Something New")
    board = EmulatedBoard(gpu=new, uuid=AAAA)
    with machine(tmp_path, board) as m:
        with pytest.raises(DeviceError, match="SM count of Something New"):
            m.open()
        torch = cuda_torch(cuda_properties(AAAA, num_sms=60))
        device = m.open(0, torch=torch)
        assert (device.num_sms, device.cuda_index) == (60, 0)
        assert device.static_power_w == device.blocking_power_w == pytest.approx(m.nvml.state(0).power_w, abs=1.0)
        assert m.open(0, torch=torch, static_power_w=0.0).static_power_w == 0.0
        with pytest.raises(DeviceError, match="static_power_w must be a finite number"):
            m.open(0, torch=torch, static_power_w=float("nan"))
