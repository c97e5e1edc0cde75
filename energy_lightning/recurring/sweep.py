"""Which power limit to measure next, and when to give one up (floor 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from energy_lightning.recurring.errors import RecurringError, whole
from energy_lightning.recurring.power import PowerLimitSample, merged_profile


class PowerSweep:
    """A sweep over power limits, highest first: `current_w` is measured until `accept`ed or `reject`ed too often.

    Args:
        limits_w: limits to ask for, in W.
        known: asked limit -> what an earlier sweep measured there: not measured again.
        max_tries: windows of one limit before it is given up.
    """

    def __init__(
        self, limits_w: Sequence[float], known: Mapping[float, PowerLimitSample] | None = None, *, max_tries: int = 3
    ) -> None:
        if not limits_w:
            raise RecurringError("a sweep needs a limit to try, got none")
        ordered = sorted(set(limits_w), reverse=True)
        self._samples = {limit_w: sample for limit_w, sample in (known or {}).items() if limit_w in ordered}
        self._todo = [limit_w for limit_w in ordered if limit_w not in self._samples]
        self._max_tries, self._num_tries = whole("max_tries", max_tries, least=1), 0
        self.num_limits = len(ordered)
        self.num_known = len(self._samples)
        self.given_up: dict[float, str] = {}
        """Limits in W that no window could measure -> why the last one was not valid."""

    @property
    def current_w(self) -> float | None:
        """The limit to measure now; None: the sweep is over."""
        return self._todo[0] if self._todo else None

    @property
    def num_measured(self) -> int:
        """How many limits this sweep has measured itself."""
        return len(self._samples) - self.num_known

    @property
    def tries_left(self) -> int:
        """Windows of the current limit before it is given up."""
        return self._max_tries - self._num_tries

    @property
    def profile(self) -> list[PowerLimitSample]:
        """What is known so far, highest limit first; a sample's limit is the one that the device applied.

        Where it rounds several limits to one, they are repeats of that one.
        """
        return merged_profile(self._samples.values())[::-1] if self._samples else []

    def asked_for(self, power_limit_w: float) -> float:
        """The limit in W to ask for so that the device applies `power_limit_w`, one that a sample has."""
        return max(asked_w for asked_w, sample in self._samples.items() if sample.power_limit_w == power_limit_w)

    def accept(self, sample: PowerLimitSample) -> None:
        """The current limit is measured; on to the next."""
        self._samples[self._leave()] = sample

    def reject(self, reason: str) -> bool:
        """The window was not valid; whether its limit is given up now."""
        self._num_tries += 1
        if self._num_tries < self._max_tries:
            return False
        self.given_up[self._leave()] = reason
        return True

    def _leave(self) -> float:
        if not self._todo:
            raise RecurringError("the sweep is over: no limit is being measured")
        self._num_tries = 0
        return self._todo.pop(0)
