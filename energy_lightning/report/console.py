"""Rich tables for the terminal. Emulated figures say so in the title."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from energy_lightning.report.comparison import ComparisonRow

EMULATED = "EMULATED"


def comparison_table(rows: Sequence[ComparisonRow], *, title: str, emulated: bool, chosen: str | None = None) -> Table:
    """Time and energy of one iteration per GPU, one row a plan; the row labelled `chosen` is in bold."""
    table = Table(title=f"{title} ({EMULATED})" if emulated else title, title_justify="left", expand=False)
    for heading in ("Plan", "Time", "", "Energy per GPU", ""):
        table.add_column(heading, justify="left" if heading == "Plan" else "right", no_wrap=True)
    table.add_column("What runs", overflow="fold")
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


def format_time(time_s: float) -> str:
    """Three to four digits in s or ms."""
    return f"{time_s:.3f} s" if time_s >= 1.0 else f"{time_s * 1e3:.2f} ms"


def format_energy(energy_j: float) -> str:
    """Three to five digits in J."""
    return f"{energy_j:.1f} J" if energy_j >= 100.0 else f"{energy_j:.3f} J"


def format_change(fraction: float) -> str:
    """A signed percentage; empty for none."""
    return f"{fraction:+.1%}" if fraction else ""
