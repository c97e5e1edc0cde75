"""Changes of the clock beside the training thread: newest wins, dwell, read back, faults, exits and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from energy_lightning.device.switching import ClockChange, FrequencySwitcher, measure_switch_time_s
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import DeviceError

LIMIT_S = 5.0


class WallClockDevice(ScriptedDevice):
    """On the wall clock; a change is in force `lag_s` after the driver took it, which waits for `gate`."""

    virtual_clock = False

    def __init__(self, *, lag_s: float = 0.0, cap_mhz: int | None = None) -> None:
        super().__init__(clock_cap_mhz=cap_mhz)
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        self.lag_s, self.fault, self.refuses = lag_s, "", False
        self.threads: set[int] = set()
        self._before_mhz, self._changed_at_s = 1410, 0.0

    def now_s(self) -> float:
        return time.perf_counter()

    def lock_frequency(self, frequency_mhz: int) -> None:
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.gate.wait(LIMIT_S)
        if self.fault:
            raise DeviceError(self.fault)
        if self.refuses:
            self.can_lock_frequency = False
            return
        self._before_mhz, self._changed_at_s = self.frequency_mhz(), self.now_s()
        super().lock_frequency(frequency_mhz)

    def frequency_mhz(self) -> int:
        return self._before_mhz if self.now_s() - self._changed_at_s < self.lag_s else super().frequency_mhz()

    def idle(self, time_s: float) -> None:
        time.sleep(time_s)


def locks(device: ScriptedDevice) -> list[float]:
    return [value for name, value in device.calls if name == "lock"]


def wait_for(condition: Callable[[], Any]) -> None:
    """Poll until the other thread has got there."""
    until_s = time.perf_counter() + LIMIT_S
    while not condition():
        assert time.perf_counter() < until_s, "the switcher's thread did not get there"
        time.sleep(0.001)


@pytest.fixture
def device() -> WallClockDevice:
    return WallClockDevice()


def test_a_request_returns_before_the_driver_does_and_is_applied_on_another_thread(device: WallClockDevice) -> None:
    switcher = FrequencySwitcher(device)
    device.gate.clear()
    assert switcher.request(900)
    assert device.entered.wait(LIMIT_S)
    assert locks(device) == []
    device.gate.set()
    wait_for(lambda: locks(device) == [900])
    assert device.threads.isdisjoint({threading.get_ident()})
    switcher.close()


def test_the_newest_request_wins_and_what_it_overtook_is_never_applied(device: WallClockDevice) -> None:
    switcher = FrequencySwitcher(device, min_dwell_s=0.0)
    device.gate.clear()
    switcher.request(900)
    assert device.entered.wait(LIMIT_S)
    for clock_mhz in (1200, 900, 1410):
        assert switcher.request(clock_mhz)
    device.gate.set()
    wait_for(lambda: device.frequency_mhz() == 1410 and switcher.num_changes == 2)
    switcher.close()
    assert locks(device) == [900, 1410]
    assert device.calls[-1] == ("reset", 0)


def test_equal_requests_and_requests_back_to_the_clock_in_force_change_nothing(device: WallClockDevice) -> None:
    switcher = FrequencySwitcher(device, min_dwell_s=0.0)
    assert all(switcher.request(900) for _ in range(5))
    wait_for(lambda: switcher.num_changes == 1)
    device.gate.clear()
    device.entered.clear()
    switcher.request(1200)
    assert device.entered.wait(LIMIT_S)
    switcher.request(900)
    switcher.request(1200)
    device.gate.set()
    wait_for(lambda: 1200 in [change.asked_mhz for change in switcher.take_changes()])  # the newest was looked at
    assert switcher.request(900)
    wait_for(lambda: switcher.num_changes == 3)
    switcher.close()
    assert locks(device) == [900, 1200, 900]


def test_within_the_dwell_the_clock_stays_and_the_caller_is_told() -> None:
    device = ScriptedDevice()
    switcher = FrequencySwitcher(device, min_dwell_s=1.0)
    assert switcher.request(900)
    device.work(0.5)
    assert not switcher.request(1200)
    assert (switcher.requested_mhz, switcher.num_skipped, locks(device)) == (900, 1, [900])
    device.work(0.6)
    assert switcher.request(1200)
    switcher.release()  # at once, and the next request as well
    assert switcher.request(900)
    assert [name for name, _ in device.calls] == ["lock", "lock", "reset", "lock"]


def test_on_a_virtual_clock_the_change_is_in_force_when_the_request_returns() -> None:
    device = ScriptedDevice()
    switcher = FrequencySwitcher(device)
    assert switcher.request(900)
    assert device.frequency_mhz() == 900
    assert not [thread for thread in threading.enumerate() if thread.name == "frequency-switcher"]
    switcher.close()
    switcher.close()
    assert device.calls == [("lock", 900), ("reset", 0)]


def test_a_clock_that_is_not_had_is_read_back_with_the_reason() -> None:
    device = WallClockDevice(cap_mhz=1000)
    switcher = FrequencySwitcher(device, min_dwell_s=0.0, settle_s=0.0)
    seen: list[ClockChange] = []

    def more() -> bool:
        taken = switcher.take_changes()
        seen.extend(taken)
        return bool(taken)

    for clock_mhz in (900, 1410):
        switcher.request(clock_mhz)
        wait_for(more)
    switcher.close()
    assert [(change.asked_mhz, change.seen_mhz, change.missed) for change in seen] == [
        (900, 900, False),
        (1410, 1000, True),
    ]
    assert [change.throttle_reasons for change in seen] == [(), ("sw_power_cap",)]
    assert all(0.0 <= change.taken_s < LIMIT_S for change in seen)


def test_nothing_is_read_back_before_the_clock_can_have_settled() -> None:
    device = WallClockDevice(lag_s=60.0)
    switcher = FrequencySwitcher(device, min_dwell_s=0.0, settle_s=60.0)
    switcher.request(900)
    wait_for(lambda: switcher.num_changes == 1)
    switcher.request(1200)
    wait_for(lambda: switcher.num_changes == 2)
    switcher.close()
    changes = switcher.take_changes()
    assert [change.asked_mhz for change in changes] == [900, 1200]
    assert not [change for change in changes if change.seen_mhz is not None or change.missed]


@pytest.mark.parametrize("virtual", [True, False])
def test_a_failure_is_one_line_later_and_never_an_exception(virtual: bool) -> None:
    device = WallClockDevice()
    device.virtual_clock = virtual
    switcher = FrequencySwitcher(device, min_dwell_s=0.0)
    switcher.request(900)
    wait_for(lambda: switcher.num_changes == 1)
    device.fault = "the GPU fell off the bus"
    switcher.request(1200)
    wait_for(lambda: switcher.fault)
    assert switcher.fault == "DeviceError: the GPU fell off the bus"
    assert not switcher.request(1410)
    switcher.close()
    assert device.calls == [("lock", 900), ("reset", 0)]


@pytest.mark.parametrize("virtual", [True, False])
def test_a_refusal_changes_nothing_and_gives_back_what_was_locked_before(virtual: bool) -> None:
    device = WallClockDevice()
    device.virtual_clock = virtual
    switcher = FrequencySwitcher(device, min_dwell_s=0.0)
    switcher.request(900)
    wait_for(lambda: switcher.num_changes == 1)
    device.refuses = True
    switcher.request(1200)
    wait_for(lambda: not device.can_lock_frequency)
    switcher.close()
    assert switcher.fault is None
    assert switcher.refused
    assert (switcher.num_changes, device.calls) == (2, [("lock", 900), ("reset", 0)])


def test_closing_does_not_wait_for_a_driver_that_hangs(
    device: WallClockDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energy_lightning.device.switching.JOIN_LIMIT_S", 0.05)
    switcher = FrequencySwitcher(device)
    device.gate.clear()
    switcher.request(900)
    assert device.entered.wait(LIMIT_S)
    start_s = time.perf_counter()
    switcher.close()
    assert time.perf_counter() - start_s < LIMIT_S / 2
    assert "has not returned within 0.05 s" in (switcher.fault or "")
    device.gate.set()


@pytest.mark.parametrize("bad", [{"min_dwell_s": -1.0}, {"min_dwell_s": float("nan")}, {"settle_s": -0.1}])
def test_impossible_times_are_refused(device: WallClockDevice, bad: dict[str, float]) -> None:
    with pytest.raises(DeviceError, match="need min_dwell_s >= 0"):
        FrequencySwitcher(device, **bad)


def test_a_forked_child_leaves_the_parents_clock_alone(device: WallClockDevice) -> None:
    switcher = FrequencySwitcher(device, min_dwell_s=0.0)
    switcher.request(900)
    wait_for(lambda: switcher.num_changes == 1)
    child = os.fork()
    if child == 0:
        asked = switcher.request(1200)
        switcher.release()
        switcher.close()
        os._exit(0 if not asked and device.calls == [("lock", 900)] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    switcher.request(1200)
    wait_for(lambda: locks(device) == [900, 1200])
    switcher.close()


def test_an_interpreter_that_exits_in_the_middle_does_so_quietly_and_drops_what_was_not_applied() -> None:
    code = """
import atexit, sys
sys.path.insert(0, "tests/device")
from test_switching import WallClockDevice
from energy_lightning.device.switching import FrequencySwitcher
device = WallClockDevice()
switcher = FrequencySwitcher(device, min_dwell_s=0.0)
device.gate.clear()
switcher.request(900)
device.entered.wait(5.0)
switcher.request(1200)
def at_exit():
    device.gate.set()
    switcher._thread.join(5.0)
    print(device.calls, switcher._thread.is_alive())
atexit.register(at_exit)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[('lock', 900)] False", "")


@pytest.mark.parametrize("before_mhz", [None, 900])
def test_the_time_of_a_change_is_from_asking_to_seeing_and_the_clock_comes_back(before_mhz: int | None) -> None:
    device = WallClockDevice(lag_s=0.02)
    if before_mhz is not None:
        device.lock_frequency(before_mhz)
    time_s = measure_switch_time_s(device, num_switches=4)
    assert time_s is not None
    assert 0.02 <= time_s < 0.1
    assert device.requested_frequency_mhz() == before_mhz
    assert set(locks(device)) - {900} == {1410, 1200}


def test_a_clock_that_never_shows_is_left_out_and_the_time_spent_is_bounded() -> None:
    device = WallClockDevice(lag_s=0.01, cap_mhz=1300)
    start_s = time.perf_counter()
    time_s = measure_switch_time_s(device, num_switches=4, limit_s=0.3)
    assert time.perf_counter() - start_s < 1.0
    assert time_s is not None
    assert time_s < 0.1
    device.lag_s = 60.0
    assert measure_switch_time_s(device, num_switches=2, limit_s=0.1) is None
    assert device.requested_frequency_mhz() is None


def test_without_control_or_on_a_virtual_clock_nothing_is_tried() -> None:
    refused, virtual = WallClockDevice(), ScriptedDevice()
    refused.can_lock_frequency = False
    single = WallClockDevice()
    single.frequencies_mhz = (1410,)
    assert [measure_switch_time_s(device) for device in (refused, virtual, single)] == [None, None, None]
    assert not refused.calls + virtual.calls + single.calls


def test_a_clock_that_cannot_be_set_while_measuring_gives_the_clock_back() -> None:
    device = WallClockDevice()
    device.fault = "gone"
    with pytest.raises(DeviceError, match="gone"):
        measure_switch_time_s(device)
    assert device.calls == [("reset", 0)]
