"""What a closed form is: parameters with bounds and priors, terms and gradients over logarithms of columns.

symbol    shape   meaning
n, p, t   -       rows, parameters, terms
theta     (p,)    parameters; those that must be > 0 as natural logarithms
logs      (n,)    natural logarithms of a column, less its mean for tokens and model sizes (better conditioned)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from energy_lightning.predict.columns import Columns, Floats

MODEL_COLUMNS = ("activated_params_b", "total_params_b")
_CENTRED = ("input_tokens", "output_tokens", *MODEL_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One entry of theta: bounds, and a normal prior. `logged`: theta holds the logarithm of a positive constant."""

    name: str
    low: float
    high: float
    mean: float
    deviation: float
    logged: bool = False


@dataclass(frozen=True, slots=True)
class LogColumns:
    """Logarithms of the columns, and what was subtracted from the centred ones."""

    values: Columns
    shifts: Mapping[str, float]

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]


def log_columns(columns: Columns, shifts: Mapping[str, float] | None = None) -> LogColumns:
    """Logarithms of `columns`; tokens and model sizes less `shifts` (their own means where None)."""
    logs = {name: np.log(values) for name, values in columns.items()}
    if shifts is None:
        shifts = {name: float(logs[name].mean()) for name in _CENTRED if name in logs}
    return LogColumns({name: values - shifts.get(name, 0.0) for name, values in logs.items()}, shifts)


class Form(Protocol):
    """A closed form: ln E and its gradient over theta, and the split into named terms."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Entries of theta, in order."""
        ...

    @property
    def term_names(self) -> tuple[str, ...]:
        """Of the terms, in order; terms of one name belong together."""
        ...

    def log_terms(self, theta: Floats, logs: LogColumns) -> Floats:
        """(t, n): logarithm of each term."""
        ...

    def gradient(self, theta: Floats, logs: LogColumns) -> Floats:
        """(n, p): derivative of ln E by theta."""
        ...

    def inert(self, varies: Mapping[str, bool]) -> dict[str, float]:
        """Parameters that a table cannot tell, where only some columns vary: name -> the value to fix theta at."""
        ...


def log_energy(form: Form, theta: Floats, logs: LogColumns) -> Floats:
    """ln E, (n,)."""
    terms = form.log_terms(theta, logs)
    top = terms.max(axis=0)
    return np.asarray(top + np.log(np.exp(terms - top).sum(axis=0)))
