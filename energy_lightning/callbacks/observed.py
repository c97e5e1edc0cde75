"""What the hardware did meanwhile, for one line an epoch: clocks that were not had, temperatures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from energy_lightning.device import ClockChange


class ClockLog:
    """Counts changes of the clock that came out at another clock than was asked for."""

    def __init__(self) -> None:
        self._num_read = 0
        self._missed: dict[int, list[ClockChange]] = {}

    def add(self, changes: Iterable[ClockChange]) -> None:
        """Count changes as the switcher reports them; those not read back say nothing."""
        for change in changes:
            if change.asked_mhz is None or change.seen_mhz is None:
                continue
            self._num_read += 1
            if change.missed:
                self._missed.setdefault(change.asked_mhz, []).append(change)

    def take_line(self) -> str | None:
        """One line about everything since the last call; None where every clock was the one asked for."""
        num_read, missed = self._num_read, self._missed
        self._num_read, self._missed = 0, {}
        if not missed:
            return None
        faults = [_described(asked_mhz, changes) for asked_mhz, changes in sorted(missed.items(), reverse=True)]
        return f"clocks not had: {'; '.join(faults)}; of {num_read} changes read back"


def _described(asked_mhz: int, changes: list[ClockChange]) -> str:
    seen_mhz = [change.seen_mhz for change in changes if change.seen_mhz is not None]
    seen = f"{min(seen_mhz)}" if min(seen_mhz) == max(seen_mhz) else f"{min(seen_mhz)} to {max(seen_mhz)}"
    reasons = Counter(reason for change in changes for reason in change.throttle_reasons)
    why = ", ".join(reason for reason, _ in reasons.most_common()) or "the driver gives no reason"
    return f"asked {asked_mhz} MHz, seen {seen} MHz {len(changes)} times ({why})"


class TemperatureRange:
    """Least, mean and highest of the temperatures seen."""

    def __init__(self) -> None:
        self._readings_c: list[float] = []

    def add(self, temperature_c: float | None) -> None:
        """Count a reading; None (not known) is left out."""
        if temperature_c is not None:
            self._readings_c.append(temperature_c)

    def take_text(self) -> str:
        """ "61 to 67 C" since the last call, "" where nothing is known."""
        readings_c, self._readings_c = self._readings_c, []
        if not readings_c:
            return ""
        least, most = f"{min(readings_c):.0f}", f"{max(readings_c):.0f}"
        return f"{least} C" if least == most else f"{least} to {most} C"
