"""The published passes: boosted trees, an ensemble for uncertainty, four ways to spend a batch.

Source: Kareus (arXiv 2601.17654), multi-pass multi-objective Bayesian optimisation. Kept as the peer of our own passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from energy_lightning.frontier import pareto_front
from energy_lightning.search.acquisition import improvement, pairs_on_unit_square
from energy_lightning.search.history import Observations
from energy_lightning.search.proposer import INITIAL, BatchSizes, Prediction, take_random
from energy_lightning.search.space import Floats, SearchSpace

_SHARES = {"total": 0.4, "dynamic": 0.2, "static": 0.2}  # the rest goes to the highest uncertainty
_TREES = {"max_depth": 6, "eta": 0.3, "nthread": 1, "seed": 0, "objective": "reg:squarederror", "verbosity": 0}
_NUM_ROUNDS, _NUM_MEMBERS, _SAMPLE_FRACTION = 100, 5, 0.8


class PublishedPasses:
    """One surrogate for time and one for dynamic energy; hypervolume improvement of predicted means per pass."""

    def __init__(self, space: SearchSpace, sizes: BatchSizes) -> None:
        self._codes = space.codes()
        self.sizes = sizes

    def propose(
        self, seen: Observations, open_: NDArray[np.intp], count: int, rng: np.random.Generator
    ) -> Sequence[int]:
        """Random while the initial sample is incomplete, then the four passes."""
        if len(seen) < self.sizes.initial:
            return take_random(open_, count, rng)
        predicted = self.predict(seen, rng)
        chosen: list[int] = []
        for objective, share in _SHARES.items():
            gains = _gains(objective, seen, predicted)
            _take(chosen, gains, open_, round(share * count))
        spread = predicted.time_std_s / predicted.time_s.max() + predicted.energy_std_j / predicted.energy_j.max()
        _take(chosen, spread, open_, count - len(chosen))
        return chosen

    def reasons(self, seen: Observations, count: int) -> Sequence[str]:
        """The initial sample, or the passes in turn."""
        if len(seen) < self.sizes.initial:
            return [INITIAL] * count
        passes = [f"{objective} energy" for objective, share in _SHARES.items() for _ in range(round(share * count))]
        return [*passes, *["uncertainty"] * (count - len(passes))]

    def predict(self, seen: Observations, rng: np.random.Generator) -> Prediction:
        """Means from trees on all observations, standard deviations from bootstrap members."""
        time_s, time_std_s = self._fit(seen, seen.time_s, rng)
        dynamic_j, energy_std_j = self._fit(seen, seen.dynamic_energy_j, rng)
        return Prediction(time_s, dynamic_j + seen.static_power_w * time_s, time_std_s, energy_std_j)

    def is_done(self, seen: Observations) -> bool:
        """The mean gain of the last two batches was negligible."""
        return self.sizes.faded(seen)

    def _fit(self, seen: Observations, target: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        import xgboost  # slow to import, and never before torch in a training job

        everything = xgboost.DMatrix(self._codes)

        def predictions(rows: NDArray[np.intp]) -> Floats:
            data = xgboost.DMatrix(self._codes[seen.indices[rows]], label=target[rows] / scale)
            return np.asarray(xgboost.train(_TREES, data, _NUM_ROUNDS).predict(everything), dtype=np.float64) * scale

        scale = float(target.mean())  # the trees' base score and gradients are in float32
        size = max(1, round(_SAMPLE_FRACTION * len(seen)))
        members = [predictions(rng.choice(len(seen), size, replace=True)) for _ in range(_NUM_MEMBERS)]
        return predictions(np.arange(len(seen))), np.std(members, axis=0)


def _gains(objective: str, seen: Observations, predicted: Prediction) -> Floats:
    """Hypervolume improvement (n,) of every candidate's predicted means over the measured front."""
    static_w = seen.static_power_w
    energies = {
        "total": (seen.energy_j, predicted.energy_j),
        "dynamic": (seen.dynamic_energy_j, predicted.energy_j - static_w * predicted.time_s),
        "static": (static_w * seen.time_s, static_w * predicted.time_s),
    }
    measured, candidates = pairs_on_unit_square((seen.time_s, predicted.time_s), energies[objective])
    front = measured[pareto_front(measured[:, 0], measured[:, 1])]
    return improvement(front, candidates, reference=(1.1, 1.1))


def _take(chosen: list[int], scores: Floats, open_: NDArray[np.intp], count: int) -> None:
    """Append the `count` best-scored open candidates that were not chosen before."""
    ranked = open_[np.argsort(-scores[open_], kind="stable")]
    taken = set(chosen)
    chosen += [int(i) for i in ranked if i not in taken][:count]
