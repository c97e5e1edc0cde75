"""The time-energy frontier as a picture. Emulated ones say so across the picture and in its title."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from energy_lightning.frontier import FrontierPoint
from energy_lightning.report.comparison import BASELINE
from energy_lightning.types import Budget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_METHODS = {"kareus": "#d55e00", "perseus": "#0072b2", "nanobatch perseus": "#009e73"}  # the same in every picture
_COLOURS = ("#999999", "#0072b2", "#009e73", "#d55e00", "#cc79a7")  # Okabe and Ito (2008): told apart by all readers
_MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPicture:
    """What to draw. Times are of one iteration, energies of one iteration per GPU.

    Attributes:
        title: names job and GPU.
        frontiers: label -> points by rising time.
        plans: label -> one point, each drawn as a mark ("max frequency", ...).
        chosen: label of the plan in use, drawn as a star.
        baseline: label of the plan that a max_slowdown budget refers to.
        budget: drawn as a line where it is a limit on time or energy, or None.
        num_gpus: GPUs of the whole job; above 1, a second axis on the right gives the energy of all of them.
        emulated: the numbers come from an emulated GPU.
    """

    title: str
    frontiers: Mapping[str, Sequence[FrontierPoint]]
    plans: Mapping[str, FrontierPoint] = field(default_factory=dict)
    chosen: str | None = None
    baseline: str = BASELINE
    budget: Budget | None = None
    num_gpus: int = 1
    emulated: bool = False


def draw_frontier(picture: FrontierPicture, path: Path) -> Path:
    """Write `picture` as a PNG to `path`, which is returned. Draws without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # no display, whatever the user's matplotlib is set to
    axes = figure.add_subplot()
    if picture.emulated:
        axes.text(
            0.5,
            0.5,
            "EMULATED",
            transform=axes.transAxes,
            fontsize=60,
            color="0.92",
            ha="center",
            va="center",
            zorder=0,
        )
    units = _units(picture)
    spare = itertools.cycle(colour for colour in _COLOURS if colour not in _METHODS.values())
    for label, points in picture.frontiers.items():
        _draw_points(axes, points, units, label=f"{label} frontier", colour=_METHODS.get(label) or next(spare))
    _draw_plans(axes, picture, units)
    _draw_budget(axes, picture, units)
    axes.set_xlabel(f"Time of one iteration ({units.time})")
    axes.set_ylabel(f"Energy of one iteration per GPU ({units.energy})")
    axes.set_title(f"{picture.title} (EMULATED)" if picture.emulated else picture.title)
    if picture.num_gpus > 1:
        _draw_total_axis(axes, picture.num_gpus, units)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


@dataclass(frozen=True, slots=True)
class Units:
    """Units of the axes, and what times in s and energies in J are multiplied by for them."""

    time: str
    per_s: float
    energy: str
    per_j: float


def _units(picture: FrontierPicture) -> Units:
    """Those that keep the numbers short."""
    points = [*picture.plans.values(), *(point for points in picture.frontiers.values() for point in points)]
    in_s = any(point.time_s >= 1.0 for point in points)
    in_kj = any(point.energy_j >= 1e4 for point in points)
    return Units("s" if in_s else "ms", 1.0 if in_s else 1e3, "kJ" if in_kj else "J", 1e-3 if in_kj else 1.0)


def _draw_total_axis(axes: Axes, num_gpus: int, units: Units) -> None:
    # An energy in kJ (J) per GPU, times the GPUs, in MJ (kJ).
    factor, unit = num_gpus * 1e-3, {"J": "kJ", "kJ": "MJ"}[units.energy]
    total = axes.secondary_yaxis("right", functions=(lambda e: np.multiply(e, factor), lambda e: np.divide(e, factor)))
    total.set_ylabel(f"all {num_gpus} GPUs ({unit})")


def _draw_points(axes: Axes, points: Sequence[FrontierPoint], units: Units, *, label: str, colour: str) -> None:
    times, energies = [point.time_s * units.per_s for point in points], [p.energy_j * units.per_j for p in points]
    axes.plot(times, energies, ".-", drawstyle="steps-post", label=label, color=colour, zorder=2)


def _draw_plans(axes: Axes, picture: FrontierPicture, units: Units) -> None:
    references = {label: point for label, point in picture.plans.items() if label != picture.chosen}
    for (label, point), marker in zip(references.items(), _MARKERS, strict=False):
        where = point.time_s * units.per_s, point.energy_j * units.per_j
        axes.plot(*where, marker, label=label, color="black", fillstyle="none", zorder=3)
    if picture.chosen is not None and picture.chosen in picture.plans:
        point = picture.plans[picture.chosen]
        where = point.time_s * units.per_s, point.energy_j * units.per_j
        label = f"chosen: {picture.chosen}"
        axes.plot(*where, "*", markersize=16, color="#e69f00", markeredgecolor="black", label=label, zorder=4)


def _draw_budget(axes: Axes, picture: FrontierPicture, units: Units) -> None:
    """The budget as a line; one far outside leaves the picture to the plans, and is only told."""
    limit = _budget_limit(picture, units)
    if limit is None:
        return
    direction, value = limit
    low, high = axes.get_xlim() if direction == "x" else axes.get_ylim()
    outside = not low - 0.5 * (high - low) <= value <= high + 0.5 * (high - low)
    line: dict[str, Any] = {"color": "crimson", "linestyle": "--", "label": f"budget {picture.budget}"}
    if outside:
        axes.plot([], [], **{**line, "label": f"budget {picture.budget} (outside)"})
    elif direction == "x":
        axes.axvline(value, **line)
    else:
        axes.axhline(value, **line)


def _budget_limit(picture: FrontierPicture, units: Units) -> tuple[str, float] | None:
    """The axis ("x" or "y") that the budget limits and where, in its unit; None for a budget without a limit."""
    budget = picture.budget
    if budget is None or budget.value is None:
        return None
    if budget.kind == "energy_budget":
        return "y", budget.value * units.per_j
    if budget.kind == "deadline":
        return "x", budget.value * units.per_s
    if picture.baseline not in picture.plans:
        return None
    return "x", picture.plans[picture.baseline].time_s * (1.0 + budget.value) * units.per_s
