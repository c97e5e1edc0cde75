"""Whether steps still take the time and energy that the plan predicts."""

from __future__ import annotations

from collections import deque


class DriftWatch:
    """Compares the mean of recent steps with a prediction; speaks up once.

    Args:
        time_s, energy_j: predicted for one step, energy per GPU; None: not watched.
        tolerance: relative deviation that is still normal.
        num_steps: steps in the mean; nothing is said before that many were seen.
    """

    def __init__(self, time_s: float | None, energy_j: float | None, *, tolerance: float, num_steps: int) -> None:
        self._predicted = {"time": (time_s, "s"), "energy": (energy_j, "J")}
        self._tolerance = tolerance
        self._recent: dict[str, deque[float]] = {name: deque(maxlen=num_steps) for name in self._predicted}
        self.ratios: dict[str, float] = {}
        self._said = False

    def add(self, time_s: float, energy_j: float | None, *, num_energy_steps: int = 1) -> str | None:
        """Count one step; returns one line the first time that a mean leaves the tolerance.

        `energy_j` is the mean over the last `num_energy_steps` steps; None: not known (yet).
        """
        faults = []
        for name, value, count in (("time", time_s, 1), ("energy", energy_j, num_energy_steps)):
            (predicted, unit), recent = self._predicted[name], self._recent[name]
            if predicted is None or value is None:
                continue
            recent.extend([value] * count)
            if len(recent) < (recent.maxlen or 0):
                continue
            mean = sum(recent) / len(recent)
            self.ratios[name] = mean / predicted
            if abs(mean / predicted - 1.0) > self._tolerance:
                faults.append(
                    f"{name} {mean:.4g} {unit} a step, predicted {predicted:.4g} ({mean / predicted - 1.0:+.1%})"
                )
        if self._said or not faults:
            return None
        self._said = True
        return "steps have drifted from the plan: " + "; ".join(faults)
