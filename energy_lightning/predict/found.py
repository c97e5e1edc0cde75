"""What a search for a formula found, as a file holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from energy_lightning.predict.columns import Floats, PredictionError, numbers
from energy_lightning.predict.power_sums import PowerSum, Term


@dataclass(frozen=True, slots=True)
class Found:
    """The formula, which one was `chosen`, and by name errors of ln E: their root mean square, and (n,) of the rows."""

    formula: PowerSum
    chosen: str
    cv_rmse: dict[str, float]
    errors: dict[str, Floats]

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts."""
        terms = sorted(self.formula.terms, key=lambda term: sorted(term.exponents))
        return {
            "chosen": self.chosen,
            "terms": [{"factor_j": float(np.exp(t.log_factor)), "exponents": dict(t.exponents)} for t in terms],
            "cv_rmse": dict(self.cv_rmse),
            "errors": {name: [float(f"{e:.6g}") for e in values] for name, values in self.errors.items()},
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], *, columns: set[str], num_rows: int) -> Self:
        """Inverse of `to_dict`; PredictionError where it is not that, or not of a table with these columns and rows."""
        try:
            terms = [Term(float(np.log(each["factor_j"])), dict(each["exponents"])) for each in found["terms"]]
            chosen, cv_rmse = str(found["chosen"]), dict(found["cv_rmse"])
            errors = {name: numbers(values, f"errors of {name}") for name, values in found["errors"].items()}
            used = {name for term in terms for name in term.exponents}
            fits = used <= columns and {len(values) for values in errors.values()} == {num_rows}
            if not (terms and fits and chosen in errors):
                raise ValueError("its terms or errors are not of this table")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PredictionError(f"no found formula can be read ({error}): search again") from error
        return cls(PowerSum(tuple(terms)), chosen, cv_rmse, errors)
