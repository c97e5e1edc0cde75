"""StepMeter: time of every step, energy of stretches of steps that are long enough for the counter.

    step | step | step | step |pause| step | step ...
    [------- stretch -------]        [ stretch ...      one reading where a stretch ends, one more after a pause

A counter that moves every 0.1 s says nothing of a step of 50 ms, and twenty such readings still scatter by a fifth.
"""

from __future__ import annotations

from dataclasses import dataclass

from energy_lightning.device import Device
from energy_lightning.measure import EnergyMeter
from energy_lightning.measure.meter import SAMPLE_INTERVAL_S

REFRESHES_PER_WINDOW = 10
UNREAD_PAUSE = 0.02
"""A pause between two steps that is shorter than this share of a step is counted in: it is not worth a reading."""


def window_s_of(device: Device) -> float:
    """How long (s) energy must be measured to be worth something; 0.0 where every reading is exact."""
    refreshes_s = {"counter": device.counter_refresh_s, "power": SAMPLE_INTERVAL_S}
    return REFRESHES_PER_WINDOW * refreshes_s.get(device.energy_source, 0.0)


@dataclass(frozen=True, slots=True)
class StepReading:
    """One step.

    Attributes:
        time_s: how long it took.
        energy_j: mean energy of one of the last `num_steps` steps; None: no stretch ended here, or it is void.
        num_steps: steps in that stretch; 0 where none ended.
    """

    time_s: float
    energy_j: float | None = None
    num_steps: int = 0


class StepMeter:
    """Measures steps between `begin` and `end`; never waits for the device."""

    def __init__(self, device: Device) -> None:
        self._device, self._meter, self._window_s = device, EnergyMeter(device), window_s_of(device)
        self._began_s = self._ended_s = 0.0
        self._num_steps: int | None = None  # of the stretch under way; None: none is

    def begin(self) -> None:
        """A step begins."""
        began_s, took_s = self._device.now_s(), self._ended_s - self._began_s
        if self._num_steps is None or began_s - self._ended_s > UNREAD_PAUSE * took_s:
            self._meter.start()
            self._num_steps = 0
        self._began_s = began_s

    def end(self) -> StepReading:
        """The step ends."""
        self._ended_s = self._device.now_s()
        time_s = self._ended_s - self._began_s
        num_steps = (self._num_steps or 0) + 1
        if self._ended_s - self._meter.open_since_s < self._window_s:
            self._num_steps = num_steps
            return StepReading(time_s)
        energy_j, self._num_steps = self._meter.lap().energy_j, 0
        return StepReading(time_s, None if energy_j is None else energy_j / num_steps, num_steps)

    def drop(self) -> None:
        """The stretch under way holds a step that is not like the others: the next step begins a new one."""
        self._num_steps = None

    def close(self) -> None:
        """Stop background sampling; idempotent."""
        self._meter.close()
