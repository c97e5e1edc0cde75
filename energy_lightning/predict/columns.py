"""Columns of a table as checked arrays: what both predictors accept, refuse and flag.

A table is a pandas DataFrame or a mapping from column names to sequences of equal length; n is its number of rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from energy_lightning.errors import EnergyLightningError

Floats = NDArray[np.float64]
Columns = dict[str, Floats]
_JOULE_PER_KWH = 3.6e6
_POSSIBLE_J = (1e-30, 1e30)
_NO_NUMBERS = {"b": "truth values", "c": "complex numbers", "M": "dates", "m": "durations"}  # by kind of a dtype
_FAR_OFF = 1e3  # from the median: what a row outside the plausible range must be, to be pointed at


class PredictionError(EnergyLightningError):
    """A table that no prediction can be made of, or a predictor that was not fitted."""


class PredictionWarning(UserWarning):
    """A prediction that rests on less than it should; the message says why. Base of the three below."""


class OutOfRangeWarning(PredictionWarning):
    """Rows outside the range that the predictor was fitted on."""


class UnitWarning(PredictionWarning):
    """Energies of a magnitude that suggests another unit than joules."""


class FallbackWarning(PredictionWarning):
    """Too little to fit on: a simpler prediction is used and named."""


def names_of(table: Any) -> tuple[str, ...]:
    """Column names; PredictionError if the table has none."""
    names = table.keys() if isinstance(table, Mapping) else getattr(table, "columns", None)
    if names is None:
        raise PredictionError(
            f"need a DataFrame or a mapping of named columns, got {type(table).__name__}: give the columns their names"
        )
    return tuple(str(name) for name in names)


def require(table: Any, needed: Iterable[str], known: Iterable[str]) -> None:
    """PredictionError naming the missing columns and those that are known."""
    present = names_of(table)
    if missing := [name for name in needed if name not in present]:
        raise PredictionError(
            f"missing column{'s' * (len(missing) > 1)} {', '.join(missing)}; the table has "
            f"{', '.join(present) or 'none'}; known columns: {', '.join(known)}"
        )


def positive(table: Any, name: str) -> Floats:
    """Column `name` as (n,) finite values > 0; PredictionError naming the first row that is not."""
    return checked_positive(numbers(table[name], f"column {name}"), f"column {name}")


def numbers(values: ArrayLike, what: str) -> Floats:
    """`values` as floats; PredictionError for what is no real number: truth values, complex, dates, texts."""
    try:
        array = np.asarray(values)
        kind = _NO_NUMBERS.get(array.dtype.kind)
        if array.dtype.kind == "O" and any(isinstance(value, (bool, np.bool_)) for value in array.flat):
            kind = _NO_NUMBERS["b"]
        if kind is None:
            return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PredictionError(f"{what} must hold numbers: {error}") from error
    raise PredictionError(f"{what} must hold numbers, it holds {kind} (first: {array.flat[0]}): is another one meant?")


def checked_positive(values: ArrayLike, what: str) -> Floats:
    """`values` as (n,) finite numbers > 0, n >= 1; PredictionError saying which row is wrong and what to do."""
    array = numbers(values, what)
    if array.ndim != 1 or len(array) == 0:
        raise PredictionError(f"{what} must be one value a row and at least one row, got shape {array.shape}")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0.0)))  # NaN fails too
    if len(bad):
        raise PredictionError(
            f"{what} must be finite and > 0: row {bad[0]} has {array[bad[0]]:g} ({len(bad)} such rows of "
            f"{len(array)}); drop failed runs and correct the others first"
        )
    return array


def checked_energy(energy_j: ArrayLike, num_rows: int) -> Floats:
    """Energies (n,) in joules; PredictionError unless there is one finite value > 0 for each row."""
    array = numbers(energy_j, "energy_j")
    if array.ndim == 1 and len(array) != num_rows:
        raise PredictionError(f"energy_j has {len(array)} values, the table {num_rows} rows: give one energy a row")
    least_j, most_j = _POSSIBLE_J
    energies = checked_positive(array, "energy_j")
    impossible = np.flatnonzero((energies < least_j) | (energies > most_j))
    if len(impossible):
        raise PredictionError(
            f"energy_j must be {least_j:g} to {most_j:g} J: row {impossible[0]} has {energies[impossible[0]]:g} "
            f"({len(impossible)} such rows of {len(energies)}); drop failed runs and correct the others first"
        )
    return energies


def checked_level(level: Any) -> float:
    """The probability that an interval is to have; PredictionError unless it lies between 0 and 1, both excluded."""
    if isinstance(level, bool) or not isinstance(level, (int, float, np.number)) or not 0.0 < level < 1.0:
        raise PredictionError(f"level must be a probability between 0 and 1, e.g. 0.9, got {level!r}")
    return float(level)


def checked_whole(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """A setting that counts something; PredictionError unless it is a whole number from `least` to `most`, if given."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        limits = f">= {least}" if most is None else f"from {least} to {most}"
        raise PredictionError(f"{name} must be a whole number {limits}, got {value!r}")
    return int(value)


def equally_long(columns: Mapping[str, Floats]) -> None:
    """PredictionError naming two columns that differ in length."""
    lengths = {name: len(values) for name, values in columns.items()}
    first = next(iter(lengths))
    for name, length in lengths.items():
        if length != lengths[first]:
            raise PredictionError(
                f"column {name} has {length} values, column {first} {lengths[first]}: give one value a row"
            )


def flag_units(
    energy_j: Floats, work: Floats, low: float, high: float, unit_of_work: str, *, stacklevel: int = 3
) -> str | None:
    """UnitWarning, and its text, where energy / work lies outside [low, high] J per unit of work.

    Either the median does, or single rows that are far off it too: a table of two units.
    """
    each = energy_j / work
    typical = float(np.median(each))
    if low <= typical <= high:
        odd = np.flatnonzero(((each < low) | (each > high)) & (np.abs(np.log(each / typical)) > np.log(_FAR_OFF)))
        if not len(odd):
            return None
        text = (
            f"suspicious magnitude: {len(odd)} of {len(each)} rows, the first is row {odd[0]} with {each[odd[0]]:.3g} "
            f"J {unit_of_work}, where the median is {typical:.3g}. energy_j must be in joules in every row"
        )
        warnings.warn(text, UnitWarning, stacklevel=stacklevel)
        return text
    guess = "kWh: multiply by 3.6e6" if typical * _JOULE_PER_KWH <= high and typical < low else "mJ: divide by 1000"
    text = (
        f"suspicious magnitude: the median energy is {typical:.3g} J {unit_of_work}, plausible is {low:g} to {high:g}. "
        f"energy_j must be in joules; these may be {guess}"
    )
    warnings.warn(text, UnitWarning, stacklevel=stacklevel)
    return text


@dataclass(frozen=True)
class FittedRange:
    """Lowest and highest value of each column that a predictor was fitted on."""

    bounds: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, columns: Mapping[str, Floats]) -> FittedRange:
        """The range of `columns`."""
        return cls({name: (float(values.min()), float(values.max())) for name, values in columns.items()})

    def outside(self, columns: Mapping[str, Floats]) -> dict[str, int]:
        """Rows outside the range, by column; columns with none are left out."""
        counts = {}
        for name, (low, high) in self.bounds.items():
            slack = 1e-9 * max(abs(low), abs(high))
            counts[name] = int(((columns[name] < low - slack) | (columns[name] > high + slack)).sum())
        return {name: count for name, count in counts.items() if count}

    def warn_outside(self, columns: Mapping[str, Floats], who: str, *, stacklevel: int = 3) -> None:
        """One OutOfRangeWarning naming every column with rows outside the range; by default at our caller's caller."""
        if outside := self.outside(columns):
            parts = [
                f"{name} in {count} rows (fitted on {self.bounds[name][0]:g} to {self.bounds[name][1]:g})"
                for name, count in outside.items()
            ]
            warnings.warn(f"{who} extrapolates: {'; '.join(parts)}", OutOfRangeWarning, stacklevel=stacklevel)


def index_of(table: Any) -> Any:
    """The row labels of a DataFrame, for a result that goes with it; None for a mapping."""
    return table.index if hasattr(table, "iloc") else None


def rows(table: Any, indices: NDArray[np.intp]) -> Any:
    """Rows of a table by position, as a DataFrame; the table is not changed."""
    if hasattr(table, "iloc"):
        return table.iloc[indices]
    import pandas

    names = table.keys() if isinstance(table, Mapping) else table.columns  # the latter: another library's frame
    return pandas.DataFrame({name: np.asarray(table[name]) for name in names}).iloc[indices]
