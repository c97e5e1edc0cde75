"""A recurring job for the terminal and as a picture: what is believed of its batch sizes, and what was saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from energy_lightning.recurring import Belief, CostRule, Run, Savings
from energy_lightning.recurring.wording import more_or_less
from energy_lightning.report.console import EMULATED, format_energy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _RED, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "0.5"  # Okabe and Ito


def beliefs_table(beliefs: Sequence[Belief], *, title: str, default: int, best: int | None, emulated: bool) -> Table:
    """A row a batch size; the believed best in bold."""
    table = Table(title=_titled(title, emulated), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("Batch size", "Runs", "Reached", "Running", "Believed cost", "+-", "Against best"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    least = next((one.cost_j for one in beliefs if one.batch_size == best), math.nan)
    for one in beliefs:
        marks = [word for word, size in (("default", default), ("best", best)) if size == one.batch_size]
        known = not math.isnan(one.cost_j)
        table.add_row(
            str(one.batch_size),
            str(one.num_runs),
            str(one.num_reached),
            str(one.num_running),
            format_energy(one.cost_j) if known else "-",
            f"{one.cost_sd_j / one.cost_j:.1%}" if known and one.cost_j > 0.0 else "-",
            f"{one.cost_j / least - 1.0:+.1%}" if known and not math.isnan(least) else "-",
            ", ".join(marks),
            style="bold" if one.batch_size == best else None,
        )
    return table


def savings_line(saved: Savings | None, default: int) -> str:
    """What recurrences have cost against the default, in one line."""
    if saved is None:
        return f"savings: not known before a run with the default batch size {default} has reached the target"
    energy = more_or_less("energy", saved.energy_j, saved.default_energy_j)
    time = more_or_less("time", saved.time_s, saved.default_time_s)
    cost = more_or_less("cost", saved.cost_j, saved.default_cost_j)
    return (
        f"{saved.num_recurrences} recurrences, exploring included, against as many with the default batch size "
        f"{default}: {energy}, {time}, {cost} ({format_energy(saved.energy_j)} over all GPUs, {saved.time_s:.4g} s)"
    )


def draw_recurring(
    beliefs: Sequence[Belief],
    runs: Sequence[Run],
    path: Path,
    *,
    cost: CostRule,
    saved: Savings | None,
    title: str,
    default: int,
    emulated: bool,
) -> Path:
    """Costs by batch size with what is believed, and savings by recurrence, as a PNG. Returns `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(11.0, 4.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # no display, whatever the user's matplotlib is set to
    figure.suptitle(_titled(title, emulated))
    if emulated:
        figure.text(0.5, 0.5, EMULATED, fontsize=60, color=_GREY, alpha=0.12, ha="center", va="center")
    left, right = figure.subplots(1, 2)
    _draw_costs(left, beliefs, runs, cost, default)
    _draw_savings(right, saved)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _draw_costs(axes: Axes, beliefs: Sequence[Belief], runs: Sequence[Run], cost: CostRule, default: int) -> None:
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    for reached, marker, colour, label in ((True, "o", _BLUE, "reached"), (False, "x", _RED, "missed or stopped")):
        points = [
            (run.batch_size, cost(run.energy_j, run.time_s))
            for run in runs
            if run.energy_j is not None and run.time_s is not None and run.reached_target is reached
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, alpha=0.5, markersize=5, label=label)
    known = [one for one in beliefs if not math.isnan(one.cost_j)]
    if known:
        sizes, means = [one.batch_size for one in known], np.array([one.cost_j for one in known])
        spread = 2.0 * np.array([one.cost_sd_j for one in known])
        low = np.minimum(spread, 0.9 * means)  # the axis is logarithmic
        axes.errorbar(sizes, means, yerr=np.stack([low, spread]), fmt="_", color="k", capsize=3, label="believed, 2 sd")
    axes.axvline(default, color=_GREY, linestyle=":", linewidth=1, label="default")
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="cost of a run (J)")
    axes.set_xticks([one.batch_size for one in beliefs], [str(one.batch_size) for one in beliefs])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_savings(axes: Axes, saved: Savings | None) -> None:
    if saved is None:
        axes.text(
            0.5, 0.5, "no run with the default has\nreached the target yet", ha="center", transform=axes.transAxes
        )
        axes.set_axis_off()
        return
    axes.axhline(0.0, color=_GREY, linewidth=1)
    axes.plot(range(1, saved.num_recurrences + 1), saved.saved_cost_j, "-o", color=_GREEN, markersize=3)
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="recurrence", ylabel="cost saved so far against the default (J)")
    axes.grid(alpha=0.3)


def _titled(title: str, emulated: bool) -> str:
    return f"{title} ({EMULATED})" if emulated else title
