"""The time-energy frontier as a picture. Emulated ones say so across the picture and in its title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energy_lightning.frontier import FrontierPoint
from energy_lightning.report.comparison import BASELINE
from energy_lightning.types import Budget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        emulated: the numbers come from an emulated GPU.
    """

    title: str
    frontiers: Mapping[str, Sequence[FrontierPoint]]
    plans: Mapping[str, FrontierPoint] = field(default_factory=dict)
    chosen: str | None = None
    baseline: str = BASELINE
    budget: Budget | None = None
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
    for (label, points), colour in zip(picture.frontiers.items(), _COLOURS, strict=False):
        _draw_points(axes, points, label=f"{label} frontier", colour=colour)
    _draw_plans(axes, picture)
    _draw_budget(axes, picture)
    axes.set_xlabel("Time of one iteration (ms)")
    axes.set_ylabel("Energy of one iteration per GPU (J)")
    axes.set_title(f"{picture.title} (emulated)" if picture.emulated else picture.title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _draw_points(axes: Axes, points: Sequence[FrontierPoint], *, label: str, colour: str) -> None:
    times_ms = [point.time_s * 1e3 for point in points]
    axes.plot(times_ms, [p.energy_j for p in points], ".-", drawstyle="steps-post", label=label, color=colour, zorder=2)


def _draw_plans(axes: Axes, picture: FrontierPicture) -> None:
    references = {label: point for label, point in picture.plans.items() if label != picture.chosen}
    for (label, point), marker in zip(references.items(), _MARKERS, strict=False):
        axes.plot(point.time_s * 1e3, point.energy_j, marker, label=label, color="black", fillstyle="none", zorder=3)
    if picture.chosen is not None and picture.chosen in picture.plans:
        point = picture.plans[picture.chosen]
        axes.plot(point.time_s * 1e3, point.energy_j, "*", markersize=16, color="#e69f00", label="chosen", zorder=4)


def _draw_budget(axes: Axes, picture: FrontierPicture) -> None:
    budget = picture.budget
    if budget is None or budget.value is None:
        return
    line: dict[str, Any] = {"color": "crimson", "linestyle": "--", "label": f"budget {budget}"}
    if budget.kind == "energy_budget":
        axes.axhline(budget.value, **line)
    elif budget.kind == "deadline":
        axes.axvline(budget.value * 1e3, **line)
    elif picture.baseline in picture.plans:
        axes.axvline(picture.plans[picture.baseline].time_s * (1.0 + budget.value) * 1e3, **line)
