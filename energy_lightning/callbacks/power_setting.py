"""The power limit of one rank's GPU while a sweep sets it: what was asked for, what came of it, what was before."""

from __future__ import annotations

import logging
from typing import Any

from energy_lightning.callbacks.job import FAILURES

_log = logging.getLogger(__name__)

Outcome = tuple[float | None, str | None]


class LimitSetting:
    """Sets limits on change only. No call raises for a device that fails: the others would wait, or the training end.

    Args:
        device: the GPU.
        sets: False where another rank sets the same GPU.

    Attributes:
        set_w: the limit in W that the device reported when it had been set; None: not set here.
        fault: why the latest limit could not be set, or None.
    """

    def __init__(self, device: Any, *, sets: bool) -> None:
        self._device, self._sets = device, sets
        self._asked_w: float | None = None
        self._before_w: float | None = None  # once something was changed
        self.set_w: float | None = None
        self.fault: str | None = None

    def set(self, limit_w: float) -> None:
        """Have the device enforce `limit_w`, or what it makes of it."""
        self.fault = None
        if not self._sets:
            return
        try:
            now_w = float(self._device.power_limit_w)
            if limit_w != now_w and (limit_w, now_w) != (self._asked_w, self.set_w):
                self._before_w = now_w if self._before_w is None else self._before_w
                self._device.set_power_limit(limit_w)
                now_w = float(self._device.power_limit_w)
            self._asked_w, self.set_w = limit_w, now_w
        except FAILURES as error:
            self.set_w, self.fault = None, f"{type(error).__name__}: {error}"

    def outcome(self) -> Outcome:
        """`set_w`, and why it may not be what is enforced now, or None: drivers take their time, others set limits."""
        if self.fault is not None or self.set_w is None:
            return self.set_w, self.fault
        try:
            now_w = float(self._device.power_limit_w)
        except FAILURES as error:
            return self.set_w, f"{type(error).__name__}: {error}"
        return self.set_w, None if now_w == self.set_w else f"the GPU reports {now_w:g} W now"

    def restore(self) -> None:
        """Back to the limit before the first change; one line where that fails. Idempotent."""
        before_w, self._before_w, self._asked_w = self._before_w, None, None
        if before_w is None:
            return
        try:
            self._device.reset_power_limit()
        except FAILURES as error:
            _log.warning(
                f"energy_lightning: {self._device.name}: its earlier power limit, {before_w:g} W, could not be set "
                f"again ({type(error).__name__}: {error}). Set it yourself, e.g. nvidia-smi --power-limit={before_w:g}"
            )
