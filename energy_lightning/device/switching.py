"""FrequencySwitcher: the SM clock is changed beside the training thread, which never waits for the driver.

    training thread                      switcher thread (daemon, asleep between requests)
    request(900)   returns at once  -->  lock_frequency(900), wait until the clock can have settled, read it back
    request(1200)  returns at once  -->  the newest request wins; one that was overtaken is never applied

On a virtual clock there is nothing to wait for: the change is applied in the caller, where its time is accounted.
"""

from __future__ import annotations

import queue
import statistics
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from energy_lightning.device.forking import call_in_forked_child
from energy_lightning.types import DeviceError

if TYPE_CHECKING:
    from energy_lightning.device.protocol import Device

CLOCK_TOLERANCE_MHZ = 7  # half of NVIDIA's 15 MHz steps: a neighbouring clock does not pass for the one asked for
JOIN_LIMIT_S = 2.0
KEPT_CHANGES = 256
POLL_S = 0.0005
SEARCHED_CLOCK_RATIO = 0.75  # of the highest clock: about the middle of the range that saves energy

_FAILURES = (ValueError, ArithmeticError, LookupError, OSError, RuntimeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChange:
    """One change of the clock, as it came out.

    Attributes:
        asked_mhz: the clock asked for; None: the GPU's own clock management.
        taken_s: time from the request until the driver had taken it.
        seen_mhz: the clock read back once it could have settled; None: not read (given back, or overtaken before).
        throttle_reasons: why the clock seen is not the one asked for, as the device tells it; () where it is.
    """

    asked_mhz: int | None
    taken_s: float
    seen_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()

    @property
    def missed(self) -> bool:
        """Whether another clock was seen than was asked for."""
        return (
            self.asked_mhz is not None
            and self.seen_mhz is not None
            and abs(self.seen_mhz - self.asked_mhz) > CLOCK_TOLERANCE_MHZ
        )


class FrequencySwitcher:
    """Changes a device's clock on request, on change only, never twice within the dwell, without ever raising.

    A failure ends the service: it is kept in `fault` as one line, and what was locked is given back by `close`. A
    refusal (no permission) is none: the device says so itself, and `can_lock_frequency` falls.

    In a forked child nothing is done: thread and locked clock are the parent's. At interpreter exit a request that was
    not applied yet is dropped.

    Args:
        device: whose clock is changed. Nobody else may change it meanwhile.
        min_dwell_s: least time between two changes.
        settle_s: time after which a change is read back; None: twice the device's `switch_time_s`, at least 10 ms.
    """

    def __init__(self, device: Device, *, min_dwell_s: float = 0.02, settle_s: float | None = None) -> None:
        if not (min_dwell_s >= 0.0 and (settle_s is None or settle_s >= 0.0)):  # NaN fails too
            raise DeviceError(f"need min_dwell_s >= 0 and settle_s >= 0 or None, got {min_dwell_s}, {settle_s}")
        self._device, self._now_s, self._min_dwell_s, self._settle_s = device, device.now_s, min_dwell_s, settle_s
        self.requested_mhz: int | None = None
        """The clock asked for last, to be read only; None: the GPU's own."""
        self._requested_at_s = float("-inf")
        self._applied_mhz: int | None = None
        self._unread: tuple[ClockChange, float] | None = None  # a change to read back, and when it was applied
        self._changes: deque[ClockChange] = deque(maxlen=KEPT_CHANGES)
        self._requests: queue.SimpleQueue[tuple[int | None, float]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False
        call_in_forked_child(self._leave_to_parent)
        self.fault: str | None = None
        """What ended the service, in one line; None while all is well."""
        self.refused = False
        """Whether a change was refused: the device has said so, and will refuse the others too."""
        self.num_changes = self.num_skipped = 0

    # the training thread's side

    def request(self, frequency_mhz: int | None) -> bool:
        """Ask for a clock (None: the GPU's own clock management). Returns whether it is or will be in force.

        False: within the dwell, where the clock stays as it is and the caller asks again at the next phase; or the
        service has ended.
        """
        if frequency_mhz == self.requested_mhz:
            return self.fault is None
        now_s = self._now_s()
        if now_s - self._requested_at_s < self._min_dwell_s:
            self.num_skipped += 1
            return False
        if self.fault is not None or self._closing:
            return False
        self.requested_mhz, self._requested_at_s = frequency_mhz, now_s
        if self._thread is None:
            if self._device.virtual_clock:
                return self._apply_at_once(frequency_mhz, now_s)
            self._thread = threading.Thread(target=self._serve, name="frequency-switcher", daemon=True)
            self._thread.start()
        self._requests.put((frequency_mhz, now_s))
        return True

    def release(self) -> None:
        """Give the clock back whatever the dwell; the next request need not wait for one either."""
        self._requested_at_s = float("-inf")
        self.request(None)
        self._requested_at_s = float("-inf")

    def take_changes(self) -> list[ClockChange]:
        """The changes since the last call, oldest first, at most the last `KEPT_CHANGES`."""
        taken = []
        while self._changes:
            taken.append(self._changes.popleft())
        return taken

    def close(self) -> None:
        """End the service and give the clock back; waits for a change in flight, but not for ever. Idempotent."""
        if self._closing:
            return
        self._closing = True
        if self._thread is not None:
            self._requests.put((None, 0.0))  # wakes the thread
            self._thread.join(JOIN_LIMIT_S)
            if self._thread.is_alive():
                self.fault = f"a change of the clock has not returned within {JOIN_LIMIT_S:g} s"
                return
        self._read_back()
        self.requested_mhz = None
        if self._applied_mhz is not None:
            self._apply(None, self._now_s())

    def _apply_at_once(self, frequency_mhz: int | None, now_s: float) -> bool:
        self._read_back()
        self._apply(frequency_mhz, now_s)
        self._requested_at_s = self._now_s()
        return self.fault is None

    def _leave_to_parent(self) -> None:
        self._closing = True

    # the switcher thread's side (the caller's on a virtual clock)

    def _serve(self) -> None:
        while self.fault is None:
            request = self._next_request()
            self._read_back()
            if self._closing or not threading.main_thread().is_alive():
                return
            if request is not None and request[0] != self._applied_mhz:
                self._apply(*request)

    def _next_request(self) -> tuple[int | None, float] | None:
        """The newest request; None when there is none but a change to read back."""
        try:
            newest = self._requests.get(timeout=self._until_settled_s())
        except queue.Empty:
            return None
        while not self._requests.empty():
            newest = self._requests.get()
        return newest

    def _apply(self, frequency_mhz: int | None, requested_s: float) -> None:
        device = self._device
        try:
            if frequency_mhz is None:
                device.reset_frequency()
            else:
                device.lock_frequency(frequency_mhz)
                if device.requested_frequency_mhz() != frequency_mhz:
                    self.refused = True
                    return
        except _FAILURES as error:
            self.fault = f"{type(error).__name__}: {error}"
            return
        self._applied_mhz = frequency_mhz
        self.num_changes += 1
        applied_s = self._now_s()
        self._unread = ClockChange(asked_mhz=frequency_mhz, taken_s=applied_s - requested_s), applied_s

    def _until_settled_s(self) -> float | None:
        """Time left until the last change can be read back; None: there is nothing to read."""
        if self._unread is None:
            return None
        settle_s = max(2.0 * self._device.switch_time_s, 0.01) if self._settle_s is None else self._settle_s
        return max(0.0, self._unread[1] + settle_s - self._now_s())

    def _read_back(self) -> None:
        left_s = self._until_settled_s()
        if self._unread is None or left_s is None:
            return
        change, self._unread = self._unread[0], None
        if change.asked_mhz is not None and (left_s == 0.0 or self._device.virtual_clock):
            try:
                change = replace(change, seen_mhz=self._device.frequency_mhz())
                if change.missed:
                    change = replace(change, throttle_reasons=self._device.throttle_reasons())
            except _FAILURES as error:
                self.fault = f"{type(error).__name__}: {error}"
        self._changes.append(change)


def measure_switch_time_s(device: Device, *, num_switches: int = 6, limit_s: float = 0.9) -> float | None:
    """Median time in s from asking for another clock until the device shows it.

    The highest clock and one in the middle of the useful range are asked for in turn, `limit_s` in all at most; what
    was locked before is locked again. A clock that never shows (a power cap) is left out. An upper bound: NVML's own
    reading may lag.

    None where it cannot be told: no control, a virtual clock (whose device knows the time), fewer than two clocks,
    or no change that showed. Best on a warm GPU: an idle one takes longer to leave its lowest state.
    """
    if device.virtual_clock or not device.can_lock_frequency or len(device.frequencies_mhz) < 2:
        return None
    highest_mhz = max(device.frequencies_mhz)
    lower_mhz = min(device.frequencies_mhz[:-1], key=lambda f: abs(f - SEARCHED_CLOCK_RATIO * highest_mhz))
    before_mhz = device.requested_frequency_mhz()
    try:
        _time_of_change(device, lower_mhz, limit_s / (num_switches + 1))  # from wherever it is: not counted
        turns = [(highest_mhz, lower_mhz)[i % 2] for i in range(num_switches)]
        times_s = [_time_of_change(device, clock_mhz, limit_s / (num_switches + 1)) for clock_mhz in turns]
    finally:
        if before_mhz is None:
            device.reset_frequency()
        else:
            device.lock_frequency(before_mhz)
    shown_s = [time_s for time_s in times_s if time_s is not None]
    return statistics.median(shown_s) if shown_s else None


def _time_of_change(device: Device, frequency_mhz: int, limit_s: float) -> float | None:
    start_s = device.now_s()
    device.lock_frequency(frequency_mhz)
    while abs(device.frequency_mhz() - frequency_mhz) > CLOCK_TOLERANCE_MHZ:
        if device.now_s() - start_s > limit_s:
            return None
        device.idle(POLL_S)
    return device.now_s() - start_s
