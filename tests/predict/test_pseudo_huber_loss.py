"""The loss that bends for outliers, against its closed form and differences."""

from __future__ import annotations

import numpy as np
import pytest

from energy_lightning.predict.loss import bent, bent_slope

ERRORS = np.linspace(-30.0, 30.0, 121)


def test_squares_are_twice_the_pseudo_huber_loss() -> None:
    expected = 1.5**2 * (np.hypot(1.0, ERRORS / 1.5) - 1.0)
    assert bent(ERRORS) ** 2 / 2.0 == pytest.approx(expected, rel=1e-12)
    assert np.array_equal(np.sign(bent(ERRORS)), np.sign(ERRORS))


def test_the_slope_is_that_of_differences() -> None:
    step = 1e-5
    differences = (bent(ERRORS + step) - bent(ERRORS - step)) / (2.0 * step)
    assert bent_slope(ERRORS) == pytest.approx(differences, rel=1e-8)
