"""Columns that numpy would turn into numbers without a word: truth values, complex numbers, dates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from energy_lightning.predict import EnergyLens, PredictionError
from energy_lightning.predict.columns import numbers
from energy_lightning.predict.proxies import read_runs


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([True, False], "truth values \\(first: True\\)"),
        (pd.Series([2, True], dtype=object), "truth values"),
        (pd.array([True, None], dtype="boolean"), "truth values"),
        ([1.0 + 2.0j], "complex numbers"),
        (pd.date_range("2024-01-01", periods=2), "dates"),
        (pd.to_timedelta([1, 2], unit="s"), "durations"),
        (["many"], "could not convert"),
        ([[1], [1, 2]], "inhomogeneous"),
    ],
)
def test_they_are_named(values: object, what: str) -> None:
    with pytest.raises(PredictionError, match=f"^column a must hold numbers.*{what}"):
        numbers(values, "column a")  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[1, 2], ("1", "2"), pd.array([1, 2], dtype="Int64"), np.float32([1, 2])])
def test_numbers_are_taken(values: object) -> None:
    assert numbers(values, "column a").tolist() == [1.0, 2.0]  # type: ignore[arg-type]


def test_every_column_of_the_predictors_is_looked_at() -> None:
    with pytest.raises(PredictionError, match="column batch_size must hold numbers, it holds truth values"):
        EnergyLens().fit({"batch_size": [True] * 4}, [1.0] * 4)
    with pytest.raises(PredictionError, match="energy_j must hold numbers, it holds complex"):
        EnergyLens().fit({"batch_size": [1, 2, 3, 4]}, [1j] * 4)
    names = ("num_layers", "hidden_size", "ffn_size", "sequence_length", "batch_size", "tokens")
    sizes = {name: [4.0] for name in names}
    run = {**sizes, "num_gpus": [2], "strategy": ["tp"]}
    assert read_runs({**run, "speedup": [1.5]}).efficiency == pytest.approx([0.75])
    with pytest.raises(PredictionError, match="column speedup must hold numbers"):
        read_runs({**run, "speedup": ["fast"]})
