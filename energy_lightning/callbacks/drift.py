"""Whether steps still take the time and energy that the plan predicts."""

from __future__ import annotations

from collections import deque
from itertools import repeat

from energy_lightning.callbacks.step_meter import Stretch


class DriftWatch:
    """Compares the mean of recent steps with a prediction; speaks up once.

    Args:
        time_s, energy_j: predicted for one step, energy per GPU; None: not watched.
        tolerance: relative deviation that is still normal.
        num_steps: steps in the mean; nothing is said before that many were seen.
    """

    def __init__(self, time_s: float | None, energy_j: float | None, *, tolerance: float, num_steps: int) -> None:
        self._time = None if time_s is None else _Mean("time", "s", time_s, tolerance, num_steps)
        self._energy = None if energy_j is None else _Mean("energy", "J", energy_j, tolerance, num_steps)
        self._said = False

    @property
    def ratios(self) -> dict[str, float]:
        """Mean by prediction, of "time" and "energy" where they are watched and enough steps were seen."""
        return {mean.name: mean.ratio for mean in self._means() if mean.ratio is not None}

    def add(self, time_s: float, stretch: Stretch | None) -> str | None:
        """Count one step; returns one line the first time that a mean leaves the tolerance.

        `stretch`: the steps, this one the last, whose energy is known now; None: not known (yet).
        """
        has_left = self._time is not None and self._time.add(time_s)
        if stretch is not None and self._energy is not None:
            has_left = self._energy.add(*repeat(stretch.energy_j, stretch.num_steps)) or has_left
        if self._said or not has_left:
            return None
        self._said = True
        return "steps have drifted from the plan: " + "; ".join(mean.text for mean in self._means() if mean.has_left)

    def _means(self) -> list[_Mean]:
        return [mean for mean in (self._time, self._energy) if mean is not None]


class _Mean:
    """Mean of recent steps.

    Attributes:
        ratio: mean by prediction; None while too few steps were seen.
        has_left: whether it is outside the tolerance.
    """

    def __init__(self, name: str, unit: str, predicted: float, tolerance: float, num_steps: int) -> None:
        self.name, self._unit, self._predicted, self._tolerance = name, unit, predicted, tolerance
        self._num_steps, self._recent = num_steps, deque[float](maxlen=num_steps)
        self.ratio: float | None = None
        self.has_left = False

    def add(self, *values: float) -> bool:
        """Count steps; returns `has_left`."""
        recent = self._recent
        recent.extend(values)
        if len(recent) == self._num_steps:
            self.ratio = sum(recent) / self._num_steps / self._predicted
            self.has_left = abs(self.ratio - 1.0) > self._tolerance
        return self.has_left

    @property
    def text(self) -> str:
        """Such as "time 1.2 s a step, predicted 1 (+20.0%)"."""
        mean = sum(self._recent) / self._num_steps
        off = mean / self._predicted - 1.0
        return f"{self.name} {mean:.4g} {self._unit} a step, predicted {self._predicted:.4g} ({off:+.1%})"
