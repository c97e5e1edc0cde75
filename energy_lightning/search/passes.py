"""The kinds of passes by name. Add a row to offer another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from energy_lightning.search.greedy import GreedyPasses
from energy_lightning.search.history import Observations
from energy_lightning.search.proposer import BatchSizes, Proposer, take_random
from energy_lightning.search.published import PublishedPasses
from energy_lightning.search.space import Floats, SearchSpace

Factory = Callable[[SearchSpace, BatchSizes | None, Floats | None], Proposer]


class RandomPasses(PublishedPasses):
    """Uniformly random configurations: the yardstick of the benchmarks. Predictions come from the published trees."""

    def propose(
        self, seen: Observations, open_: NDArray[np.intp], count: int, rng: np.random.Generator
    ) -> Sequence[int]:
        """Any `count` of `open_`."""
        return take_random(open_, count, rng)

    def reasons(self, seen: Observations, count: int) -> Sequence[str]:
        """Nothing but chance."""
        return ["random"] * count


def _published(space: SearchSpace, sizes: BatchSizes | None, prior: Floats | None) -> Proposer:
    return PublishedPasses(space, sizes or BatchSizes.published(4))


def _random(space: SearchSpace, sizes: BatchSizes | None, prior: Floats | None) -> Proposer:
    return RandomPasses(space, sizes or BatchSizes(16, 16, len(space) // 16, least_gain=0.0))


PASSES: dict[str, Factory] = {"default": GreedyPasses, "published": _published, "random": _random}
