"""The default passes: a Gaussian process each for time and energy, batches by greedy expected hypervolume improvement.

Targets are logarithms, so the models see ratios and the improvement is in relative time x relative energy. A prior (an
emulated GPU's expectation) is divided out first and enters as two features, so that it may also be wrong in a regular
way. A batch is chosen one by one: each choice is assumed to come out at its mean (Kriging believer, Ginsbourger et al.
2010), which removes its own improvement and shrinks the uncertainty around it, so the batch spreads by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from energy_lightning.frontier import pareto_front
from energy_lightning.search.acquisition import expected_improvement, improvement
from energy_lightning.search.design import levels, take_balanced
from energy_lightning.search.features import features
from energy_lightning.search.history import Observations
from energy_lightning.search.proposer import INITIAL, BatchSizes, Prediction
from energy_lightning.search.space import Floats, SearchSpace

if TYPE_CHECKING:  # loaded where it is fitted: its part of scipy takes longer than all of a search's report
    from energy_lightning.search.gaussian_process import GaussianProcess

_RENEWED = 32  # scores computed at once
# Deciding is cheap beside measuring, so batches are small: each one learns from the one before.
DEFAULT_SIZES = BatchSizes(initial=12, batch=4, num_batches=17, least_gain=5e-4, patience=4)
_REACH = float(np.log(1.7))  # plans slower or dearer than 1.7 x the best are of no interest,
_BEYOND = 0.1  # nor are those 10% beyond the other end of the front: its ends must not swallow the batch


class GreedyPasses:
    """See the module. `prior` is None or (n, 2) with every candidate's expected time (s) and energy (J)."""

    def __init__(self, space: SearchSpace, sizes: BatchSizes | None = None, prior: Floats | None = None) -> None:
        self.sizes = sizes or DEFAULT_SIZES
        self._features, self._levels = features(space, prior), levels(space)
        self._log_prior = None if prior is None else np.log(prior)

    def propose(
        self, seen: Observations, open_: NDArray[np.intp], count: int, rng: np.random.Generator
    ) -> Sequence[int]:
        """Expected improvement once the initial sample is there; before, the prior's front and a balanced sample."""
        if len(seen) < self.sizes.initial:
            return self._initial(open_, count, rng)
        with threadpool_limits(1, user_api="blas"):  # matrices this small only lose by threads, much so on busy cores
            return self._greedy_batch(seen, open_, count)

    def reasons(self, seen: Observations, count: int) -> Sequence[str]:
        """The initial sample, or expected improvement."""
        return [INITIAL if len(seen) < self.sizes.initial else "expected improvement"] * count

    def _greedy_batch(self, seen: Observations, open_: NDArray[np.intp], count: int) -> list[int]:
        """One by one. Every choice lowers all scores, so only those that may still be the highest are renewed."""
        models = self._models(seen)
        mean = np.stack([model.mean for model in models], axis=1) + self._shift()
        points = mean[seen.indices]  # smoothed: a lucky measurement must not hide the others
        ends = points[pareto_front(points[:, 0], points[:, 1])]
        reference = np.minimum(ends.min(axis=0) + _REACH, ends.max(axis=0) + _BEYOND)
        scores, chosen = np.full(len(mean), -np.inf), []
        scores[open_] = np.inf
        for _ in range(count):
            std = np.stack([model.std for model in models], axis=1)
            front = points[pareto_front(points[:, 0], points[:, 1])]
            renewed = np.zeros(len(mean), dtype=bool)
            while not renewed[best := int(np.argmax(scores))]:
                limit = np.partition(scores, -_RENEWED)[-_RENEWED] if len(scores) > _RENEWED else -np.inf
                high = np.flatnonzero(~renewed & (scores >= limit) & (scores > -np.inf))
                scores[high] = expected_improvement(front, mean[high], std[high], tuple(reference))
                scores[high] += 1e-9 * std[high].prod(axis=1)  # nothing expected: look where least is known
                renewed[high] = True
            chosen.append(best)
            scores[best] = -np.inf
            points = np.vstack([points, mean[best]])
            for model in models:
                model.assume_measured(best)
        return chosen

    def predict(self, seen: Observations, rng: np.random.Generator) -> Prediction:
        """Medians of the log-normal posteriors, deviations to first order."""
        with threadpool_limits(1, user_api="blas"):
            models = self._models(seen)
        time_s, energy_j = np.exp(np.stack([model.mean for model in models], axis=1) + self._shift()).T
        return Prediction(time_s, energy_j, time_s * models[0].std, energy_j * models[1].std)

    def is_done(self, seen: Observations) -> bool:
        """The last batches gained nothing worth their time."""
        return self.sizes.faded(seen)

    def _models(self, seen: Observations) -> tuple[GaussianProcess, GaussianProcess]:
        from energy_lightning.search.gaussian_process import GaussianProcess

        targets = np.log(np.stack([seen.time_s, seen.energy_j], axis=1))
        if self._log_prior is not None:
            targets = targets - self._log_prior[seen.indices]
        time, energy = (GaussianProcess(self._features, seen.indices, y, seen.num_repeats) for y in targets.T)
        return time, energy

    def _shift(self) -> Floats | float:
        return 0.0 if self._log_prior is None else self._log_prior

    def _initial(self, open_: NDArray[np.intp], count: int, rng: np.random.Generator) -> list[int]:
        """Half from the prior's front, by greedy hypervolume improvement; the rest balanced over all values."""
        chosen: list[int] = []
        if self._log_prior is not None:
            points = self._log_prior[open_]
            reference = points.min(axis=0) + _REACH
            for _ in range(count // 2):
                known = self._log_prior[chosen].reshape(-1, 2)
                front = known[pareto_front(known[:, 0], known[:, 1])]
                gains = improvement(front, points, tuple(reference))
                if gains.max() <= 0.0:
                    break
                chosen.append(int(open_[np.argmax(gains)]))
        left = np.setdiff1d(open_, chosen)
        closed = np.setdiff1d(np.arange(len(self._levels)), left)
        return chosen + take_balanced(self._levels, closed, left, count - len(chosen), rng)
