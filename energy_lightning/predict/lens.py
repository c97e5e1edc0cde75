"""EnergyLens: energy of language-model inference in closed form, fitted to a few dozen measured configurations."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from energy_lightning.predict import report
from energy_lightning.predict.choosing import Chooser
from energy_lightning.predict.columns import (
    Columns,
    FallbackWarning,
    FittedRange,
    Floats,
    PredictionError,
    checked_energy,
    checked_level,
    checked_whole,
    equally_long,
    flag_units,
    index_of,
    names_of,
    positive,
    require,
)
from energy_lightning.predict.fitting import (
    Effects,
    Problem,
    fit_with_effects,
    prior_starts,
    published_fit,
    robust_fit,
)
from energy_lightning.predict.form import MODEL_COLUMNS, Form, LogColumns, log_columns, log_energy
from energy_lightning.predict.forms import FORMS
from energy_lightning.predict.resampling import draw_thetas, inflated_residuals

REQUIRED = ("batch_size",)
OPTIONAL = ("input_tokens", "output_tokens", "tensor_parallel", "pipeline_parallel", *MODEL_COLUMNS)
_FEWEST_ROWS = 4
_FEWEST_DRAWS = 10  # fewer have no tails
# A request takes 0.01 J (a small model, many requests at once) to 100 MJ; its joules read as kWh lie far below.
PLAUSIBLE_J = (1e-2, 1e8)
_FORMS = ("additive", "logarithmic")
_METHODS = ("robust", "published")


class EnergyLens(Chooser, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Energy of a request (or a run) from batch size, token counts, parallelism and, for pooled models, their sizes.

    Columns: batch_size; optional input_tokens, output_tokens, tensor_parallel, pipeline_parallel (missing: constant, in
    a prediction as in the fit, where the column must not have varied),
    activated_params_b and total_params_b (both or neither, billions). The formulas are in `forms`, the fit in
    `fitting`. Energies are joules over all GPUs, of whatever the rows stand for: a request, a run, a token.

    Args:
        form: "additive" (language models) or "logarithmic" (image and video).
        method: "robust" (loss on log ratios, weak priors, decode that stops to fall with the batch) or "published"
            (percentage error, no priors, the published terms alone).
        model_effects: with model sizes, also one factor per pair of sizes, shrunk towards 1 (random effect).
        crowding: with model sizes, also a term that grows with the batch (see `forms`). One model's few rows tell it
            badly, and it then spoils what is said of larger batches.
        num_starts: starts of the optimiser.
        seed: of the starts and of the resampling; equal seeds give equal results.

    Attributes after fit:
        parameters_: name -> value, in joules and the columns' own units.
        notes_: what the table could not tell, in words.
        fallback_: why the geometric mean is predicted instead, or None.
        model_effects_: (activated_params_b, total_params_b) -> factor; empty without model sizes.

    Not modelled: weight precision, prompt caching, energy that rises again where a batch no longer fits in memory.
    Source: arXiv 2605.10556.
    """

    def __init__(
        self,
        *,
        form: Literal["additive", "logarithmic"] = "additive",
        method: Literal["robust", "published"] = "robust",
        model_effects: bool = True,
        crowding: bool = True,
        num_starts: int = 6,
        seed: int = 0,
    ) -> None:
        self.form = form
        self.method = method
        self.model_effects = model_effects
        self.crowding = crowding
        self.num_starts = num_starts
        self.seed = seed

    def fit(self, table: Any, energy_j: ArrayLike) -> EnergyLens:
        """Fit to measured energies (n,) in joules.

        Raises:
            PredictionError: an unknown setting, a missing column, or a value that is NaN, infinite, zero or negative.

        Warns:
            FallbackWarning: too few rows or no column that varies; the geometric mean is predicted.
            UnitWarning: energies of a suspicious magnitude.
        """
        self._check_settings()
        columns = self._read(table)
        energy = checked_energy(energy_j, len(columns["batch_size"]))
        self.n_features_in_ = len(names_of(table))
        self.feature_names_in_ = np.array(names_of(table), dtype=object)
        self.range_ = FittedRange.of(columns)
        units = flag_units(energy, np.ones_like(energy), *PLAUSIBLE_J, "a row")
        varies = {name: bool(np.ptp(np.log(values)) > 1e-9) for name, values in columns.items()}
        self.notes_ = [*([units] if units else []), *report.notes(varies)]
        self.level_ = float(np.log(energy).mean())
        self.fallback_ = _reason_to_fall_back(len(energy), varies)
        pooled = all(name in columns for name in MODEL_COLUMNS)
        form: str = self.form
        if self.form == "additive" and self.method == "robust":
            form = "crowded" if pooled and self.crowding else "saturating"
        self.form_: Form = FORMS[form](float(np.log(columns["batch_size"]).mean()), pooled)
        self.effects_ = Effects.none()
        self._draws: dict[int, list[Floats]] = {}
        if self.fallback_:
            warnings.warn(f"EnergyLens predicts the mean: {self.fallback_}", FallbackWarning, stacklevel=2)
            self.notes_.append(self.fallback_)
            self.parameters_ = {"mean_j": float(np.exp(self.level_))}
            return self
        self._fit_form(columns, energy, varies)
        return self

    def _fit_form(self, columns: Columns, energy: Floats, varies: dict[str, bool]) -> None:
        logs = log_columns(columns)
        self.shifts_ = dict(logs.shifts)
        self.problem_ = Problem(self.form_, logs, np.log(energy) - self.level_, self.form_.inert(varies))
        rng = np.random.default_rng(self.seed)
        if self.method == "published":
            self.theta_ = published_fit(self.problem_, self.num_starts, rng)
        else:
            self.theta_ = robust_fit(self.problem_, prior_starts(self.problem_, self.num_starts, rng))
        groups = _groups(columns)
        if self.model_effects and len(set(groups)) > 1 and self.method == "robust":
            self.theta_, self.effects_ = fit_with_effects(self.problem_, self.theta_, groups)
        residual = self.problem_.target - self._log_relative(columns, logs)
        self.residuals_ = inflated_residuals(residual, len(self.problem_.free))
        self.parameters_ = report.natural_parameters(self.form_, self.theta_, self.level_, self.shifts_)

    @property
    def model_effects_(self) -> dict[Hashable, float]:
        """Factor of each pair (activated_params_b, total_params_b)."""
        check_is_fitted(self, "parameters_")
        return {group: float(np.exp(value)) for group, value in self.effects_.of.items()}

    def predict(self, table: Any) -> Floats:
        """(n,) joules. Warns (OutOfRangeWarning) where a column lies outside what was fitted."""
        columns = self._checked(table)
        if self.fallback_:
            return np.full(len(columns["batch_size"]), np.exp(self.level_))
        return np.asarray(np.exp(self.level_ + self._log_relative(columns, log_columns(columns, self.shifts_))))

    def predict_interval(self, table: Any, *, level: float = 0.9, num_draws: int = 100) -> tuple[Floats, Floats]:
        """Two (n,): the range of joules that holds a new measurement with probability `level`, by bootstrap.

        Each draw weights the rows anew (Bayesian bootstrap, Rubin 1981), moves the prior's mean by its deviation, fits
        again from the estimate, and adds a residual. Raises PredictionError after a fall-back to the mean.
        """
        level = checked_level(level)
        columns = self._checked(table)
        thetas = self._bootstrap(num_draws)
        logs = log_columns(columns, self.shifts_)
        effects = self.effects_.on(_groups(columns))
        drawn = np.stack([log_energy(self.form_, theta, logs) for theta in thetas]) + effects + self.level_
        noise = np.random.default_rng(self.seed).choice(self.residuals_, size=drawn.shape)
        low, high = np.quantile(drawn + noise, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
        return np.exp(low), np.exp(high)

    def parameter_intervals(self, *, level: float = 0.9, num_draws: int = 100) -> dict[str, tuple[float, float]]:
        """Name -> range of each parameter over the bootstrap's draws."""
        check_is_fitted(self, "parameters_")
        level = checked_level(level)
        natural = [
            report.natural_parameters(self.form_, theta, self.level_, self.shifts_)
            for theta in self._bootstrap(num_draws)
        ]
        tails = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
        intervals = {}
        for name in self.parameters_:
            low, high = np.quantile([values[name] for values in natural], tails)
            intervals[name] = (float(low), float(high))
        return intervals

    def _bootstrap(self, num_draws: int) -> list[Floats]:
        if self.fallback_:
            raise PredictionError(f"no intervals: the mean is predicted, because {self.fallback_}")
        checked_whole("num_draws", num_draws, least=_FEWEST_DRAWS)
        if num_draws not in self._draws:
            groups = _groups({name: values for name, values in self._training_columns().items()})
            adjusted = Problem(
                self.form_, self.problem_.logs, self.problem_.target - self.effects_.on(groups), self.problem_.fixed
            )
            self._draws[num_draws] = draw_thetas(adjusted, self.theta_, num_draws, np.random.default_rng(self.seed))
        return self._draws[num_draws]

    def explain(self, table: Any) -> Any:
        """A DataFrame with the table's index: joules of each row by term, adding up to the prediction.

        prefill_j, decode_j, overhead_j, with several models crowding_j; total_j for the logarithmic form.
        """
        import pandas

        columns = self._checked(table)
        if self.fallback_:
            overhead = {"overhead_j": np.full(len(columns["batch_size"]), np.exp(self.level_))}
            return pandas.DataFrame(overhead, index=index_of(table))
        terms = np.exp(self.form_.log_terms(self.theta_, log_columns(columns, self.shifts_)) + self.level_)
        terms = terms * np.exp(self.effects_.on(_groups(columns)))
        return pandas.DataFrame(report.named_terms(self.form_, terms), index=index_of(table))

    def formula(self, *, digits: int = 3) -> str:
        """The fitted formula with its constants, in joules; parameters the table could not tell are left out."""
        check_is_fitted(self, "parameters_")
        if self.fallback_:
            return f"E = {np.exp(self.level_):.{digits}g} J"
        return report.formula(self.parameters_, set(self.problem_.fixed), digits, bool(self.effects_.of))

    def _log_relative(self, columns: Columns, logs: LogColumns) -> Floats:
        return log_energy(self.form_, self.theta_, logs) + self.effects_.on(_groups(columns))

    def _training_columns(self) -> Columns:
        shifts = self.problem_.logs.shifts
        return {name: np.exp(log + shifts.get(name, 0.0)) for name, log in self.problem_.logs.values.items()}

    def _check_settings(self) -> None:
        if self.form not in _FORMS:
            raise PredictionError(f"unknown form {self.form!r}; choose one of {', '.join(_FORMS)}")
        if self.method not in _METHODS:
            raise PredictionError(f"unknown method {self.method!r}; choose one of {', '.join(_METHODS)}")
        for name in ("model_effects", "crowding"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise PredictionError(f"{name} must be True or False, got {getattr(self, name)!r}")
        checked_whole("num_starts", self.num_starts, least=1)
        checked_whole("seed", self.seed, least=0)

    def _read(self, table: Any) -> Columns:
        require(table, REQUIRED, (*REQUIRED, *OPTIONAL))
        present = names_of(table)
        given = [name for name in MODEL_COLUMNS if name in present]
        if len(given) == 1:
            raise PredictionError(f"column {given[0]} is there, the other of {' and '.join(MODEL_COLUMNS)} is not")
        columns = {name: positive(table, name) for name in (*REQUIRED, *OPTIONAL) if name in present}
        equally_long(columns)
        ones = np.ones(len(columns["batch_size"]))
        return {name: ones for name in OPTIONAL if name not in MODEL_COLUMNS} | columns

    def _checked(self, table: Any) -> Columns:
        check_is_fitted(self, "parameters_")
        columns, present = self._read(table), names_of(table)
        for name in [name for name in self.range_.bounds if name not in present and name in self.feature_names_in_]:
            least, most = self.range_.bounds[name]
            if name in MODEL_COLUMNS or least != most:
                raise PredictionError(
                    f"the fit had column {name}, {least:g} to {most:g}; this table has not: add it to the table"
                )
            columns[name] = np.full(len(columns["batch_size"]), least)
        self.range_.warn_outside(columns, type(self).__name__, stacklevel=4)
        return columns


def _groups(columns: Columns) -> list[Hashable]:
    """One key a row: the pair of model sizes, or None without them."""
    if not all(name in columns for name in MODEL_COLUMNS):
        return [None] * len(columns["batch_size"])
    pairs = np.round(np.stack([columns[name] for name in MODEL_COLUMNS], axis=1), 6)
    return [tuple(pair) for pair in pairs.tolist()]


def _reason_to_fall_back(num_rows: int, varies: dict[str, bool]) -> str | None:
    if num_rows < _FEWEST_ROWS:
        return f"{num_rows} rows are too few, measure at least {_FEWEST_ROWS}"
    if not any(varies.values()):
        return "no column varies, measure other batch sizes or another parallelism too"
    return None
