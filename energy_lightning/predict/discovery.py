"""FormulaSearch: the structure of a formula for ln E found by symbolic regression, over the columns of EnergyLens.

The search (pyoperon: genetic programming in C++, constants by Levenberg-Marquardt, offline, one thread, seeded) returns
the best formula of each length. Each structure, and EnergyLens's closed form beside them, is fitted again on all folds
but one and judged on that one; the shortest within one standard error of the best is kept. Structures come from all
rows, so their errors flatter a little.

Why pyoperon: gplearn knows neither fitted constants nor a front over length, PySR needs a Julia that it downloads.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from energy_lightning.predict.choosing import Chooser
from energy_lightning.predict.columns import (
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

ADDITIVE = "EnergyLens"
_SYMBOLS = "add,sub,mul,constant,variable,exp,log"
_CALLS: dict[str, Callable[[Floats], Floats]] = {"exp": np.exp, "log": np.log}
_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply}
_FEWEST_ROWS = 12
_WORST = 50.0  # residual of ln E where a formula has no value
_DIGITS = 12
_MOST_STEPS = 20


class Formula:
    """A formula over named columns of logarithms: its text, with the constants taken out of it as parameters.

    Knows numbers, names, + - *, exp and log; anything else is refused (PredictionError), nothing is executed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = ast.parse(text.replace("^", "**"), mode="eval").body
        self.constants: list[float] = []
        self.names: list[str] = []
        self._collect(self._tree)

    def _collect(self, node: ast.AST) -> None:
        match node:
            case ast.Constant(value=float() | int() as value):
                self.constants.append(float(value))
            case ast.Name(id=name):
                if name not in self.names:
                    self.names.append(name)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                self._collect(operand)
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
                self._collect(left)
                self._collect(right)
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _CALLS:
                self._collect(argument)
            case _:
                raise PredictionError(f"a formula may hold numbers, columns, + - *, exp and log, got {self.text!r}")

    def value(self, logs: dict[str, Floats], constants: Sequence[float] | Floats) -> Floats:
        """ln E, (n,), with `constants` in the order of the text; NaN or infinite where it has no value."""
        remaining = iter(constants)
        with np.errstate(all="ignore"):
            result = self._value(self._tree, logs, remaining)
        return np.broadcast_to(np.asarray(result, dtype=np.float64), next(iter(logs.values())).shape)

    def _value(self, node: Any, logs: dict[str, Floats], remaining: Any) -> Any:
        match node:
            case ast.Constant():
                return next(remaining)
            case ast.Name(id=name):
                return logs[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, logs, remaining)
            case ast.UnaryOp(operand=operand):
                return self._value(operand, logs, remaining)
            case ast.BinOp(left=left, op=operation, right=right):
                first = self._value(left, logs, remaining)
                return _OPERATIONS[type(operation)](first, self._value(right, logs, remaining))
            case _:
                return _CALLS[node.func.id](self._value(node.args[0], logs, remaining))

    def fitted(self, logs: dict[str, Floats], target: Floats) -> Floats:
        """Constants of least squared error, from those of the text."""

        def residuals(constants: Floats) -> Floats:
            value = self.value(logs, constants)
            return np.where(np.isfinite(value), np.clip(value - target, -_WORST, _WORST), _WORST)

        if not self.constants:
            return np.zeros(0)
        method: Literal["lm", "trf"] = "lm" if len(target) >= len(self.constants) else "trf"
        return np.asarray(least_squares(residuals, self.constants, method=method, max_nfev=_MOST_STEPS).x)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One structure. length: symbols. cv_rmse, cv_error: of ln E over the folds, and its standard error."""

    formula: str
    length: int
    cv_rmse: float
    cv_error: float


class FormulaSearch(Chooser, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Energy by a formula that the data chose; used like EnergyLens. Needs pyoperon: energy_lightning[discovery].

    Args:
        max_length: most symbols of a formula. num_evaluations: of the search.
        num_folds: of the cross-validation. seed: of search and folds.

    Attributes after fit:
        candidates_: every structure with its cross-validated error, by length, EnergyLens's form among them.
        chosen_: the one kept; `chosen_.formula` is "EnergyLens" where no found structure does better.
    """

    def __init__(
        self, *, max_length: int = 30, num_evaluations: int = 100_000, num_folds: int = 5, seed: int = 0
    ) -> None:
        self.max_length = max_length
        self.num_evaluations = num_evaluations
        self.num_folds = num_folds
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
        folds = np.random.default_rng(self.seed).permutation(len(target)) % self.num_folds
        self.lens_ = EnergyLens(seed=self.seed)
        self.candidates_ = [self._judge_lens(table, energy, folds)]
        for formula, length in self._search(varying, target):
            self.candidates_.append(_judge(formula, length, varying, target, folds))
        self.candidates_.sort(key=lambda candidate: candidate.length)
        best = min(self.candidates_, key=lambda candidate: candidate.cv_rmse)
        limit = best.cv_rmse + best.cv_error
        self.chosen_ = next(candidate for candidate in self.candidates_ if candidate.cv_rmse <= limit)
        self.formula_ = None if self.chosen_.formula == ADDITIVE else Formula(self.chosen_.formula)
        if self.formula_ is None:
            self.lens_.fit(table, energy)
        else:
            self.constants_ = self.formula_.fitted(varying, target)
        return self

    def _search(self, logs: dict[str, Floats], target: Floats) -> list[tuple[Formula, int]]:
        try:
            from pyoperon.sklearn import SymbolicRegressor
        except ImportError as error:
            raise ImportError("FormulaSearch needs pyoperon: pip install 'energy_lightning[discovery]'") from error
        search = SymbolicRegressor(
            allowed_symbols=_SYMBOLS,
            objectives=["mse", "length"],
            max_length=self.max_length,
            max_evaluations=self.num_evaluations,
            generations=self.num_evaluations,  # the evaluations are the limit
            population_size=500,
            optimizer_iterations=5,
            n_threads=1,
            random_state=self.seed + 1,  # 0 would mean: from the clock
        )
        names = list(logs)
        search.fit(np.stack([logs[name] for name in names], axis=1), target)
        texts = {
            search.get_model_string(model["tree"], _DIGITS, names): int(model["length"])
            for model in search.pareto_front_
        }
        return [(Formula(text), length) for text, length in texts.items()]

    def _judge_lens(self, table: Any, energy: Floats, folds: np.ndarray) -> Candidate:
        columns = {name: np.asarray(table[name], dtype=np.float64) for name in self._columns(table)}
        squared = np.empty(len(energy))
        for fold in range(self.num_folds):
            learn, rest = folds != fold, folds == fold
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PredictionWarning)
                lens = EnergyLens(seed=self.seed, num_starts=3)
                lens.fit({name: values[learn] for name, values in columns.items()}, energy[learn])
                predicted = lens.predict({name: values[rest] for name, values in columns.items()})
            squared[rest] = (np.log(predicted) - np.log(energy[rest])) ** 2
        # Two terms of nine symbols and two of three: about what it takes to write the form down.
        return _candidate(ADDITIVE, 24, squared, folds)

    def predict(self, table: Any) -> Floats:
        """(n,) joules; NaN where the formula has no value. Warns where a column lies outside what was fitted."""
        check_is_fitted(self, "chosen_")
        if self.formula_ is None:
            return self.lens_.predict(table)
        logs = self._read(table)
        if missing := [name for name in self.range_.bounds if name not in logs]:
            raise PredictionError(f"the fit had column {missing[0]}; this table has not")
        self.range_.warn_outside({name: np.exp(log) for name, log in logs.items()}, type(self).__name__)
        return np.exp(self.formula_.value(logs, self.constants_))

    def formula(self, *, digits: int = 3) -> str:
        """The kept formula with its constants; a column's name stands for its natural logarithm inside "ln E = ..."."""
        check_is_fitted(self, "chosen_")
        if self.formula_ is None:
            return self.lens_.formula(digits=digits)
        rounded = iter(f"{value:.{digits}g}" for value in self.constants_)
        return f"ln E = {_with_constants(ast.parse(self.formula_.text, mode='eval').body, rounded)}"

    def _columns(self, table: Any) -> list[str]:
        require(table, REQUIRED, (*REQUIRED, *OPTIONAL))
        return [name for name in (*REQUIRED, *OPTIONAL) if name in names_of(table)]

    def _read(self, table: Any) -> dict[str, Floats]:
        return {name: np.log(positive(table, name)) for name in self._columns(table)}


def _with_constants(node: Any, constants: Any) -> str:
    """Text of a formula in which each constant is the next of `constants`."""
    match node:
        case ast.Constant():
            return str(next(constants))
        case ast.Name(id=name):
            return f"ln({name})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-({_with_constants(operand, constants)})"
        case ast.UnaryOp(operand=operand):
            return _with_constants(operand, constants)
        case ast.BinOp(left=left, op=operation, right=right):
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}[type(operation)]
            first = _with_constants(left, constants)
            return f"({first} {sign} {_with_constants(right, constants)})"
        case _:
            return f"{node.func.id}({_with_constants(node.args[0], constants)})"


def _judge(formula: Formula, length: int, logs: dict[str, Floats], target: Floats, folds: np.ndarray) -> Candidate:
    squared = np.empty(len(target))
    for fold in range(int(folds.max()) + 1):
        learn, rest = folds != fold, folds == fold
        constants = formula.fitted({name: log[learn] for name, log in logs.items()}, target[learn])
        value = formula.value({name: log[rest] for name, log in logs.items()}, constants)
        squared[rest] = np.where(np.isfinite(value), (value - target[rest]) ** 2, _WORST**2)
    return _candidate(formula.text, length, squared, folds)


def _candidate(text: str, length: int, squared: Floats, folds: np.ndarray) -> Candidate:
    by_fold = np.array([np.sqrt(squared[folds == fold].mean()) for fold in range(int(folds.max()) + 1)])
    return Candidate(text, length, float(np.sqrt(squared.mean())), float(by_fold.std(ddof=1) / np.sqrt(len(by_fold))))
