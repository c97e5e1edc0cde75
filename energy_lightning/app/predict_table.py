"""Tables of measurements from CSV files: columns renamed, energies in joules, mistakes named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from energy_lightning.predict import PredictionError
from energy_lightning.types import ConfigError

ENERGY = "energy_j"
_PLAIN = "write them as 1234.5, without a unit, a decimal comma or thousands separators"
JOULES = {"J": 1.0, "mJ": 1e-3, "kJ": 1e3, "Wh": 3.6e3, "kWh": 3.6e6}


def read_table(path: str | Path, columns: Mapping[str, str | None]) -> Any:
    """The DataFrame of a CSV file (.gz and .zip too). `columns`: our name -> the file's, or None where it is the same.

    Blanks around names and values do not count.

    Raises:
        ConfigError: no such file. PredictionError: not a CSV with rows, or a column of `columns` that it has not.
    """
    import pandas

    file = Path(path)
    if not file.is_file():
        is_folder = f"{file} is a folder" if file.is_dir() else f"no file {file}"
        raise ConfigError(f"{is_folder}; give a CSV with one row a configuration")
    try:
        header = pandas.read_csv(file, header=None, nrows=1, dtype=str, skipinitialspace=True).iloc[0].tolist()
        table = pandas.read_csv(file, skipinitialspace=True, low_memory=False)
    except UnicodeDecodeError as error:
        raise PredictionError(f"{file} is not a CSV table in UTF-8: {error}; save it as UTF-8") from error
    except (pandas.errors.EmptyDataError, pandas.errors.ParserError, EOFError, BadZipFile, ValueError) as error:
        raise PredictionError(f"{file} is not a CSV table: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error
    if len(table.columns) == 1 and any(mark in str(table.columns[0]) for mark in ";\t"):
        raise PredictionError(
            f"{file} separates its columns by semicolons or tabs: a CSV here has commas, and points in its numbers"
        )
    table.columns = [str(name).strip() for name in table.columns]
    if repeated := _repeated([name.strip() for name in header if isinstance(name, str)]):  # others are empty
        raise PredictionError(f"{file} has two columns {repeated}: rename or remove one of them")
    if not isinstance(table.index, pandas.RangeIndex):  # pandas takes the first values as names of the rows then
        raise PredictionError(
            f"{file} has more values in a row than its header has names: name each column, and quote values that hold "
            "a comma"
        )
    if table.empty:
        raise PredictionError(f"{file} has no rows below its header")
    renamed = {ours: theirs for ours, theirs in columns.items() if theirs is not None}
    for ours, theirs in renamed.items():
        if theirs not in table.columns:
            raise PredictionError(f"columns.{ours}={theirs}: {file} has no such column; it has {_listed(table)}")
    return table.assign(**{ours: table[theirs] for ours, theirs in renamed.items()})


def check_columns(table: Any, needed: Iterable[str], path: str | Path) -> None:
    """PredictionError naming those of our columns `needed` that `table`, read from `path`, has not."""
    if missing := [name for name in needed if name not in table.columns]:
        raise PredictionError(
            f"{path} has no column {', '.join(missing)}; it has {_listed(table)}. Where it has one by another name: "
            f"columns.{missing[0]}=NAME"
        )


def energy_of(table: Any, column: str, unit: str) -> Any:
    """(n,) joules: the table's energies.

    Raises:
        ConfigError: an unknown unit. PredictionError: no such column; one in another unit is pointed at.
    """
    if unit not in JOULES:
        raise ConfigError(f"unknown energy_unit={unit}; choose one of {', '.join(JOULES)}")
    if column not in table.columns:
        like = [name for name in table.columns if "energy" in name.lower()]
        hint = f"; the energies may be in {', '.join(like)}" if like else ""
        raise PredictionError(
            f"no column {column}{hint}. The table has {_listed(table)}. Name the column with energy_column=NAME and "
            f"its unit with energy_unit={'|'.join(JOULES)}"
        )
    named = next((known for known in JOULES if column.lower().endswith(f"_{known.lower()}")), None)
    if named is not None and named != unit:
        raise PredictionError(
            f"column {column} is named as if in {named}, energy_unit is {unit}: give energy_unit={named}, or rename it"
        )
    return numbers_of(table, column).to_numpy(dtype=float) * JOULES[unit]


def numbers_of(table: Any, column: str, *, may_miss: bool = False) -> Any:
    """Column as numbers, empty cells as NaN where they `may_miss`; PredictionError naming the first other row."""
    import pandas

    if pandas.api.types.infer_dtype(table[column], skipna=True) == "boolean":
        raise PredictionError(f"column {column} must hold numbers, it holds truth values: is another one meant?")
    values = pandas.to_numeric(table[column], errors="coerce")
    bad = values.isna() & table[column].notna() if may_miss else values.isna()
    if bad.any():
        row = int(bad.to_numpy().argmax())
        value = table[column].iloc[row]
        shown = "nothing" if pandas.isna(value) else repr(value)
        advice = _PLAIN if shown != "nothing" and bad.all() else "drop failed runs first"
        raise PredictionError(
            f"column {column} must hold numbers: row {row} has {shown} ({int(bad.sum())} such rows of {len(table)}); "
            f"{advice}"
        )
    return values


def _repeated(names: list[str]) -> str | None:
    return next((name for number, name in enumerate(names) if name in names[:number]), None)


def _listed(table: Any) -> str:
    return ", ".join(map(str, table.columns))
