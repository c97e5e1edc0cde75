"""Choosing among configurations by predicted energy, and how good the choices are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from energy_lightning.frontier import pareto_front
from energy_lightning.predict.columns import (
    Floats,
    PredictionError,
    checked_positive,
    names_of,
    numbers,
    positive,
    rows,
)


class Chooser:
    """`select` and `pareto` for anything that predicts joules from a table."""

    def predict(self, table: Any) -> Floats:
        """(n,) joules."""
        raise NotImplementedError

    def select(self, table: Any, *, latency_column: str | None = None, max_latency: float | None = None) -> Any:
        """The row (a pandas Series) of least predicted energy, with the prediction as `predicted_energy_j`.

        Args:
            table: the configurations to choose from.
            latency_column, max_latency: only rows whose `latency_column` is at most `max_latency` (its own unit).

        Raises:
            PredictionError: only one of the two given, a missing or unusable column, or no row within the limit.
        """
        if (latency_column is None) != (max_latency is None):
            raise PredictionError("give latency_column and max_latency together, or neither")
        energy_j = self.predict(table)
        if latency_column is not None and max_latency is not None:
            if isinstance(max_latency, bool) or not isinstance(max_latency, (int, float, np.number)):
                raise PredictionError(f"max_latency must be a number in {latency_column}'s unit, got {max_latency!r}")
            latency = _latency(table, latency_column)
            if not (latency <= max_latency).any():
                raise PredictionError(
                    f"no configuration has {latency_column} <= {max_latency:g}; the lowest is {latency.min():g}"
                )
            energy_j = np.where(latency <= max_latency, energy_j, np.inf)
        best = int(np.argmin(energy_j))
        return rows(table, np.array([best])).assign(predicted_energy_j=energy_j[best]).iloc[0]

    def pareto(self, table: Any, *, latency_column: str | None = None) -> Any:
        """Rows (a DataFrame) that no other row beats in both, by rising latency, with `predicted_energy_j`.

        Without `latency_column` the second objective is the number of GPUs (tensor_parallel * pipeline_parallel).
        """
        if latency_column is None:
            known: list[str] = [n for n in ("tensor_parallel", "pipeline_parallel", "num_gpus") if n in names_of(table)]
            if not known:
                raise PredictionError("pareto needs latency_column=..., or a column with the number of GPUs")
            parts = [name for name in known if name != "num_gpus"] or ["num_gpus"]
            second = np.prod([positive(table, name) for name in parts], axis=0)
        else:
            second = _latency(table, latency_column)
        energy_j = self.predict(table)
        front = pareto_front(second, energy_j)
        return rows(table, front).assign(predicted_energy_j=energy_j[front])


def _latency(table: Any, name: str) -> Floats:
    if name not in names_of(table):
        raise PredictionError(f"no column {name}; the table has {', '.join(names_of(table))}")
    return positive(table, name)


@dataclass(frozen=True, slots=True)
class Scores:
    """How well predictions serve one scenario (same model, workload and sizes). All but `top1` in percent."""

    mape_pct: float
    pairwise_pct: float
    top1: bool
    regret_pct: float


def _both(energy_j: ArrayLike, predicted_j: ArrayLike) -> tuple[Floats, Floats]:
    measured, predicted = checked_positive(energy_j, "energy_j"), numbers(predicted_j, "predicted_j")
    if predicted.shape != measured.shape or not np.isfinite(predicted).all():  # NaN would be chosen as the least
        raise PredictionError(
            f"need one finite prediction for each of {len(measured)} energies, got shape {predicted.shape} with "
            f"{int((~np.isfinite(predicted)).sum())} that are not finite"
        )
    return measured, predicted


def mape_pct(energy_j: ArrayLike, predicted_j: ArrayLike) -> float:
    """Mean absolute percentage error. PredictionError as of `scores`."""
    measured, predicted = _both(energy_j, predicted_j)
    return float(np.abs(predicted / measured - 1.0).mean() * 100.0)


def pairwise_pct(energy_j: ArrayLike, predicted_j: ArrayLike) -> float:
    """Share of pairs of different measured energy that are ordered right; equal predictions count half.

    Raises PredictionError when no two measured energies differ, or as of `scores`.
    """
    measured, predicted = _both(energy_j, predicted_j)
    i, j = np.triu_indices(len(measured), 1)
    differs = measured[i] != measured[j]
    if not differs.any():
        raise PredictionError(f"ranking needs two different energies, got {len(measured)} equal ones")
    right = np.sign(measured[i] - measured[j]) * np.sign(predicted[i] - predicted[j])
    return float((right[differs] + 1.0).mean() * 50.0)


def scores(energy_j: ArrayLike, predicted_j: ArrayLike) -> Scores:
    """Of one scenario; regret = extra measured energy of the configuration predicted least, against the least.

    Raises PredictionError unless there are as many predictions as energies, finite, the energies > 0.
    """
    measured, predicted = _both(energy_j, predicted_j)
    chosen = int(np.argmin(predicted))
    return Scores(
        mape_pct=mape_pct(measured, predicted),
        pairwise_pct=pairwise_pct(measured, predicted),
        top1=bool(measured[chosen] == measured.min()),
        regret_pct=float(measured[chosen] / measured.min() - 1.0) * 100.0,
    )
