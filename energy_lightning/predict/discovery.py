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
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from energy_lightning.predict.choosing import Chooser
from energy_lightning.predict.climbing import Candidate, Scored, rmse, rows_of
from energy_lightning.predict.columns import (
    Columns,
    FittedRange,
    Floats,
    PredictionError,
    PredictionWarning,
    checked_energy,
    checked_level,
    checked_whole,
    flag_units,
    index_of,
    names_of,
    positive,
    require,
)
from energy_lightning.predict.found import Found
from energy_lightning.predict.genetic import searched
from energy_lightning.predict.lens import OPTIONAL, PLAUSIBLE_J, REQUIRED, EnergyLens
from energy_lightning.predict.power_sums import PowerSum, Term

FOUND, PUBLISHED = "found", "EnergyLens"
_FEWEST_ROWS = 12
_WHOLE = {  # settings that are whole numbers: least and most
    "max_length": (1, 1000),
    "num_evaluations": (1, 10**9),
    "num_searches": (1, 1000),
    "num_folds": (2, 1000),
    "seed": (0, 2**32 - 1),
}
_CLIMBS = 2  # from so many of the best


class FormulaSearch(Chooser, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Energy by a formula that the data chose; used like EnergyLens. Needs pyoperon: energy_lightning[discovery].

    Takes 4 to 8 s of a core for 50 rows, five sixths of it for the judgement.

    Args:
        max_length: most symbols of a tree. num_evaluations: trees of one search. num_searches: with different seeds.
        penalty: what a constant costs, as in Akaike's criterion.
        num_folds: of the judgement. consider_published: False: no judgement, the found formula is used.
        seed: of searches and folds.

    Attributes after fit:
        found_: the found formula, as `power_sums.PowerSum`; `found_.text()` reads it.
        chosen_: "found" or "EnergyLens".
        cv_rmse_: error of ln E by name, the whole search's and EnergyLens's, on folds that neither saw.
        errors_: by name, (n,) those errors; without the judgement the found formula's on the fitted rows.
        notes_: what to know before it is used. fallback_: None, as a search has none.
        candidates_: the formulas that were looked at, by number of constants.
    """

    def __init__(
        self,
        *,
        max_length: int = 32,
        num_evaluations: int = 45_000,
        num_searches: int = 2,
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
            ImportError: pyoperon is not there. PredictionError: fewer rows than 12 or num_folds, no column that
                varies, a value that is NaN, infinite, zero or negative; a setting out of range.

        Warns:
            UnitWarning: energies of a suspicious magnitude.
        """
        self._check_settings()
        logs = self._read(table)
        energy = checked_energy(energy_j, len(next(iter(logs.values()))))
        self._flag(table, energy)
        self.range_ = FittedRange.of({name: np.exp(log) for name, log in logs.items()})
        varying = {name: log for name, log in logs.items() if np.ptp(log) > 1e-9}
        fewest = max(_FEWEST_ROWS, self.num_folds)
        if len(energy) < fewest or not varying:
            raise PredictionError(
                f"a search needs {fewest} rows and a column that varies, got {len(energy)} rows, {len(varying)} such "
                "columns; EnergyLens does with less"
            )
        target = np.log(energy)
        best, self.candidates_ = self._discover(varying, target)
        self.found_ = best.formula
        self.lens_ = _quiet_lens(self.seed, self._columns(table), table, energy)
        self.chosen_, self.cv_rmse_ = FOUND, {FOUND: best.cv_rmse}
        self.errors_ = {FOUND: self.found_.log_energy(varying, len(target)) - target}
        if self.consider_published:
            self._judge(table, varying, energy)
        return self

    @property
    def fallback_(self) -> None:
        """As EnergyLens has it; a search refuses what it cannot be fitted to."""
        return None

    @property
    def notes_(self) -> list[str]:
        """Which formula is in use and why."""
        check_is_fitted(self, "chosen_")
        units = [self._units] if self._units else []
        if PUBLISHED not in self.cv_rmse_:
            return [*units, "the found formula was not compared with EnergyLens on rows apart from the fit"]
        found, published = (f"{self.cv_rmse_[name]:.3f}" for name in (FOUND, PUBLISHED))
        text = f"error of ln E on rows apart from the fit: {found} by search, {published} by EnergyLens, "
        if self.chosen_ == FOUND:
            return [*units, f"{text}so the found formula is used"]
        return [*units, f"{text}so EnergyLens's formula is used. Found: E = {' '.join(self.found_.text().split())}"]

    def apart_j(self, energy_j: ArrayLike) -> Floats | None:
        """(n,) joules of the fitted rows, each predicted without its fold; None without the judgement."""
        check_is_fitted(self, "chosen_")
        known = PUBLISHED in self.errors_
        return np.asarray(energy_j, dtype=np.float64) * np.exp(self.errors_[self.chosen_]) if known else None

    def found(self) -> dict[str, Any]:
        """What the search found, as numbers and texts that a file can hold: `use` takes it back."""
        check_is_fitted(self, "chosen_")
        return Found(self.found_, self.chosen_, self.cv_rmse_, self.errors_).to_dict()

    def use(self, found: Mapping[str, Any], table: Any, energy_j: ArrayLike) -> FormulaSearch:
        """Be fitted with what an earlier search `found` on the same rows, without searching again.

        Raises:
            PredictionError: `found` is not what `found()` gives, or has another number of rows.
        """
        logs = self._read(table)
        energy = checked_energy(energy_j, len(next(iter(logs.values()))))
        read = Found.from_dict(found, columns=set(logs), num_rows=len(energy))
        self.found_, self.chosen_, self.cv_rmse_, self.errors_ = read.formula, read.chosen, read.cv_rmse, read.errors
        self._flag(table, energy)
        self.candidates_ = []
        self.range_ = FittedRange.of({name: np.exp(log) for name, log in logs.items()})
        self.lens_ = _quiet_lens(self.seed, self._columns(table), table, energy)
        return self

    def _flag(self, table: Any, energy: Floats) -> None:
        self.n_features_in_ = len(names_of(table))
        self.feature_names_in_ = np.array(names_of(table), dtype=object)
        self._units = flag_units(energy, np.ones_like(energy), *PLAUSIBLE_J, "a row", stacklevel=4)

    def _discover(self, logs: Columns, target: Floats) -> tuple[Candidate, list[Candidate]]:
        """The best formula, and all that were looked at."""
        scored = Scored(logs, target, self.penalty, self.seed)
        product = PowerSum((Term(float(target.mean()), dict.fromkeys(logs, 0.0)),))
        seeds = [self.num_searches * self.seed + number + 1 for number in range(self.num_searches)]  # 0: from the clock
        found = searched(logs, target, seeds, max_length=self.max_length, num_evaluations=self.num_evaluations)
        starts = sorted([*found, product], key=scored.cost)
        climbed = [scored.climb(start) for start in starts[:_CLIMBS]]
        best = min(climbed, key=scored.cost)
        known = sorted(scored.known.values(), key=lambda candidate: (candidate.num_constants, candidate.cv_rmse))
        return scored.known[best.structure], known

    def _judge(self, table: Any, logs: Columns, energy: Floats) -> None:
        """Choose between the search, repeated without each fold, and EnergyLens."""
        target, columns = np.log(energy), self._columns(table)
        folds = np.random.default_rng(self.seed + 1).permutation(len(target)) % self.num_folds
        errors = {name: np.empty(len(target)) for name in (FOUND, PUBLISHED)}
        for fold in range(self.num_folds):
            learn, rest = folds != fold, folds == fold
            best, _ = self._discover(rows_of(logs, learn), target[learn])
            errors[FOUND][rest] = best.formula.log_energy(rows_of(logs, rest), int(rest.sum())) - target[rest]
            values = {name: np.asarray(table[name], dtype=np.float64) for name in columns}
            lens = _quiet_lens(self.seed, columns, rows_of(values, learn), energy[learn])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PredictionWarning)
                errors[PUBLISHED][rest] = np.log(lens.predict(rows_of(values, rest))) - target[rest]
        self.cv_rmse_ = {name: rmse(error) for name, error in errors.items()}
        self.chosen_ = FOUND if self.cv_rmse_[FOUND] <= self.cv_rmse_[PUBLISHED] else PUBLISHED
        self.errors_ = errors

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
        check_is_fitted(self, "chosen_")
        level = checked_level(level)
        if self.chosen_ == PUBLISHED:
            return self.lens_.predict_interval(table, level=level)
        low, high = np.quantile(-self.errors_[FOUND], [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
        predicted = self.predict(table)
        return predicted * np.exp(low), predicted * np.exp(high)

    def explain(self, table: Any) -> Any:
        """A DataFrame with the table's index: joules of each row by term, adding up to the prediction."""
        import pandas

        check_is_fitted(self, "chosen_")
        if self.chosen_ == PUBLISHED:
            return self.lens_.explain(table)
        logs = self._checked(table)
        terms = np.exp(self.found_.log_terms(logs, len(next(iter(logs.values())))))
        shown = sorted(zip(self.found_.terms, terms, strict=True), key=lambda each: sorted(each[0].exponents))
        names = [", ".join(sorted(term.exponents)) or "constant" for term, _ in shown]
        return pandas.DataFrame(
            {f"term{i} ({name})_j": joules for i, (name, (_, joules)) in enumerate(zip(names, shown, strict=True), 1)},
            index=index_of(table),
        )

    def formula(self, *, digits: int = 3) -> str:
        """The formula in use with its constants, in joules."""
        check_is_fitted(self, "chosen_")
        return (
            self.lens_.formula(digits=digits) if self.chosen_ == PUBLISHED else f"E = {self.found_.text(digits=digits)}"
        )

    def _check_settings(self) -> None:
        for name, (least, most) in _WHOLE.items():
            checked_whole(name, getattr(self, name), least=least, most=most)
        if (
            isinstance(self.penalty, bool)
            or not isinstance(self.penalty, (int, float))
            or not 0 <= self.penalty < np.inf
        ):
            raise PredictionError(f"penalty must be a finite number >= 0, got {self.penalty!r}")

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


def _quiet_lens(seed: int, columns: list[str], table: Any, energy: Floats) -> EnergyLens:
    """EnergyLens on `columns`; what it warns of is not this estimator's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PredictionWarning)
        return EnergyLens(seed=seed, num_starts=3).fit({name: table[name] for name in columns}, energy)
