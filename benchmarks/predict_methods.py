"""Methods that benchmarks/predict.py compares: our estimators and their peers, fitted to named columns of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression

from energy_lightning.predict import EnergyLens, FormulaSearch


class Learner:
    """A scikit-learn regressor on named columns; `log`: learns ln E, so that it cannot predict less than nothing."""

    def __init__(self, make: Callable[[], Any], columns: list[str], *, log: bool = False) -> None:
        self.model, self.columns, self.log = make(), columns, log

    def fit(self, table: pd.DataFrame, energy_j: pd.Series) -> Learner:
        """Learn from the rows."""
        self.model.fit(self._values(table), np.log(energy_j) if self.log else energy_j)
        return self

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """Joules, (n,)."""
        predicted = self.model.predict(self._values(table))
        return np.asarray(np.exp(predicted) if self.log else predicted)

    def _values(self, table: pd.DataFrame) -> np.ndarray:
        values: np.ndarray = table[self.columns].to_numpy(float)
        if "strategy" not in table:
            return values
        return np.column_stack([values, table.speedup, table.strategy == "tp", table.strategy == "fsdp"])


class LatencyTimesPower:
    """As MAVERIQ: predicted latency of a request (a product of powers) x mean power of a GPU x GPUs / batch size."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns

    def fit(self, table: pd.DataFrame, energy_j: pd.Series) -> LatencyTimesPower:
        """Learn latency and power from the rows."""
        self.latency = Learner(LinearRegression, self.columns, log=True)
        self.latency.model.fit(np.log(table[self.columns]), np.log(table.latency_s))
        gpus = table.tensor_parallel * table.pipeline_parallel
        self.power_w = float((energy_j * table.batch_size / table.latency_s / gpus).mean())
        return self

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """Joules, (n,)."""
        latency_s = np.exp(self.latency.model.predict(np.log(table[self.columns])))
        gpus = table.tensor_parallel * table.pipeline_parallel
        return np.asarray(latency_s * self.power_w * gpus / table.batch_size)


class Ours:
    """One of our estimators on its columns only."""

    def __init__(self, model: Any, columns: list[str]) -> None:
        self.model, self.columns = model, columns

    def fit(self, table: pd.DataFrame, energy_j: pd.Series) -> Ours:
        """Learn from the rows."""
        self.model.fit(table[self.columns], energy_j)
        return self

    def predict(self, table: pd.DataFrame) -> np.ndarray:
        """Joules, (n,)."""
        return np.asarray(self.model.predict(table[self.columns]))


def forest() -> RandomForestRegressor:
    return RandomForestRegressor(n_estimators=100, random_state=0, n_jobs=1)


def boosting() -> GradientBoostingRegressor:
    return GradientBoostingRegressor(random_state=0)


def trees(columns: list[str]) -> dict[str, Callable[[], Any]]:
    return {
        "random forest": lambda: Learner(forest, columns),
        "random forest, log": lambda: Learner(forest, columns, log=True),
        "gradient boosting": lambda: Learner(boosting, columns),
        "gradient boosting, log": lambda: Learner(boosting, columns, log=True),
        "linear": lambda: Learner(LinearRegression, columns),
    }


def inference_methods(columns: list[str]) -> dict[str, Callable[[], Any]]:
    return {
        "EnergyLens": lambda: Ours(EnergyLens(), columns),
        "EnergyLens, as published": lambda: Ours(EnergyLens(method="published"), columns),
        **trees(columns),
        "latency x power": lambda: LatencyTimesPower(columns),
    }


def formula_methods(columns: list[str]) -> dict[str, Callable[[], Any]]:
    """EnergyLens beside formulas that are found: they know no factor of a model, so EnergyLens without them too."""
    return {
        "EnergyLens": lambda: Ours(EnergyLens(), columns),
        "EnergyLens, no models' factors": lambda: Ours(EnergyLens(model_effects=False), columns),
        "found formula": lambda: Ours(FormulaSearch(consider_published=False), columns),
        "gradient boosting, log": lambda: Learner(boosting, columns, log=True),
    }
