"""GuardedControl: clocks and limits of one GPU, each change recorded at the guard before it is made."""

from __future__ import annotations

import logging
from collections.abc import Callable

from energy_lightning.device.control import Control, Permissions, Refused
from energy_lightning.device.guard import Change, HardwareGuard
from energy_lightning.device.undo import Previous, Setting
from energy_lightning.types import DeviceError

_log = logging.getLogger(__name__)


class GuardedControl:
    """Sets one GPU as far as that is permitted, and gives back what it set.

    A refusal, by the driver or by the guard (another job has the GPU), is no error: one line says so, what was asked is
    not recorded as set, it is not tried again, and what was set before is given back. May be used from several threads:
    the guard lets no restore in between a record and its change, so a change on its way when `close` is called is given
    back after it.

    Args:
        name, uuid: the GPU, for people and for the records.
        permissions: what was permitted at the start.
        guard: gives back; None: one of this GPU alone, made by `new_guard` when first needed.
        new_guard: zeusd's socket or None -> HardwareGuard.
        job: what the ranks have in common that may share the GPU.

    The GPU is leased here, which repairs what dead jobs left on it; one that another job controls is only measured.

    Attributes:
        can_lock, can_limit: what may still be set.
        missing: what may not, and what would permit it; "" if nothing is missing.
        locked_mhz: SM clock locked here; None: none is.
    """

    def __init__(
        self,
        name: str,
        uuid: str,
        permissions: Permissions,
        guard: HardwareGuard | None,
        new_guard: Callable[[str | None], HardwareGuard],
        job: str | None = None,
    ) -> None:
        self._name, self._uuid, self._control = name, uuid, permissions.control
        self.can_lock, self.can_limit = permissions.can_lock_frequency, permissions.can_set_power_limit
        self.missing = permissions.reason
        self.locked_mhz: int | None = None
        self._given_guard, self._new_guard = guard, new_guard
        self._own_guard: HardwareGuard | None = None
        self._has_set_limit = self._closed = False
        if self.can_lock or self.can_limit:
            self._lease(job)

    @property
    def guard(self) -> HardwareGuard:
        """Gives back what is set here."""
        if self._given_guard is not None:
            return self._given_guard
        if self._own_guard is None:
            self._own_guard = self._new_guard(None if self._control is None else self._control.zeusd_socket)
        return self._own_guard

    @property
    def reason(self) -> str:
        """What can be set and how, or what is missing."""
        settable = {"SM clocks": self.can_lock, "power limits": self.can_limit}
        able = " and ".join(name for name, can in settable.items() if can)
        parts = [f"{able} are set {self._control.via}"] if able and self._control else []
        return "; ".join([*parts, *([self.missing] if self.missing else [])]) or "nothing can be set"

    def lock(self, frequency_mhz: int) -> None:
        """Lock the SM clock."""

        def note(change: Change) -> None:
            self.locked_mhz = frequency_mhz

        if self.can_lock:
            self._change(
                "sm_clock", lambda: None, lambda control: control.lock_clocks(frequency_mhz, frequency_mhz), note
            )

    def set_limit(self, power_limit_w: float, read_w: Callable[[], float]) -> None:
        """Set the power limit; `read_w` tells the one that is set."""

        def note(change: Change) -> None:
            self._has_set_limit, change.applied = True, read_w()

        if self.can_limit:
            self._change("power_limit", read_w, lambda control: control.set_power_limit(power_limit_w), note)

    def unlock(self) -> None:
        """Give the clock back as it was, if it was locked here."""
        if self.locked_mhz is not None:
            self.locked_mhz = None
            self.guard.restore(self._uuid, "sm_clock")

    def reset_limit(self) -> None:
        """Back to the limit before the first `set_limit`."""
        if self._has_set_limit:
            self._has_set_limit = False
            self.guard.restore(self._uuid, "power_limit")

    def close(self) -> None:
        """Give everything back; nothing is set from then on. Idempotent."""
        self._closed = True
        self.locked_mhz, self._has_set_limit = None, False
        if self._given_guard is not None:
            self._given_guard.restore(self._uuid)
        if self._own_guard is not None:
            self._own_guard.close()

    def _lease(self, job: str | None) -> None:
        try:
            self.guard.lease(self._uuid, job)
        except DeviceError as error:
            self._fall(error, "sm_clock", "power_limit")

    def _change(
        self,
        setting: Setting,
        previous: Callable[[], Previous],
        make: Callable[[Control], None],
        note: Callable[[Change], None],
    ) -> None:
        if self._control is None or self._closed:
            return
        try:
            with self.guard.changing(self._uuid, setting, previous()) as change:
                change.refused = True
                if not self._closed:  # another thread may have closed us while we waited for the guard
                    make(self._control)
                    change.refused = False
                    note(change)
        except DeviceError as error:
            self._fall(error, setting)
            if not self.can_lock:  # what was set before must not stay for the rest of the run
                self.unlock()
            if not self.can_limit:
                self.reset_limit()

    def _fall(self, error: DeviceError, *settings: Setting) -> None:
        """Go on without these settings; a permission that is gone is gone for all."""
        lost = isinstance(error, Refused) and error.needs_permission
        self.can_lock = self.can_lock and not (lost or "sm_clock" in settings)
        self.can_limit = self.can_limit and not (lost or "power_limit" in settings)
        self.missing = str(error)
        left = "" if self.can_lock or self.can_limit else " From here on it is measured only."
        _log.warning("energy_lightning: %s (%s): %s. Training goes on.%s", self._name, self._uuid, error, left)
