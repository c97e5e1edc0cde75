"""What NVML lets this process set on one GPU, found out without changing anything: NVML has no call that tells.

Power limits: the limit is set to the value that it has. The driver checks the caller first, and afterwards all is as it
was. Not seen this way: somebody who sets another limit in the microseconds between the reading and the setting.

SM clocks have no such call: what they are locked to cannot be read, so a lock or a reset could undo an administrator's.
They are asked for a range whose ends are swapped, which NVML's reference has refused as an invalid argument
(nvmlDeviceSetGpuLockedClocks, "not a valid clock combination"). A caller who may not is refused as such, if the driver
looks at the caller first. Whether it does shows where the power limit is refused to this caller: a limit outside the
range is then refused for the same reason, or as an invalid argument. Where it does not, or there is no limit to ask
about, clocks count as permitted to whom the limit is, or who has the capability SYS_ADMIN; the first lock shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_OUTSIDE_MW = 1000  # above the highest limit


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a setting cannot be changed.

    Attributes:
        message: the driver's words.
        needs_permission: the caller's privilege is missing.
    """

    message: str
    needs_permission: bool = False


def clock_and_limit_faults(
    nvml: Any, handle: Any, *, is_privileged: Callable[[], bool] | None = None
) -> tuple[Fault | None, Fault | None]:
    """Why the SM clock cannot be locked, and why the power limit cannot be set; None: it can.

    `is_privileged`: whether this process has the capability SYS_ADMIN; None: Zeus tells.
    """
    limit = _fault(nvml, lambda: _set_limit(nvml, handle, nvml.nvmlDeviceGetPowerManagementLimit(handle)))
    clock = _fault(nvml, lambda: _lock_nothing(nvml, handle))
    if clock is None and limit is not None:
        told = limit.needs_permission and _looks_at_the_caller_first(nvml, handle)
        if not (told or (is_privileged or _has_sys_admin)()):
            clock = Fault("this process has no capability SYS_ADMIN", needs_permission=True)
    return clock, limit


def _set_limit(nvml: Any, handle: Any, limit_mw: int) -> None:
    nvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)


def _lock_nothing(nvml: Any, handle: Any) -> None:
    """Raises NVMLError unless the call got as far as the clocks themselves."""
    highest_mhz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    try:
        nvml.nvmlDeviceSetGpuLockedClocks(handle, highest_mhz, highest_mhz - 1)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_INVALID_ARGUMENT:
            raise
    else:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)  # a driver that takes it after all


def _looks_at_the_caller_first(nvml: Any, handle: Any) -> bool:
    """Where limits are refused to this caller: whether a limit that nobody may set is refused for that reason too."""

    def set_outside() -> None:
        _, most_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        _set_limit(nvml, handle, most_mw + _OUTSIDE_MW)

    fault = _fault(nvml, set_outside)
    return fault is not None and fault.needs_permission


def _fault(nvml: Any, call: Callable[[], None]) -> Fault | None:
    try:
        call()
    except nvml.NVMLError as error:
        return Fault(str(error), needs_permission=error.value == nvml.NVML_ERROR_NO_PERMISSION)
    return None


def _has_sys_admin() -> bool:
    from zeus.device.common import has_sys_admin

    return bool(has_sys_admin())
