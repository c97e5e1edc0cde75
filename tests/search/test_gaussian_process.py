import numpy as np
import pytest
from scipy.optimize import check_grad

from energy_lightning.search import SearchSpace
from energy_lightning.search import gaussian_process as module
from energy_lightning.search.features import features
from energy_lightning.search.gaussian_process import GaussianProcess

SPACE = SearchSpace.grid(
    frequency_mhz=list(range(900, 1411, 30)), sm_count=[2, 4, 8, 16], launch=["norm_0", "attn_0", None]
)


def smooth(space: SearchSpace = SPACE) -> np.ndarray:
    """A sum of a clock's and a schedule's effect, and a little of both."""
    codes = np.nan_to_num(space.codes(), nan=2.0)
    clock, sms = np.log(codes[:, 0] / 1410), np.log(codes[:, 1])
    return -0.7 * clock + 0.1 * (sms - 1.5) ** 2 + 0.05 * codes[:, 2] + 0.05 * clock * sms


def test_the_gradient_is_that_of_the_objective() -> None:
    rng = np.random.default_rng(0)
    rows = rng.choice(len(SPACE), 20, replace=False)
    inputs = features(SPACE)
    pairs = np.triu_indices(20, 1)
    squared = inputs.squared_differences(rows[pairs[0]], rows[pairs[1]])
    data = module._Data(pairs, squared, inputs.groups, rng.standard_normal(20), rng.integers(1, 4, 20).astype(float))
    theta = rng.normal(-0.5, 0.3, sum(inputs.groups.shape) + 1)
    error = check_grad(lambda t: module._objective(t, data)[0], lambda t: module._objective(t, data)[1], theta)
    assert error < 1e-4


def test_posterior_equals_the_textbook_formulas() -> None:
    """Mean and variance by dense algebra over the whole joint covariance, with the fitted hyperparameters."""
    rng = np.random.default_rng(1)
    rows, target = rng.choice(len(SPACE), 15, replace=False), rng.standard_normal(15)
    repeats = np.ones(15)
    process = GaussianProcess(features(SPACE), rows, target, repeats)
    every = np.arange(len(SPACE))
    joint = process._kernel(every[:, None], every[None, :])
    noisy = joint[np.ix_(rows, rows)] + (process._noise + 1e-8) * np.eye(15)
    weights = np.linalg.solve(noisy, np.ones(15))
    standardised = (target - target.mean()) / target.std()
    level = weights @ standardised / weights.sum()
    mean = level + joint[:, rows] @ np.linalg.solve(noisy, standardised - level)
    variance = np.diag(joint) - np.einsum("ij,ji->i", joint[:, rows], np.linalg.solve(noisy, joint[rows]))
    np.testing.assert_allclose(process.mean, target.mean() + target.std() * mean, atol=1e-6)
    np.testing.assert_allclose(process.std, target.std() * np.sqrt(variance), atol=1e-5)


def test_assuming_a_measurement_equals_conditioning_on_it() -> None:
    rng = np.random.default_rng(2)
    rows, target = rng.choice(len(SPACE), 15, replace=False), rng.standard_normal(15)
    process = GaussianProcess(features(SPACE), rows, target, np.ones(15))
    candidate = int(np.setdiff1d(np.arange(len(SPACE)), rows)[7])
    more = np.append(rows, candidate)
    every = np.arange(len(SPACE))
    joint = process._kernel(every[:, None], every[None, :])
    noisy = joint[np.ix_(more, more)] + (process._noise + 1e-8) * np.eye(16)
    expected = np.diag(joint) - np.einsum("ij,ji->i", joint[:, more], np.linalg.solve(noisy, joint[more]))
    mean = process.mean.copy()
    process.assume_measured(candidate)
    np.testing.assert_allclose(process.std, target.std() * np.sqrt(np.maximum(expected, 1e-12)), atol=1e-4)
    np.testing.assert_array_equal(process.mean, mean)


def test_it_learns_a_smooth_table_from_few_rows() -> None:
    rows = np.random.default_rng(3).choice(len(SPACE), 40, replace=False)
    process = GaussianProcess(features(SPACE), rows, smooth()[rows], np.ones(40))
    assert np.abs(process.mean - smooth()).mean() < 0.01


def test_repeats_are_trusted_more() -> None:
    """The same noisy value weighs more when it is the mean of many windows."""
    rng = np.random.default_rng(4)
    rows = rng.choice(len(SPACE), 40, replace=False)
    target = smooth()[rows] + 0.05 * rng.standard_normal(40)
    target[0] += 0.3
    once = GaussianProcess(features(SPACE), rows, target, np.ones(40))
    often = GaussianProcess(features(SPACE), rows, target, np.concatenate([[100.0], np.ones(39)]))
    assert abs(often.mean[rows[0]] - target[0]) < abs(once.mean[rows[0]] - target[0])


@pytest.mark.parametrize("target", [[0.0] * 5, [1e-12, 0.0, 0.0, 0.0, 0.0], [1e9, -1e9, 0.0, 1.0, 2.0]])
def test_constant_and_wild_targets_stay_finite(target: list[float]) -> None:
    process = GaussianProcess(features(SPACE), np.arange(5), np.array(target), np.ones(5))
    assert np.isfinite(process.mean).all()
    assert np.isfinite(process.std).all()


def test_features_of_odd_spaces() -> None:
    single = features(SearchSpace.grid(x=[1]))
    assert single.values.shape == (1, 1)
    threads = features(SearchSpace.grid(sm_count=[2, 4], block_threads=[512, 1024]))
    assert threads.values.shape == (4, 3)  # SMs, threads a block, and their product
    assert threads.groups.shape == (1, 3)  # no clock, so one group
    assert features(SPACE).groups.shape[0] == 3
    overlap = features(SearchSpace.grid(launch=["norm_0", "attn_0", None]))
    assert overlap.values[:, 0].tolist() == [0.0, 1.0, -0.5]
    assert overlap.categorical.tolist() == [False, True]
