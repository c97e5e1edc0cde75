"""Measures of a prediction against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from energy_lightning.predict import PredictionError, mape_pct, pairwise_pct, scores


def test_mape_of_known_errors() -> None:
    assert mape_pct([100.0, 50.0], [110.0, 40.0]) == pytest.approx(15.0)


@pytest.mark.parametrize("seed", range(5))
def test_pairwise_counts_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    measured, predicted = rng.integers(1, 6, 8).astype(float), rng.integers(1, 6, 8).astype(float)
    right = total = 0.0
    for a in range(8):
        for b in range(8):
            if measured[a] < measured[b]:
                total += 1.0
                right += 1.0 if predicted[a] < predicted[b] else 0.5 if predicted[a] == predicted[b] else 0.0
    assert pairwise_pct(measured, predicted) == pytest.approx(100.0 * right / total)


def test_ranking_needs_different_energies() -> None:
    with pytest.raises(PredictionError, match="two different energies"):
        pairwise_pct([3.0, 3.0], [1.0, 2.0])


def test_regret_and_top1_follow_the_choice() -> None:
    wrong = scores([10.0, 12.0, 30.0], [5.0, 4.0, 9.0])
    assert not wrong.top1
    assert wrong.regret_pct == pytest.approx(20.0)
    assert wrong.pairwise_pct == pytest.approx(200.0 / 3.0)
    right = scores([10.0, 12.0, 30.0], [4.0, 5.0, 9.0])
    assert right.top1
    assert right.regret_pct == 0.0
