"""Tables of predictions for the terminal. Emulated figures say so in the title."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from energy_lightning.report.console import EMULATED, format_energy
from energy_lightning.types import ConfigError


@dataclass(frozen=True, slots=True)
class Effect:
    """A factor's effect on the energy of a run.

    Attributes:
        name: the factor, or "tp on 2 instead of single".
        elasticity, hc3_error: of the factor; of a strategy the change of ln E.
        lowest, highest: values in the sweep; empty for a strategy.
        times: energy at the highest over energy at the lowest value, the others held.
    """

    name: str
    elasticity: float
    hc3_error: float
    lowest: str
    highest: str
    times: float

    @property
    def clear(self) -> bool:
        """Whether the effect is more than twice its error."""
        return abs(self.elasticity) > 2.0 * self.hc3_error


@dataclass(frozen=True, slots=True)
class Prices:
    """What energy and GPUs cost, in any one currency; None: not counted."""

    per_kwh: float | None
    per_gpu_hour: float | None

    def __post_init__(self) -> None:
        for name, value in (("price_per_kwh", self.per_kwh), ("price_per_gpu_hour", self.per_gpu_hour)):
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < math.inf:
                raise ConfigError(f"{name} must be a finite number >= 0 or null, got {value!r}")

    def cost(self, energy_kwh: Any, gpu_hours: Any) -> Any:
        """(n,); NaN where no price is given, or where a price per hour meets unknown hours."""
        if self.per_kwh is None and self.per_gpu_hour is None:
            return np.full(len(energy_kwh), np.nan)
        energy = energy_kwh * (self.per_kwh or 0.0)
        return energy if self.per_gpu_hour is None else energy + gpu_hours * self.per_gpu_hour


def training_table(table: Any, *, title: str, level: float, emulated: bool) -> Table:
    """A row a strategy and number of GPUs, the least in bold; `table` has the columns of predictions.csv."""
    shown = _table(title, emulated)
    shown.add_column("Strategy")
    with_cost = bool(table["cost"].notna().any())
    headings = ["GPUs", "Energy", f"{level:.0%} interval", "kWh", "Hours", *(["Cost"] if with_cost else [])]
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in table.itertuples():
        cells = [
            str(row.num_gpus),
            format_energy(row.predicted_energy_j),
            _interval(row.low_energy_j, row.high_energy_j),
            f"{row.predicted_energy_kwh:.4g}",
            _number(row.predicted_hours),
            *([_number(row.cost)] if with_cost else []),
        ]
        name = f"{row.strategy} <- least" if row.least else str(row.strategy)
        shown.add_row(name, *cells, style="bold" if row.least else None)
    return shown


def frame_table(frame: Any, columns: Sequence[str], *, title: str, emulated: bool) -> Table:
    """Some columns of a DataFrame as they are, numbers with four digits."""
    shown = _table(title, emulated)
    for name in columns:
        shown.add_column(name.replace("_", " "), justify="right", overflow="fold")
    for values in frame[list(columns)].itertuples(index=False):
        shown.add_row(*(_number(v) if isinstance(v, float) else str(v) for v in values))
    return shown


def effects_table(effects: Iterable[Effect], *, title: str, emulated: bool) -> Table:
    """A row a factor: elasticity with its error, and by how much it multiplies energy from lowest to highest value."""
    shown = _table(title, emulated)
    shown.add_column("Factor")
    for heading in ("From", "To", "Energy", "Elasticity", "HC3 error", ""):
        shown.add_column(heading, justify="right", no_wrap=True)
    for effect in effects:
        numbers = f"x{effect.times:.3g}", f"{effect.elasticity:.3f}", f"{effect.hc3_error:.3f}"
        shown.add_row(effect.name, effect.lowest, effect.highest, *numbers, "" if effect.clear else "not clear")
    return shown


def _table(title: str, emulated: bool) -> Table:
    full = f"{title} ({EMULATED})" if emulated else title
    return Table(title=full, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _interval(low_j: float, high_j: float) -> str:
    return "-" if np.isnan(low_j) else f"{format_energy(low_j)} to {format_energy(high_j)}"


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4g}"
