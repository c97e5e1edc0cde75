"""What has been measured so far, repeats merged, and the three views on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from energy_lightning.frontier import hypervolume
from energy_lightning.search.space import Floats, SearchError

Objective = Literal["total", "dynamic", "static"]
_LEAST_DYNAMIC_SHARE = 1e-3  # noise or a static power set too high must not make dynamic energy vanish


@dataclass(frozen=True, slots=True)
class Finding:
    """One measured candidate and how the search came to it.

    Attributes:
        time_s, energy_j: means over the repeats; energy per GPU, static power included.
        found_by: the pass that proposed it; "told" if none did.
        ask: number of the call of `ask` that proposed it, from 0; None if none did.
    """

    time_s: float
    energy_j: float
    found_by: str = "told"
    ask: int | None = None


@dataclass(frozen=True, slots=True)
class Observations:
    """Distinct measured candidates; arrays of shape (m,).

    Attributes:
        indices: candidate numbers.
        time_s, energy_j: means over the repeats; energy per GPU, static power included.
        num_repeats: windows behind each mean.
        static_power_w: per GPU.
        order: positions in the arrays in the order of asking; None: as they are.
    """

    indices: NDArray[np.intp]
    time_s: Floats
    energy_j: Floats
    num_repeats: Floats
    static_power_w: float
    order: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def dynamic_energy_j(self) -> Floats:
        """Energy beyond static power x time (J), at least a thousandth of the energy."""
        return dynamic_energy(self.time_s, self.energy_j, self.static_power_w)

    def energy(self, objective: Objective) -> Floats:
        """Total, dynamic or static energy (J); SearchError for another word."""
        if objective == "total":
            return self.energy_j
        if objective == "dynamic":
            return self.dynamic_energy_j
        if objective == "static":
            return self.static_power_w * self.time_s
        raise SearchError(f"unknown objective {objective!r}; known: {', '.join(get_args(Objective))}")


def dynamic_energy(time_s: Floats, energy_j: Floats, static_power_w: float) -> Floats:
    """Energy beyond static power x time (J), at least a thousandth of the energy."""
    return np.maximum(energy_j - static_power_w * time_s, _LEAST_DYNAMIC_SHARE * energy_j)


def batch_gains(observations: Observations, initial: int, batch: int) -> Floats:
    """Relative gain in hypervolume (time, total energy) of each full batch after the initial sample.

    Objectives are scaled by the largest values seen, the reference is 1.1 times those (as published). Depends only on
    which measurements fell into which batch, so it needs no state of its own.
    """
    if len(observations) < initial + batch:
        return np.empty(0)
    order = slice(None) if observations.order is None else observations.order
    time_s, energy_j = (values[order] / values.max() for values in (observations.time_s, observations.energy_j))
    ends = range(initial, len(observations) + 1, batch)
    areas = np.array([hypervolume(time_s[:end], energy_j[:end], (1.1, 1.1)) for end in ends])
    gains: Floats = np.diff(areas) / areas[:-1]
    return gains
