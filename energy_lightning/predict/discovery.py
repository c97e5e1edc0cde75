"""FormulaSearch: a readable formula for energy found by symbolic regression, over the columns of EnergyLens.

1. Search: genetic programming (pyoperon) for E over logarithms of the columns with + and exp, in which a sum of
   products of powers is a short tree. Several seeds; every tree on the front of error and length that is such a sum is
   kept, and one product of all columns beside them.
2. Climb: from the best, one column or term more or less at a time, as long as n ln(error^2) + penalty x constants
   falls. The error is of ln E on folds apart from the fit; constants are fitted to relative errors (`power_sums`).
3. Judge: both steps are repeated without each fold and predict it. Only if that is no worse than EnergyLens on the same
   folds is the found formula used; what the search itself saw of its error flatters.

Which library: pyoperon 0.6 searches in C++ (60 000 formulas with fitted constants in a second or less on a core), has a
front over length, is seeded, and needs nothing but its wheel. gplearn (pure Python) has neither fitted constants nor a
front: on a table of the published law it stays 44% off where this is 2% off. PySR needs a Julia, which it downloads and
compiles at its first use, so it does not run offline (not tried). The climb does much of the work: from one product of
all columns alone it often ends at the same formula.
Published structure to compare with: EnergyLens, arXiv 2605.10556.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from energy_lightning.predict.choosing import Chooser
from energy_lightning.predict.columns import (
    Columns,
    FittedRange,
    Floats,
    PredictionError,
    PredictionWarning,
    checked_energy,
    names_of,
    positive,
    require,
)
from energy_lightning.predict.lens import OPTIONAL, REQUIRED, EnergyLens
from energy_lightning.predict.power_sums import PowerSum, Structure, Term, power_sum

FOUND, PUBLISHED = "found", "EnergyLens"
_FEWEST_ROWS = 12
_DIGITS = 12
_CLIMBS = 2  # from so many of the best
_CLIMB_FOLDS = 5
_WARM_EVALUATIONS = 8  # of a fold's fit, which starts from that of all rows
_MOST_ERROR = 2.0  # of ln E that counts, so that one wild fold does not decide


@dataclass(frozen=True, slots=True)
class Candidate:
    """One formula: with its constants, their number, and its error of ln E on folds apart from its fit."""

    formula: PowerSum
    num_constants: int
    cv_rmse: float


class FormulaSearch(Chooser, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Energy by a formula that the data chose; used like EnergyLens. Needs pyoperon: energy_lightning[discovery].

    Takes 10 to 40 s for 50 rows on a core, most of it for the judgement.

    Args:
        max_length: most symbols of a tree. num_evaluations: trees of one search. num_searches: with different seeds.
        penalty: what a constant costs, as in Akaike's criterion.
        num_folds: of the judgement. consider_published: False: no judgement, the found formula is used.
        seed: of searches and folds.

    Attributes after fit:
        found_: the found formula, as `power_sums.PowerSum`; `found_.text()` reads it.
        chosen_: "found" or "EnergyLens".
        cv_rmse_: error of ln E by name, the whole search's and EnergyLens's, on folds that neither saw.
        candidates_: the formulas that were looked at, by number of constants.
    """

    def __init__(
        self,
        *,
        max_length: int = 32,
        num_evaluations: int = 60_000,
        num_searches: int = 3,
        penalty: float = 2.0,
        num_folds: int = 5,
        consider_published: bool = True,
        seed: int = 0,
    ) -> None:
        self.max_length = max_length
        self.num_evaluations = num_evaluations
        self.num_searches = num_searches
        self.penalty = penalty
        self.num_folds = num_folds
        self.consider_published = consider_published
        self.seed = seed

    def fit(self, table: Any, energy_j: ArrayLike) -> FormulaSearch:
        """Search on measured energies (n,) in joules.

        Raises:
            ImportError: pyoperon is not there. PredictionError: fewer than 12 rows, no column that varies, or a value
                that is NaN, infinite, zero or negative.
        """
        logs = self._read(table)
        energy = checked_energy(energy_j, len(next(iter(logs.values()))))
        self.range_ = FittedRange.of({name: np.exp(log) for name, log in logs.items()})
        varying = {name: log for name, log in logs.items() if np.ptp(log) > 1e-9}
        if len(energy) < max(_FEWEST_ROWS, self.num_folds) or not varying:
            raise PredictionError(
                f"a search needs {_FEWEST_ROWS} rows and a column that varies, got {len(energy)} rows and "
                f"{len(varying)} such columns; EnergyLens does with less"
            )
        target = np.log(energy)
        best, self.candidates_ = self._discover(varying, target)
        self.found_ = best.formula
        self.lens_ = _quiet_lens(self.seed, self._columns(table), table, energy)
        self.chosen_, self.cv_rmse_ = FOUND, {FOUND: best.cv_rmse}
        self._residuals = self.found_.log_energy(varying, len(target)) - target
        if self.consider_published:
            self._judge(table, varying, energy)
        return self

    def _discover(self, logs: Columns, target: Floats) -> tuple[Candidate, list[Candidate]]:
        """The best formula, and all that were looked at."""
        scored = _Scored(logs, target, self.penalty, self.seed)
        product = PowerSum((Term(float(target.mean()), dict.fromkeys(logs, 0.0)),))
        starts = sorted([*self._search(logs, target), product], key=scored.cost)
        climbed = [scored.climb(start) for start in starts[:_CLIMBS]]
        best = min(climbed, key=scored.cost)
        known = sorted(scored.known.values(), key=lambda candidate: (candidate.num_constants, candidate.cv_rmse))
        return scored.known[best.structure], known

    def _search(self, logs: Columns, target: Floats) -> list[PowerSum]:
        """Different structures on the fronts of all searches."""
        try:
            from pyoperon.sklearn import SymbolicRegressor
        except ImportError as error:
            raise ImportError("FormulaSearch needs pyoperon: pip install 'energy_lightning[discovery]'") from error
        names, level, found = list(logs), float(target.mean()), dict[Structure, PowerSum]()
        for number in range(self.num_searches):
            search = SymbolicRegressor(
                allowed_symbols="add,exp,constant,variable",
                objectives=["mse", "length"],
                max_length=self.max_length,
                max_evaluations=self.num_evaluations,
                generations=self.num_evaluations,  # the evaluations are the limit
                population_size=500,
                optimizer_iterations=5,
                n_threads=1,
                random_state=self.num_searches * self.seed + number + 1,  # 0 would mean: from the clock
            )
            search.fit(np.stack([logs[name] for name in names], axis=1), np.exp(target - level))
            for model in search.pareto_front_:
                formula = power_sum(search.get_model_string(model["tree"], _DIGITS, names))
                if formula is not None:
                    found.setdefault(formula.structure, formula.scaled(level))
        return list(found.values())

    def _judge(self, table: Any, logs: Columns, energy: Floats) -> None:
        """Choose between the search, repeated without each fold, and EnergyLens."""
        target, columns = np.log(energy), self._columns(table)
        folds = np.random.default_rng(self.seed + 1).permutation(len(target)) % self.num_folds
        errors = {name: np.empty(len(target)) for name in (FOUND, PUBLISHED)}
        for fold in range(self.num_folds):
            learn, rest = folds != fold, folds == fold
            best, _ = self._discover(_rows(logs, learn), target[learn])
            errors[FOUND][rest] = best.formula.log_energy(_rows(logs, rest), int(rest.sum())) - target[rest]
            values = {name: np.asarray(table[name], dtype=np.float64) for name in columns}
            lens = _quiet_lens(self.seed, columns, _rows(values, learn), energy[learn])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PredictionWarning)
                errors[PUBLISHED][rest] = np.log(lens.predict(_rows(values, rest))) - target[rest]
        self.cv_rmse_ = {name: _rmse(error) for name, error in errors.items()}
        self.chosen_ = FOUND if self.cv_rmse_[FOUND] <= self.cv_rmse_[PUBLISHED] else PUBLISHED
        self._residuals = errors[FOUND]

    def predict(self, table: Any) -> Floats:
        """(n,) joules. Warns (OutOfRangeWarning) where a column lies outside what was fitted."""
        logs = self._checked(table)
        if self.chosen_ == PUBLISHED:
            return self.lens_.predict(table)
        self.range_.warn_outside({name: np.exp(log) for name, log in logs.items()}, type(self).__name__)
        return np.exp(self.found_.log_energy(logs, len(next(iter(logs.values())))))

    def predict_interval(self, table: Any, *, level: float = 0.9) -> tuple[Floats, Floats]:
        """Two (n,): the range of joules that holds a new measurement with probability `level`, about.

        From the errors on rows that the search did not see (without the judgement: on the fitted rows, too narrow).
        """
        if self.chosen_ == PUBLISHED:
            return self.lens_.predict_interval(table, level=level)
        low, high = np.quantile(-self._residuals, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
        predicted = self.predict(table)
        return predicted * np.exp(low), predicted * np.exp(high)

    def explain(self, table: Any) -> Any:
        """A DataFrame: joules of each row by term, named after the term's columns, adding up to the prediction."""
        import pandas

        if self.chosen_ == PUBLISHED:
            return self.lens_.explain(table)
        logs = self._checked(table)
        terms = np.exp(self.found_.log_terms(logs, len(next(iter(logs.values())))))
        parts = pandas.DataFrame()
        for number, (term, joules) in enumerate(zip(self.found_.terms, terms, strict=True), 1):
            parts[f"term{number} ({', '.join(sorted(term.exponents)) or 'constant'})"] = joules
        return parts

    def formula(self, *, digits: int = 3) -> str:
        """The formula in use with its constants, in joules."""
        check_is_fitted(self, "chosen_")
        return (
            self.lens_.formula(digits=digits) if self.chosen_ == PUBLISHED else f"E = {self.found_.text(digits=digits)}"
        )

    def _checked(self, table: Any) -> Columns:
        check_is_fitted(self, "chosen_")
        logs = self._read(table)
        if missing := [name for name in self.range_.bounds if name not in logs]:
            raise PredictionError(f"the fit had column {missing[0]}; this table has not")
        return logs

    def _columns(self, table: Any) -> list[str]:
        require(table, REQUIRED, (*REQUIRED, *OPTIONAL))
        return [name for name in (*REQUIRED, *OPTIONAL) if name in names_of(table)]

    def _read(self, table: Any) -> Columns:
        return {name: np.log(positive(table, name)) for name in self._columns(table)}


@dataclass
class _Scored:
    """Formulas that were looked at: fitted to all rows, judged on folds; each structure once."""

    logs: Columns
    target: Floats
    penalty: float
    seed: int
    known: dict[Structure, Candidate] = field(default_factory=dict)

    def candidate(self, formula: PowerSum) -> Candidate:
        """The formula's structure with its constants and error."""
        if formula.structure not in self.known:
            fitted = formula.fitted(self.logs, self.target)
            self.known[formula.structure] = Candidate(fitted, fitted.num_constants, self._cv_rmse(fitted))
        return self.known[formula.structure]

    def cost(self, formula: PowerSum) -> float:
        """What a climb lowers."""
        found = self.candidate(formula)
        return len(self.target) * 2.0 * float(np.log(found.cv_rmse)) + self.penalty * found.num_constants

    def climb(self, start: PowerSum) -> PowerSum:
        """From `start` to a formula that no neighbour beats."""
        names, at = list(self.logs), self.candidate(start).formula
        while True:
            best = min(at.neighbours(names, self.logs, self.target), key=self.cost)
            if self.cost(best) >= self.cost(at) - 1e-9:
                return at
            at = self.candidate(best).formula

    def _cv_rmse(self, fitted: PowerSum) -> float:
        folds = np.random.default_rng(self.seed).permutation(len(self.target)) % _CLIMB_FOLDS
        errors = np.empty(len(self.target))
        for fold in range(_CLIMB_FOLDS):
            learn, rest = folds != fold, folds == fold
            logs = _rows(self.logs, learn)
            refitted = fitted.fitted(logs, self.target[learn], most_evaluations=_WARM_EVALUATIONS)
            errors[rest] = refitted.log_energy(_rows(self.logs, rest), int(rest.sum())) - self.target[rest]
        return _rmse(errors)


def _rows(columns: Columns, chosen: np.ndarray) -> Columns:
    return {name: values[chosen] for name, values in columns.items()}


def _rmse(errors: Floats) -> float:
    return max(float(np.sqrt((np.clip(errors, -_MOST_ERROR, _MOST_ERROR) ** 2).mean())), 1e-6)


def _quiet_lens(seed: int, columns: list[str], table: Any, energy: Floats) -> EnergyLens:
    """EnergyLens on `columns`; what it warns of is not this estimator's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PredictionWarning)
        return EnergyLens(seed=seed, num_starts=3).fit({name: table[name] for name in columns}, energy)
