"""What a driver permits, from drivers that look at the caller and at the arguments in different orders."""

from __future__ import annotations

from typing import Any

import pytest

from energy_lightning.device.preflight import Fault, clock_and_limit_faults

NO_PERMISSION, INVALID, UNSUPPORTED = 4, 2, 3
LIMITS_MW = (100_000, 400_000)


class FakeNvml:
    """A driver that permits some things and tells what it was set to.

    caller_first: it looks at who calls before it looks at the arguments. takes_anything: swapped ranges too.
    """

    NVML_CLOCK_SM, NVML_ERROR_NO_PERMISSION, NVML_ERROR_INVALID_ARGUMENT = 1, NO_PERMISSION, INVALID

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"code {value}")
            self.value = value

    def __init__(self, clock: int = 0, limit: int = 0, *, caller_first: bool = True, takes_anything: bool = False):
        self._codes, self._caller_first = {"clock": clock, "limit": limit}, caller_first
        self._takes_anything = takes_anything
        self.locked_mhz: tuple[int, int] | None = None
        self.limit_mw = 250_000

    def _check(self, what: str, *, fits: bool) -> None:
        permitted, right = (self._codes[what], self._codes[what] != 0), (INVALID, not fits)
        for code, refuses in (permitted, right) if self._caller_first else (right, permitted):
            if refuses:
                raise self.NVMLError(code)

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any) -> int:
        return self.limit_mw

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any) -> tuple[int, int]:
        return LIMITS_MW

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: int) -> int:
        return 1410

    def nvmlDeviceSetPowerManagementLimit(self, handle: Any, limit_mw: int) -> None:
        self._check("limit", fits=LIMITS_MW[0] <= limit_mw <= LIMITS_MW[1])
        self.limit_mw = limit_mw

    def nvmlDeviceSetGpuLockedClocks(self, handle: Any, least_mhz: int, most_mhz: int) -> None:
        self._check("clock", fits=least_mhz <= most_mhz or self._takes_anything)
        self.locked_mhz = least_mhz, most_mhz

    def nvmlDeviceResetGpuLockedClocks(self, handle: Any) -> None:
        self.locked_mhz = None


@pytest.mark.parametrize(
    ("driver", "privileged", "can_lock", "can_limit"),
    [
        (FakeNvml(), False, True, True),
        (FakeNvml(caller_first=False), False, True, True),
        (FakeNvml(NO_PERMISSION, NO_PERMISSION), False, False, False),
        # the arguments are looked at first: "invalid" tells nothing of what an ordinary user may
        (FakeNvml(NO_PERMISSION, NO_PERMISSION, caller_first=False), False, False, False),
        (FakeNvml(limit=NO_PERMISSION), False, True, False),
        (FakeNvml(NO_PERMISSION), False, False, True),
        # no power limit to ask about: the kernel's word counts
        (FakeNvml(limit=UNSUPPORTED), True, True, False),
        (FakeNvml(limit=UNSUPPORTED), False, False, False),
        (FakeNvml(UNSUPPORTED), True, False, True),
        (FakeNvml(takes_anything=True), False, True, True),
    ],
)
def test_what_is_permitted_is_found_and_nothing_is_changed(
    driver: FakeNvml, privileged: bool, can_lock: bool, can_limit: bool
) -> None:
    clock, limit = clock_and_limit_faults(driver, None, is_privileged=lambda: privileged)
    assert (clock is None, limit is None) == (can_lock, can_limit)
    assert (driver.locked_mhz, driver.limit_mw) == (None, 250_000)


def test_the_drivers_words_are_kept() -> None:
    clock, limit = clock_and_limit_faults(FakeNvml(UNSUPPORTED, NO_PERMISSION), None)
    assert (clock, limit) == (Fault("code 3"), Fault("code 4", needs_permission=True))
