"""FineTuningEnergy: energy of a fine-tuning run from the model's shape, the batch and the parallel strategy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from energy_lightning.predict.choosing import Chooser
from energy_lightning.predict.columns import (
    FallbackWarning,
    Floats,
    OutOfRangeWarning,
    PredictionError,
    PredictionWarning,
    checked_energy,
    checked_level,
    flag_units,
    index_of,
    names_of,
)
from energy_lightning.predict.correction import CORRECTIONS, CorrectionKind
from energy_lightning.predict.law import KINDS, FittedLaw, Kind, fit_law, fit_roofline_laws, fit_shared_law
from energy_lightning.predict.proxies import Runs, read_runs
from energy_lightning.predict.speedup import SpeedupLaw

_FEWEST_ROWS = 8
# At 12 runs a GPU model's own law is as good as a shared one (emulated tables, 10% noise), from 20 on much better.
_FEWEST_FOR_OWN_LAW = 12
_FEW = {
    "roofline": "which lean on the others' law",
    **dict.fromkeys(("published", "mechanistic"), "which share a law with the others but for a factor"),
}
_PLAUSIBLE_J_PER_FLOP = (1e-14, 1e-6)  # the most thrifty GPUs spend 1e-12 at full load, tiny models 1e-8
_ANY = "any"
# Emulated tables of one GPU model with 10% noise leave up to 18%, of two GPU models without their names 11 to 50%.
_SUSPICIOUS_SPREAD = 0.2
_LEAST_SHARE = 5e-4  # of the energy: what a price must explain to be printed
GPU_COLUMNS = ("gpu_model", "gpu", "gpu_name", "gpu_type", "device_name", "device", "accelerator", "hardware")


class FineTuningEnergy(Chooser, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Joules of a fine-tuning run over all GPUs. The laws are in `law`, the proxies in `proxies`.

    Columns: num_layers, hidden_size, ffn_size, sequence_length, batch_size (sequences a step over all GPUs), tokens
    (of the whole run), strategy ("single", "tp" or "fsdp"), num_gpus; optional speedup (over one GPU; measured, or of
    a SpeedupLaw) and gpu_model (or gpu, gpu_name, gpu_type, device, ...), which gives each GPU model a law of its own
    that leans on the others' the more, the fewer its runs.

    Args:
        law: "roofline", "published" or "mechanistic".
        correction: of the roofline law: "auto", "none", "linear" or "quadratic".
        speedup_laws: strategy -> SpeedupLaw, used where the table has no column speedup.

    Attributes after fit:
        laws_: GPU model ("any" without the column) -> FittedLaw, with prices, coefficients, HC3 errors and R2.
        fallback_: why the mean energy per FLOP is predicted instead, or None.

    Not modelled: activation checkpointing, offloading, mixed strategies, clocks other than those measured.
    Source: arXiv 2606.23546.
    """

    def __init__(
        self,
        *,
        law: Kind = "roofline",
        correction: CorrectionKind = "auto",
        speedup_laws: Mapping[str, SpeedupLaw] | None = None,
    ) -> None:
        self.law = law
        self.correction = correction
        self.speedup_laws = speedup_laws

    def fit(self, table: Any, energy_j: ArrayLike) -> FineTuningEnergy:
        """Fit to measured energies (n,) in joules, of all GPUs together.

        Raises:
            PredictionError: an unknown setting or strategy, a missing column, or an unusable value.

        Warns:
            FallbackWarning: fewer than 8 runs, runs that are all alike, or a GPU model with fewer than 12 among others.
            UnitWarning: a suspicious magnitude.
            PredictionWarning: no column of GPU models, and runs that differ by more than 20% from the law.
        """
        self._check_settings()
        runs = self._read(table)
        energy = checked_energy(energy_j, len(runs))
        self.n_features_in_ = len(names_of(table))
        self.feature_names_in_ = np.array(names_of(table), dtype=object)
        self.strategies_ = runs.strategies
        self.has_efficiency_ = runs.efficiency is not None
        units = flag_units(energy, runs.flops, *_PLAUSIBLE_J_PER_FLOP, "a FLOP")
        self.notes_ = [units] if units else []
        self.j_per_flop_ = float(np.exp(np.log(energy / runs.flops).mean()))
        self.fallback_ = _reason_to_fall_back(runs)
        self.laws_: dict[str, FittedLaw] = {}
        if self.fallback_:
            warnings.warn(
                f"FineTuningEnergy predicts {self.j_per_flop_:.3g} J per FLOP: {self.fallback_}",
                FallbackWarning,
                stacklevel=2,
            )
            self.notes_.append(self.fallback_)
            return self
        groups = _by_gpu(table, len(runs))
        few = [gpu_model for gpu_model, rows in groups.items() if len(rows) < _FEWEST_FOR_OWN_LAW < len(runs)]
        few = few if len(groups) > 1 else []
        self.laws_ = self._fitted(runs, energy, groups, few)
        if few:
            counts = ", ".join(f"{gpu_model} ({len(groups[gpu_model])})" for gpu_model in few)
            self._tell(
                f"GPU models with fewer than {_FEWEST_FOR_OWN_LAW} runs, {_FEW[self.law]}: {counts}", FallbackWarning
            )
        spread = self.laws_[_ANY].spread if self.law == "roofline" and _ANY in self.laws_ else 0.0
        if spread > _SUSPICIOUS_SPREAD:
            self._tell(
                f"runs differ by {spread:.0%} from what their columns tell; if several GPU models, precisions or "
                "versions are mixed in the table, name them in a column gpu_model",
                PredictionWarning,
            )
        return self

    def _fitted(
        self, runs: Runs, energy_j: Floats, groups: dict[str, np.ndarray], few: list[str]
    ) -> dict[str, FittedLaw]:
        """The law of each GPU model; those of `few` runs get that of all runs, and a factor."""
        if self.law == "roofline":
            return fit_roofline_laws(runs, energy_j, groups, self.correction)
        shared = fit_shared_law(runs, energy_j, groups, self.law) if few else {}
        return {
            gpu_model: shared[gpu_model] if gpu_model in few else fit_law(runs.subset(rows), energy_j[rows], self.law)
            for gpu_model, rows in groups.items()
        }

    def _tell(self, text: str, category: type[PredictionWarning]) -> None:
        warnings.warn(f"FineTuningEnergy: {text}", category, stacklevel=3)
        self.notes_.append(text)

    def predict(self, table: Any) -> Floats:
        """(n,) joules. Warns (OutOfRangeWarning) where sizes, or a strategy, lie outside what was fitted."""
        runs = self._checked(table)
        if self.fallback_:
            return self.j_per_flop_ * runs.flops
        if unseen := sorted(runs.strategies - self.strategies_):
            warnings.warn(
                f"FineTuningEnergy extrapolates: no fitted run had strategy {' or '.join(unseen)}",
                OutOfRangeWarning,
                stacklevel=2,
            )
        result = np.empty(len(runs))
        for law, rows in self._laws_of(table, len(runs)):
            law.range.warn_outside(runs.subset(rows).sizes, type(self).__name__)
            result[rows] = np.exp(law.log_energy(runs.subset(rows)))
        return result

    def predict_interval(self, table: Any, *, level: float = 0.9) -> tuple[Floats, Floats]:
        """Two (n,): the range of joules that holds a new run with probability `level`.

        From leave-one-out residuals and leverages, Student's t. Raises PredictionError after a fall-back.
        """
        level, runs = checked_level(level), self._checked(table)
        if self.fallback_:
            raise PredictionError(f"no intervals: {self.fallback_}")
        middle, half = np.empty(len(runs)), np.empty(len(runs))
        for law, rows in self._laws_of(table, len(runs)):
            middle[rows] = law.log_energy(runs.subset(rows))
            half[rows] = law.half_width(runs.subset(rows), level)
        return np.exp(middle - half), np.exp(middle + half)

    def explain(self, table: Any) -> Any:
        """A DataFrame with the table's index: joules of each run by kind of work, adding up to the prediction."""
        import pandas

        runs = self._checked(table)
        if self.fallback_ or self.law == "published":
            raise PredictionError(f"no terms to show: {self.fallback_ or 'the published law is one product of powers'}")
        parts = pandas.DataFrame(index=range(len(runs)))
        for law, rows in self._laws_of(table, len(runs)):
            chosen = runs.subset(rows)
            predicted = np.exp(law.log_energy(chosen))
            for name, share in law.shares(chosen).items():
                parts.loc[rows, name.removeprefix("J ")] = share * predicted
        return parts.fillna(0.0) if index_of(table) is None else parts.fillna(0.0).set_index(index_of(table))

    def summary(self) -> str:
        """Text: prices in joules, coefficients with HC3 errors, R2, adjusted R2, RMSE, with and without efficiency."""
        check_is_fitted(self, "laws_")
        if self.fallback_:
            return f"E = {self.j_per_flop_:.3g} J per FLOP ({self.fallback_})"
        return "\n\n".join(_summary(gpu_model, law) for gpu_model, law in self.laws_.items())

    def _check_settings(self) -> None:
        if self.law not in KINDS:
            raise PredictionError(f"unknown law {self.law!r}; choose one of {', '.join(KINDS)}")
        if self.correction not in CORRECTIONS:
            raise PredictionError(f"unknown correction {self.correction!r}; choose one of {', '.join(CORRECTIONS)}")
        given = {} if self.speedup_laws is None else self.speedup_laws
        if not isinstance(given, Mapping) or any(
            not isinstance(law, SpeedupLaw) or law.strategy != strategy for strategy, law in given.items()
        ):
            raise PredictionError(f"speedup_laws must give each strategy its own SpeedupLaw, got {given!r}")

    def _read(self, table: Any) -> Runs:
        runs = read_runs(table)
        if runs.efficiency is not None or not self.speedup_laws:
            return runs
        efficiency = np.ones(len(runs))
        for strategy, member in (("tp", runs.tensor_parallel > 0.0), ("fsdp", runs.fully_sharded > 0.0)):
            if member.any():
                if strategy not in self.speedup_laws:
                    raise PredictionError(f"speedup_laws has none for {strategy!r}, which the table holds")
                efficiency[member] = self.speedup_laws[strategy].efficiency(runs["num_gpus"][member])
        return replace(runs, efficiency=efficiency)

    def _checked(self, table: Any) -> Runs:
        check_is_fitted(self, "laws_")
        runs = self._read(table)
        if self.has_efficiency_ and runs.efficiency is None:
            raise PredictionError(
                "the law was fitted with speed-ups: add a column speedup, measured or of a SpeedupLaw"
            )
        return runs if self.has_efficiency_ else replace(runs, efficiency=None)

    def _laws_of(self, table: Any, num_rows: int) -> list[tuple[FittedLaw, np.ndarray]]:
        if set(self.laws_) == {_ANY}:
            return [(self.laws_[_ANY], np.arange(num_rows))]
        if _gpu_column(table) is None:
            if len(self.laws_) > 1:
                raise PredictionError(
                    f"the law knows several GPU models, {', '.join(self.laws_)}: add a column gpu_model"
                )
            return [(law, np.arange(num_rows)) for law in self.laws_.values()]
        groups = _by_gpu(table, num_rows)
        if unknown := sorted(set(groups) - set(self.laws_)):
            raise PredictionError(f"no law for gpu_model {unknown[0]!r}; fitted: {', '.join(self.laws_)}")
        return [(self.laws_[gpu_model], rows) for gpu_model, rows in groups.items()]


def _gpu_column(table: Any) -> str | None:
    """The column that names the GPU model; of the names other than gpu_model only one that holds words."""
    spelled = {name.lower().replace(" ", "_"): name for name in reversed(names_of(table))}
    for known in GPU_COLUMNS:
        name = spelled.get(known)
        if name is not None and (known == GPU_COLUMNS[0] or any(isinstance(value, str) for value in table[name])):
            return name
    return None


def _by_gpu(table: Any, num_rows: int) -> dict[str, np.ndarray]:
    """Rows of each GPU model; all under "any" without such a column. PredictionError for a row without its model."""
    from pandas import isna

    column = _gpu_column(table)
    if column is None:
        return {_ANY: np.arange(num_rows)}
    given = list(table[column])
    if missing := [row for row, value in enumerate(given) if isna(value)]:
        raise PredictionError(
            f"column {column} is empty in row {missing[0]} ({len(missing)} such rows of {num_rows}): name the GPU "
            "model in every row, or drop the column"
        )
    models = np.array([str(value) for value in given])
    return {str(model): np.flatnonzero(models == model) for model in dict.fromkeys(models.tolist())}


def _reason_to_fall_back(runs: Runs) -> str | None:
    if len(runs) < _FEWEST_ROWS:
        return f"{len(runs)} runs are too few, measure at least {_FEWEST_ROWS}"
    if not any(np.ptp(np.log(values)) > 1e-9 for name, values in runs.sizes.items() if name != "num_gpus"):
        return "all runs have the same sizes, measure other models or batches too"
    return None


def _summary(gpu_model: str, law: FittedLaw) -> str:
    lines = [f"{law.kind} law, GPU model {gpu_model}, {law.regression.num_rows} runs, ln(joules)"]
    lines += [
        f"  {name:34}{law.prices[name]:10.3g}{share:8.1%} of the energy"
        for name, share in law.mean_shares.items()
        if share >= _LEAST_SHARE
    ]
    lines.append(law.regression.table())
    for label, fit in (("this law", law.regression), ("without efficiency", law.without_efficiency)):
        if fit is not None:
            lines.append(f"  {label:20} R2 {fit.r2:.4f}  adjusted R2 {fit.adjusted_r2:.4f}  RMSE {fit.rmse:.4f}")
    if law.correction is not None:
        shape = "with products" if law.correction.quadratic else "linear"
        lines.append(f"  correction, {shape}: leave-one-out RMSE {law.correction.ridge.loo_error:.4f}")
    return "\n".join([*lines, *(f"  {note}" for note in law.notes)])
