"""Least squares with HC3 errors, shrunk and non-negative: against refitting without each row in turn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from energy_lightning.predict.linear import non_negative, ordinary, shrunk, with_products

RNG = np.random.default_rng(5)
X = np.column_stack([np.ones(25), RNG.normal(size=(25, 3))])
Y = X @ [1.0, -2.0, 0.5, 0.0] + RNG.normal(size=25) * np.abs(X[:, 1])  # noise that is not the same everywhere


def test_hc3_is_the_jackknife() -> None:
    fit = ordinary(("one", "a", "b", "c"), X, Y)
    moved = np.zeros((4, 4))
    for i in range(25):
        rest = np.delete(np.arange(25), i)
        change = np.linalg.lstsq(X[rest], Y[rest])[0] - np.linalg.lstsq(X, Y)[0]
        moved += np.outer(change, change)
    assert fit.hc3_errors == pytest.approx(np.sqrt(np.diag(moved)))


def test_r2_counts_what_was_fitted() -> None:
    fit, more = ordinary(("one", "a", "b", "c"), X, Y), ordinary(("one", "a", "b", "c"), X, Y, spent=5)
    residual = Y - X @ np.linalg.lstsq(X, Y)[0]
    assert fit.r2 == more.r2 == pytest.approx(1.0 - residual.var() / Y.var())
    assert fit.adjusted_r2 == pytest.approx(1.0 - (residual @ residual / 21.0) / Y.var(ddof=1))
    assert more.adjusted_r2 == pytest.approx(1.0 - (residual @ residual / 16.0) / Y.var(ddof=1))
    assert fit.rmse == pytest.approx(np.sqrt((residual**2).mean()))


def test_shrunk_residuals_are_those_of_leaving_a_row_out() -> None:
    features = X[:, 1:]
    fit = shrunk(features, Y)
    z = fit.standardised(features)
    for i in range(25):
        rest = np.delete(np.arange(25), i)
        without = Ridge(alpha=fit.penalty).fit(z[rest], Y[rest])
        assert Y[i] - without.predict(z[[i]])[0] == pytest.approx(fit.loo[i])
    assert Ridge(alpha=fit.penalty).fit(z, Y).predict(z) == pytest.approx(fit.predict(features))


def test_shrunk_ignores_features_that_do_not_vary() -> None:
    constant = np.column_stack([X[:, 1:], np.full(25, 7.0)])
    assert shrunk(constant, Y).predict(constant) == pytest.approx(shrunk(X[:, 1:], Y).predict(X[:, 1:]))


def test_products_are_all_pairs() -> None:
    assert with_products(np.array([[2.0, 3.0, 5.0]])).tolist() == [[2, 3, 5, 4, 6, 10, 9, 15, 25]]


def test_prices_are_found_and_never_negative() -> None:
    terms = np.exp(RNG.normal(size=(40, 4)) * 2.0)
    prices = np.array([3.0, 0.0, 0.02, 11.0])
    energy = terms @ prices
    energy[7] *= 5.0  # an outlier
    found = non_negative(terms, energy)
    assert (found >= 0.0).all()
    assert found[[0, 2, 3]] == pytest.approx(prices[[0, 2, 3]], rel=0.1)
