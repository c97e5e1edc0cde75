"""What every kind of passes offers to the optimiser, and the sizes of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from energy_lightning.search.history import Observations, batch_gains
from energy_lightning.search.space import Floats, SearchError

INITIAL = "initial sample"


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """How many configurations are measured: an initial sample, then batches.

    Attributes:
        initial, batch, num_batches: at most initial + batch x num_batches configurations.
        least_gain: stop when the mean relative hypervolume gain of the last `patience` batches is under it; 0: never.
        patience: batches that are looked at for that.
    """

    initial: int
    batch: int
    num_batches: int
    least_gain: float = 1e-3
    patience: int = 2

    def __post_init__(self) -> None:
        if min(self.initial, self.batch, self.patience) < 1 or self.num_batches < 0 or not self.least_gain >= 0.0:
            raise SearchError(
                f"need initial, batch and patience >= 1, num_batches >= 0 and least_gain >= 0, got {self}"
            )

    @classmethod
    def published(cls, num_operators: int) -> BatchSizes:
        """By partition size, in compute operators (Kareus, arXiv 2601.17654)."""
        if num_operators < 1:
            raise SearchError(f"a partition has at least one operator, got {num_operators}")
        if num_operators == 1:
            return cls(36, 16, 3)
        return cls(48, 16, 4) if num_operators <= 3 else cls(96, 32, 4)

    @property
    def most(self) -> int:
        """The largest number of configurations measured."""
        return self.initial + self.batch * self.num_batches

    def faded(self, seen: Observations) -> bool:
        """Whether the last batches gained too little."""
        gains = batch_gains(seen, self.initial, self.batch)[-self.patience :]
        return len(gains) == self.patience and float(gains.mean()) < self.least_gain


@dataclass(frozen=True, slots=True)
class Prediction:
    """Every candidate's predicted time (s) and energy per GPU (J), with standard deviations; arrays (n,)."""

    time_s: Floats
    energy_j: Floats
    time_std_s: Floats
    energy_std_j: Floats


class Proposer(Protocol):
    """Chooses what to measure next. Pure: everything it knows comes with the call."""

    sizes: BatchSizes

    def propose(
        self, seen: Observations, open_: NDArray[np.intp], count: int, rng: np.random.Generator
    ) -> Sequence[int]:
        """`count` different members of `open_` (candidate numbers not yet measured; at least `count` of them)."""
        ...

    def reasons(self, seen: Observations, count: int) -> Sequence[str]:
        """Which pass each of the `count` candidates that `propose` names next is for, in that order; for people."""
        ...

    def predict(self, seen: Observations, rng: np.random.Generator) -> Prediction:
        """For all candidates, from at least one observation."""
        ...

    def is_done(self, seen: Observations) -> bool:
        """Whether more measurements are not worth their time; at least one is there."""
        ...


def take_random(open_: NDArray[np.intp], count: int, rng: np.random.Generator) -> list[int]:
    """`count` different open candidates."""
    return [int(i) for i in rng.choice(open_, count, replace=False)]
