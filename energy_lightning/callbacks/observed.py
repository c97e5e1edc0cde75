"""What the hardware did meanwhile, for one line an epoch: its energy, temperatures, clocks that were not had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from energy_lightning.device import ClockChange
from energy_lightning.measure import EnergyTotal

TEMPERATURE_INTERVAL_S = 1.0


def energy_in_words(total: EnergyTotal, own: EnergyTotal) -> str:
    """Energy of the whole job (`total`) and power of one of its GPUs (`own`): "800 J ..., 200 W on this one"."""
    if total.energy_j == 0.0:
        return "energy not known" + (" yet: the counter has not moved" if total.complete else ": no reading was valid")
    words = f"{total.energy_j:.4g} J over the GPUs of all processes"
    if own.complete and own.time_s > 0.0:
        words += f", {own.energy_j / own.time_s:.0f} W on this one"
    return words + ("" if total.complete else " (incomplete: some energy readings were void)")


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


class TemperatureLog:
    """Range of a GPU's temperature, read about once a second.

    Args:
        read_c: the temperature now; None: not known.
    """

    def __init__(self, read_c: Callable[[], float | None]) -> None:
        self._read_c = read_c
        self._since_reading_s = 0.0
        self._readings_c: list[float] = []

    def add(self, time_s: float) -> None:
        """Count time that has passed; a reading is taken where enough has."""
        self._since_reading_s += time_s
        if self._since_reading_s >= TEMPERATURE_INTERVAL_S:
            self.read()

    @property
    def text(self) -> str:
        """Such as "61 to 67 C"; "" where nothing is known."""
        if not self._readings_c:
            return ""
        least, most = f"{min(self._readings_c):.0f}", f"{max(self._readings_c):.0f}"
        return f"{least} C" if least == most else f"{least} to {most} C"

    def read(self) -> None:
        """Take a reading now."""
        self._since_reading_s = 0.0
        temperature_c = self._read_c()
        if temperature_c is not None:
            self._readings_c.append(temperature_c)
