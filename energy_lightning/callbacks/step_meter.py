"""StepMeter: time of every step, energy of stretches of steps that are long enough for the counter.

    step | step | step | step |pause| step | step ...
    [------- stretch -------]        [ stretch ...      one reading where a stretch ends, one more after a pause there

A counter that moves every 0.1 s says nothing of a step of 50 ms, and twenty such readings still scatter by a fifth.
Steps that all wait for their data cost no reading each: pauses within a stretch are added up, and make it void where
they are too long together.
"""

from __future__ import annotations

from dataclasses import dataclass

from energy_lightning.device import Device
from energy_lightning.measure import EnergyMeter
from energy_lightning.measure.meter import SAMPLE_INTERVAL_S

REFRESHES_PER_WINDOW = 10
UNREAD_PAUSE = 0.02
"""Pauses between steps up to this share of the time are counted in."""


def window_s_of(device: Device) -> float:
    """How long (s) energy must be measured to be worth something; 0.0 where every reading is exact."""
    refreshes_s = {"counter": device.counter_refresh_s, "power": SAMPLE_INTERVAL_S}
    return REFRESHES_PER_WINDOW * refreshes_s.get(device.energy_source, 0.0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that were read together.

    Attributes:
        energy_j: mean energy of one of them, short pauses included.
        num_steps: how many they were.
    """

    energy_j: float
    num_steps: int


class StepMeter:
    """Measures steps between `begin` and `end`; never waits for the device. Both run in every step of a training."""

    def __init__(self, device: Device) -> None:
        self._now_s, self._meter, self._window_s = device.now_s, EnergyMeter(device), window_s_of(device)
        self._began_s = self._ended_s = 0.0
        self._num_steps, self._dropped = 0, True  # of the stretch under way, and whether none is
        self._paused_s = 0.0  # within it
        self._long_enough_s = 0.0  # when it will be

    def begin(self) -> None:
        """A step begins."""
        began_s = self._now_s()
        paused_s = began_s - self._ended_s
        if self._dropped or (self._num_steps == 0 and paused_s > UNREAD_PAUSE * (self._ended_s - self._began_s)):
            self._meter.start()
            self._begin_stretch()
        else:
            self._paused_s += paused_s
        self._began_s = began_s

    def end(self) -> tuple[float, Stretch | None]:
        """The step ends; returns its time in s, and the stretch that ended with it (None: none did, or it is void)."""
        self._ended_s = ended_s = self._now_s()
        self._num_steps += 1
        return ended_s - self._began_s, None if ended_s < self._long_enough_s else self._end_stretch()

    def _begin_stretch(self) -> None:
        self._num_steps, self._paused_s, self._dropped = 0, 0.0, False
        self._long_enough_s = self._meter.open_since_s + self._window_s

    def _end_stretch(self) -> Stretch | None:
        reading, num_steps, paused_s = self._meter.lap(), self._num_steps, self._paused_s
        self._begin_stretch()
        if reading.energy_j is None or paused_s > UNREAD_PAUSE * reading.time_s:
            return None
        return Stretch(reading.energy_j / num_steps, num_steps)

    def drop(self) -> None:
        """The stretch under way holds a step that is not like the others: the next step begins a new one."""
        self._dropped = True

    def close(self) -> None:
        """Stop background sampling; idempotent."""
        self._meter.close()
