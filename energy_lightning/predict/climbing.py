"""Climbing from a formula to better ones: a column or a term more or less at a time, judged on folds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from energy_lightning.predict.columns import Columns, Floats
from energy_lightning.predict.power_sums import PowerSum, Structure

_CLIMB_FOLDS = 5
_WARM_EVALUATIONS = 8  # of a fold's fit, which starts from that of all rows
_MOST_ERROR = 2.0  # of ln E that counts, so that one wild fold does not decide


@dataclass(frozen=True, slots=True)
class Candidate:
    """One formula: with its constants, their number, and its error of ln E on folds apart from its fit."""

    formula: PowerSum
    num_constants: int
    cv_rmse: float


@dataclass
class Scored:
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
            logs = rows_of(self.logs, learn)
            refitted = fitted.fitted(logs, self.target[learn], most_evaluations=_WARM_EVALUATIONS)
            errors[rest] = refitted.log_energy(rows_of(self.logs, rest), int(rest.sum())) - self.target[rest]
        return rmse(errors)


def rows_of(columns: Columns, chosen: np.ndarray) -> Columns:
    """The rows chosen by a mask."""
    return {name: values[chosen] for name, values in columns.items()}


def rmse(errors: Floats) -> float:
    """Root of the mean square of errors of ln E, of which no more than 2 counts; 1e-6 at least."""
    return max(float(np.sqrt((np.clip(errors, -_MOST_ERROR, _MOST_ERROR) ** 2).mean())), 1e-6)
