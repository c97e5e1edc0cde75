"""Rich tables for the terminal. Emulated figures say so in the title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from energy_lightning.frontier import FrontierPoint
from energy_lightning.report.comparison import ComparisonRow, compare, describe_schedules
from energy_lightning.types import Plan

EMULATED = "EMULATED"


def comparison_table(rows: Sequence[ComparisonRow], *, title: str, emulated: bool, chosen: str | None = None) -> Table:
    """Time and energy of one iteration per GPU, one row a plan; the row labelled `chosen` is in bold."""
    table = Table(title=f"{title} ({EMULATED})" if emulated else title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("Plan", "Time", "", "Energy/GPU", ""):
        table.add_column(heading, justify="left" if heading == "Plan" else "right", no_wrap=True)
    table.add_column("What runs")
    for row in rows:
        table.add_row(
            row.label,
            format_time(row.time_s),
            format_change(row.time_change),
            format_energy(row.energy_j),
            format_change(row.energy_change),
            row.plan,
            style="bold" if row.label == chosen else None,
        )
    return table


def print_comparison(
    console: Console, plans: Mapping[str, FrontierPoint], *, title: str, emulated: bool, chosen: str
) -> list[ComparisonRow]:
    """Print the table of `plans`, and below it how the chosen one launches its collectives. The table's rows."""
    rows = compare(plans)
    console.print(comparison_table(rows, title=title, emulated=emulated, chosen=chosen))
    plan = plans[chosen].choice if chosen in plans else None
    schedules = describe_schedules(plan) if isinstance(plan, Plan) else ""
    if schedules:
        console.print(f"{chosen} launches all-reduces with  {schedules}", highlight=False)
    return rows


def format_time(time_s: float) -> str:
    """Three to four digits in s or ms."""
    return f"{time_s:.3f} s" if time_s >= 1.0 else f"{time_s * 1e3:.2f} ms"


def format_energy(energy_j: float) -> str:
    """Three to five digits in J, kJ or MJ."""
    for least_j, unit in ((1e7, "MJ"), (1e4, "kJ")):
        if energy_j >= least_j:
            return f"{energy_j / least_j * 10.0:.2f} {unit}"
    return f"{energy_j:.1f} J" if energy_j >= 100.0 else f"{energy_j:.3f} J"


def format_change(fraction: float) -> str:
    """A signed percentage; empty for none."""
    return f"{fraction:+.1%}" if fraction else ""
