"""Beliefs from costs alone: the smooth Gaussian curve, and each size's own variance."""

from __future__ import annotations

import numpy as np
import pytest

from energy_lightning.recurring import learned
from energy_lightning.recurring.costs import CostPrior, beliefs, noise_by_arm, posterior
from energy_lightning.recurring.runs import Outcome, View

ARMS = [8, 16, 32, 64, 128]


def test_the_variance_of_cost_is_learned_for_each_arm() -> None:
    """80 repeats of five arms; arm 3 varies three times as much. By hand: the prior's 4 repeats and the arm's own."""
    prior, rng = CostPrior(), np.random.default_rng(0)
    arm = np.repeat(np.arange(5), 80)
    for spread in (0.01, 0.1, 0.3):
        y = arm + np.where(arm == 3, 3.0, 1.0) * spread * rng.normal(size=400)
        outcomes = [Outcome(arm=int(a), cost=float(np.exp(v)), reached=True) for a, v in zip(arm, y, strict=True)]
        view = View(batch_sizes=tuple(ARMS), default=2, outcomes=outcomes)
        own = np.array([y[arm == one].var(ddof=1) for one in range(5)])
        found = noise_by_arm(view, prior)
        assert found == pytest.approx((4 * 0.1**2 + 79 * own) / (4 + 79))


def test_many_equal_repeats_of_one_size_leave_the_others_uncertain() -> None:
    """Else one unlucky run of another size would be believed for ever."""
    outcomes = [Outcome(arm=1, cost=100.0, reached=True)] * 80 + [Outcome(arm=2, cost=105.0, reached=True)]
    noise = noise_by_arm(View(batch_sizes=tuple(ARMS), default=1, outcomes=outcomes), CostPrior())
    assert noise[1] < 0.03**2
    assert noise[2] == pytest.approx(0.1**2)


def test_runs_under_different_limits_are_no_repeats() -> None:
    outcomes = [
        Outcome(arm=1, cost=cost, reached=True, power_limit_w=limit) for cost, limit in ((10.0, 150.0), (90.0, 250.0))
    ]
    view = View(batch_sizes=tuple(ARMS), default=2, outcomes=outcomes)
    assert noise_by_arm(view, CostPrior()) == pytest.approx(0.1**2)


def test_a_size_whose_runs_vary_costs_more_than_its_usual_run() -> None:
    """Costs 50 and 200 have the log-mean of 100, and the mean 125."""
    outcomes = [Outcome(arm=arm, cost=100.0, reached=True) for arm in (1, 2) for _ in range(40)]
    outcomes += [Outcome(arm=3, cost=cost, reached=True) for cost in (50.0, 200.0) for _ in range(20)]
    costs, _ = learned.means(View(batch_sizes=tuple(ARMS), default=2, outcomes=outcomes))
    assert costs[2] == pytest.approx(100.0, rel=0.03)
    assert 115.0 < costs[3] < 135.0


def test_posterior_equals_conditioning_one_run_at_a_time() -> None:
    """Oracle: Kalman updates of the arms' joint Gaussian, each run in turn, with the same prior and noise."""
    prior = CostPrior(noise_runs=1e12)  # the noise is then the prior's
    sizes, rng = (8, 16, 32, 64), np.random.default_rng(1)
    outcomes = [Outcome(arm=int(rng.integers(4)), cost=float(rng.uniform(50, 200)), reached=True) for _ in range(9)]
    view = View(batch_sizes=sizes, default=2, outcomes=outcomes)
    y = np.log([outcome.cost for outcome in outcomes])
    octaves = np.array([-2.0, -1.0, 0.0, 1.0])
    mean = np.full(4, y.mean())
    covariance = np.empty((4, 4))
    for i, a in enumerate(octaves):
        for j, b in enumerate(octaves):
            smooth = prior.curve.smooth**2 * np.exp(-((a - b) ** 2) / (2 * prior.curve.length_octaves**2))
            own = prior.curve.rough**2 + prior.limit_arm**2 if i == j else 0.0
            covariance[i, j] = prior.curve.level**2 + prior.limit_shift**2 + prior.curve.slope**2 * a * b + smooth + own
    for outcome, value in zip(outcomes, y, strict=True):
        gain = covariance[:, outcome.arm] / (covariance[outcome.arm, outcome.arm] + prior.noise**2)
        mean = mean + gain * (value - mean[outcome.arm])
        covariance = covariance - np.outer(gain, covariance[outcome.arm])
    found_mean, found_covariance = posterior(view, prior)
    assert found_mean == pytest.approx(mean, abs=1e-9)
    assert found_covariance == pytest.approx(covariance, abs=1e-9)


def test_a_run_that_broke_off_early_is_no_cheaper_for_that() -> None:
    """Out of memory in its first step, or stopped at twice the least: both dearer than the least, the first no less."""
    known = [Outcome(arm=2, cost=100.0, reached=True)] * 3

    def cost_of(missed: float) -> float:
        view = View(batch_sizes=tuple(ARMS), default=2, outcomes=[*known, Outcome(arm=3, cost=missed, reached=False)])
        return float(np.exp(beliefs(view, CostPrior()).expected[3]))

    assert cost_of(1e-3) == pytest.approx(cost_of(100.0))
    assert 110.0 < cost_of(1e-3) < cost_of(200.0)
