"""A recurring job for the terminal and as a picture: what is believed of its batch sizes, and what was saved."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from energy_lightning.recurring import Belief, CostRule, Run, Savings
from energy_lightning.recurring.runs import UNKNOWN_POWER_W
from energy_lightning.recurring.wording import counted, more_or_less
from energy_lightning.report.console import EMULATED, format_energy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _RED, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "0.5"  # Okabe and Ito
_GUESS = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """How costs are shown: in J; where time alone counts as that time, as nobody measured so many J."""

    what: str
    unit: str
    of_j: float

    @classmethod
    def by(cls, cost: CostRule) -> Self:
        if cost.eta == 0.0:
            return cls(what="time", unit="s", of_j=1.0 / cost.max_power_w)
        return cls(what="cost", unit="J", of_j=1.0)

    def text(self, cost_j: float) -> str:
        return format_energy(cost_j) if self.unit == "J" else f"{cost_j * self.of_j:.4g} s"


def cost_line(cost: CostRule) -> str:
    """What a run costs, in one line."""
    if cost.eta == 0.0:
        bound = f"cost_j in the files is {cost.max_power_w:g} W x time, nothing measured"
        return f"cost: time alone (eta=0), no energy; {bound}"
    if cost.eta == 1.0:
        return "cost: energy over all GPUs (eta=1)"
    energy, time = f"{cost.eta:g} x energy over all GPUs", f"{1.0 - cost.eta:g}"
    if cost.max_power_w == UNKNOWN_POWER_W:
        return (
            f"cost: {energy} + {time} x their power limits together x time; the limits are not known before the first "
            "run, nor where GPUs do not tell them: 1 W counts then, unless max_power_w is given"
        )
    return f"cost: {energy} + {time} x {cost.max_power_w:g} W x time"


def running_line(runs: Sequence[Run], now_s: float) -> str | None:
    """The runs that go on, in one line; None where none does. `now_s`: as time.time()."""
    left = [
        f"run {run.run_id} (batch size {run.batch_size}, {max(0.0, run.lease_end_s - now_s) / 3600.0:.1f} h left)"
        for run in runs
        if run.lease_end_s is not None
    ]
    if not left:
        return None
    return f"running: {', '.join(left)}; one that is not heard of until then (should_stop, observe) is taken for dead"


def limits_line(runs: Sequence[Run], profiled: Collection[int]) -> str | None:
    """That runs of a size had several power limits, which nothing converts unless it is `profiled`; None: none had."""
    for size in sorted({run.batch_size for run in runs} - set(profiled)):
        limits_w = sorted({run.power_limit_w for run in runs if run.batch_size == size and run.power_limit_w})
        if len(limits_w) > 1:
            return (
                f"power limits: batch size {size} ran under {', '.join(f'{limit_w:g}' for limit_w in limits_w)} W, and "
                f"its runs are compared as they are; power_limit_w={limits_w[0]:g} shows costs under one"
            )
    return None


def beliefs_table(
    beliefs: Sequence[Belief], *, cost: CostRule, title: str, default: int, best: int | None, emulated: bool
) -> Table:
    """A row a batch size; the believed best in bold. What no run of the size itself has shown is marked as a guess."""
    shown = _Shown.by(cost)
    table = Table(title=_titled(title, emulated), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("Batch size", "Runs", "Reached", "Running", f"Believed {shown.what}", "+-", "Against best"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    least = next((one.cost_j for one in beliefs if one.batch_size == best), math.nan)
    for one in beliefs:
        marks = [word for word, size in (("default", default), ("best", best)) if size == one.batch_size]
        known = not math.isnan(one.cost_j)
        guess = "" if one.num_reached else _GUESS
        table.add_row(
            str(one.batch_size),
            str(one.num_runs),
            str(one.num_reached),
            str(one.num_running),
            guess + shown.text(one.cost_j) if known else "-",
            f"{one.cost_sd_j / one.cost_j:.1%}" if known and one.cost_j > 0.0 else "-",
            f"{one.cost_j / least - 1.0:+.1%}" if known and not math.isnan(least) else "-",
            ", ".join(marks),
            style="bold" if one.batch_size == best else None,
        )
    if any(one.num_reached == 0 and not math.isnan(one.cost_j) for one in beliefs):
        table.caption = f"{_GUESS}: no run of this size has reached the target; concluded from the others"
        table.caption_justify = "left"
    return table


def savings_line(saved: Savings | None, default: int, cost: CostRule) -> str:
    """What recurrences have cost against the default, in one line."""
    if saved is None:
        return f"savings: not known before a run with the default batch size {default} has reached the target"
    changes = [more_or_less("time", saved.time_s, saved.default_time_s)]
    spent = [f"{saved.time_s:.4g} s"]
    if saved.energy_j is None or saved.default_energy_j is None:
        spent.insert(0, "energy not measured")
    else:
        changes.insert(0, more_or_less("energy", saved.energy_j, saved.default_energy_j))
        spent.insert(0, f"{format_energy(saved.energy_j)} over all GPUs")
    if cost.eta > 0.0:  # else it is the time
        changes.append(more_or_less("cost", saved.cost_j, saved.default_cost_j))
    return (
        f"{counted(saved.num_recurrences, 'recurrence')}, exploring included, against as many with the default batch "
        f"size {default}: {', '.join(changes)} ({', '.join(spent)})"
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
    _draw_savings(right, saved, _Shown.by(cost))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _draw_costs(axes: Axes, beliefs: Sequence[Belief], runs: Sequence[Run], cost: CostRule, default: int) -> None:
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    shown = _Shown.by(cost)
    for reached, marker, colour, label in ((True, "o", _BLUE, "reached"), (False, "x", _RED, "missed or stopped")):
        points = [
            (run.batch_size, of_run * shown.of_j)
            for run in runs
            if (of_run := cost.of(run)) is not None and run.reached_target is reached
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, alpha=0.5, markersize=5, label=label)
    known = [one for one in beliefs if not math.isnan(one.cost_j)]
    if known:
        sizes, means = [one.batch_size for one in known], np.array([one.cost_j for one in known]) * shown.of_j
        spread = 2.0 * np.array([one.cost_sd_j for one in known]) * shown.of_j
        low = np.minimum(spread, 0.9 * means)  # the axis is logarithmic
        axes.errorbar(sizes, means, yerr=np.stack([low, spread]), fmt="_", color="k", capsize=3, label="believed, 2 sd")
    axes.axvline(default, color=_GREY, linestyle=":", linewidth=1, label="default")
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel=f"{shown.what} of a run ({shown.unit})")
    axes.set_xticks([one.batch_size for one in beliefs], [str(one.batch_size) for one in beliefs])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_savings(axes: Axes, saved: Savings | None, shown: _Shown) -> None:
    if saved is None:
        axes.text(
            0.5, 0.5, "no run with the default has\nreached the target yet", ha="center", transform=axes.transAxes
        )
        axes.set_axis_off()
        return
    axes.axhline(0.0, color=_GREY, linewidth=1)
    so_far = np.array(saved.saved_cost_j) * shown.of_j
    axes.plot(range(1, saved.num_recurrences + 1), so_far, "-o", color=_GREEN, markersize=3)
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="recurrence", ylabel=f"{shown.what} saved so far against the default ({shown.unit})")
    axes.grid(alpha=0.3)


def _titled(title: str, emulated: bool) -> str:
    return f"{title} ({EMULATED})" if emulated else title
