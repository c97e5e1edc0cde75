import numpy as np
import pytest

from energy_lightning.frontier import hypervolume, pareto_front
from energy_lightning.search.acquisition import expected_improvement, improvement

REFERENCE = (1.1, 1.2)


def random_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    points = rng.uniform(0.2, 1.3, (seed, 2))  # seed 0: an empty front; some points lie beyond the reference
    return points[pareto_front(points[:, 0], points[:, 1])], rng.uniform(0.0, 1.4, (20, 2))


@pytest.mark.parametrize("seed", range(12))
def test_improvement_equals_the_difference_of_hypervolumes(seed: int) -> None:
    front, candidates = random_case(seed)
    before = hypervolume(front[:, 0], front[:, 1], REFERENCE)
    after = [hypervolume(*np.vstack([front, c]).T, REFERENCE) for c in candidates]
    np.testing.assert_allclose(improvement(front, candidates, REFERENCE), np.array(after) - before, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 5, 9])
def test_expected_improvement_equals_its_monte_carlo_mean(seed: int) -> None:
    front, mean = random_case(seed)
    std = np.random.default_rng(seed + 100).uniform(0.02, 0.3, mean.shape)
    draws = np.random.default_rng(seed).standard_normal((40_000, 2))
    sampled = np.array([improvement(front, m + s * draws, REFERENCE) for m, s in zip(mean, std, strict=True)])
    error = sampled.std(axis=1) / np.sqrt(len(draws))
    expected = expected_improvement(front, mean, std, REFERENCE)
    assert (np.abs(expected - sampled.mean(axis=1)) < 5.0 * error + 1e-5).all()


def test_no_spread_gives_the_plain_improvement() -> None:
    front, mean = random_case(6)
    expected = improvement(front, mean, REFERENCE)
    np.testing.assert_allclose(expected_improvement(front, mean, np.zeros_like(mean), REFERENCE), expected, atol=1e-9)
