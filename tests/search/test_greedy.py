import numpy as np
import pytest

from energy_lightning.frontier import pareto_front
from energy_lightning.search import SearchSpace
from energy_lightning.search import greedy as module
from energy_lightning.search.acquisition import expected_improvement
from energy_lightning.search.greedy import GreedyPasses
from energy_lightning.search.history import Observations

SPACE = SearchSpace.grid(frequency_mhz=list(range(900, 1411, 30)), sm_count=list(range(3, 31, 3)))


def observations(seed: int) -> Observations:
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(SPACE), 30, replace=False)
    clock, sms = SPACE.codes()[rows].T
    time_s = (0.3 + 987.0 / clock) * (1.0 + 0.001 * (sms - 12) ** 2) * rng.lognormal(0.0, 0.01, 30)
    energy_j = 85.0 * time_s + 200.0 * (clock / 1410) ** 2 * rng.lognormal(0.0, 0.01, 30)
    return Observations(rows, time_s, energy_j, np.ones(30), 85.0)


@pytest.mark.parametrize("seed", range(4))
def test_renewing_only_the_highest_scores_chooses_what_renewing_all_does(seed: int) -> None:
    seen = observations(seed)
    passes = GreedyPasses(SPACE)
    open_ = np.setdiff1d(np.arange(len(SPACE)), seen.indices)
    models = passes._models(seen)
    mean = np.stack([model.mean for model in models], axis=1)
    points = mean[seen.indices]
    ends = points[pareto_front(*points.T)]
    reference = np.minimum(ends.min(axis=0) + module._REACH, ends.max(axis=0) + module._BEYOND)
    expected: list[int] = []
    for _ in range(12):
        std = np.stack([model.std for model in models], axis=1)
        front = points[pareto_front(*points.T)]
        scores = expected_improvement(front, mean, std, tuple(reference)) + 1e-9 * std.prod(axis=1)
        left = np.setdiff1d(open_, expected)
        expected.append(int(left[np.argmax(scores[left])]))
        points = np.vstack([points, mean[expected[-1]]])
        for model in models:
            model.assume_measured(expected[-1])
    assert passes.propose(seen, open_, 12, np.random.default_rng(0)) == expected
