"""One iteration of a pipeline as a picture: stages x time, coloured by the power that a GPU draws.

Each stage is a lane. Forwards lie in its upper part and backwards in its lower part, so they are told apart at any
size; pale is waiting for another stage. The critical path is outlined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from energy_lightning.emulation import IterationResult, StageResult
from energy_lightning.emulation.critical_path import critical_path
from energy_lightning.emulation.pipeline import ScheduledPhase

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 120
_LANE, _FORWARD, _BACKWARD, _END = (0.06, 0.94), (0.06, 0.66), (0.34, 0.94), (0.06, 0.94)  # parts of a lane's height
_WAITING, _CRITICAL, _EDGE = "#e9edf2", "#08306b", "#ffffff"
_COLOURS = "YlOrRd"
_LEAST_TEXT_PX = 17.0  # a narrower phase carries no microbatch number


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle: from `start_s` to `end_s` in a stage's lane, at `power_w` of one GPU."""

    stage: int
    start_s: float
    end_s: float
    part: tuple[float, float]
    power_w: float
    text: str = ""


def phase_bars(iteration: IterationResult) -> list[list[Bar]]:
    """A bar for every phase of every microbatch, per stage in execution order."""
    return [[_phase_bar(s, phase) for phase in stage.phases] for s, stage in enumerate(iteration.stages)]


def _phase_bar(stage: int, phase: ScheduledPhase) -> Bar:
    part = _FORWARD if phase.plan.phase == "forward" else _BACKWARD
    power_w = phase.energy_j / (phase.end_s - phase.start_s)
    return Bar(stage, phase.start_s, phase.end_s, part, power_w, str(phase.microbatch))


def end_bars(iteration: IterationResult) -> list[Bar]:
    """A bar a stage for the iteration's end (gradient reduction, optimizer), which starts as the pipeline is empty."""
    start_s = max(stage.phases[-1].end_s for stage in iteration.stages)
    return list(_end_bars(iteration.stages, start_s, iteration))


def _end_bars(stages: Sequence[StageResult], start_s: float, iteration: IterationResult) -> Iterator[Bar]:
    for s, stage in enumerate(stages):
        time_s = stage.busy_s - sum(phase.end_s - phase.start_s for phase in stage.phases)
        waiting_j = iteration.blocking_power_w * (iteration.time_s - stage.busy_s)
        energy_j = stage.energy_j - waiting_j - sum(phase.energy_j for phase in stage.phases)
        if time_s > 1e-9 * iteration.time_s:
            yield Bar(s, start_s, start_s + time_s, _END, energy_j / time_s)


def draw_pipeline(iteration: IterationResult, path: Path, *, title: str, emulated: bool = True) -> Path:
    """Write one iteration as a PNG to `path`, which is returned. Draws without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_stages, bars = len(iteration.stages), phase_bars(iteration)
    most_phases = max(len(lane) for lane in bars)
    size_in = (float(np.clip(5.0 + 0.3 * most_phases, 10.0, 26.0)), float(np.clip(1.8 + 0.9 * num_stages, 3.0, 16.0)))
    figure = Figure(figsize=size_in, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)  # no display, whatever the user's matplotlib is set to
    axes, font = figure.add_subplot(), float(np.clip(size_in[0], 10.0, 18.0))
    unit, scale = ("s", 1.0) if iteration.time_s >= 1.0 else ("ms", 1e3)
    axes.set_xlim(0.0, iteration.time_s * scale)
    axes.set_ylim(num_stages, 0.0)  # stage 0 on top
    _fill(axes, iteration, bars, scale, font)
    axes.set_yticks(np.arange(num_stages) + 0.5, [f"stage {s}" for s in range(num_stages)])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(labelsize=font)
    axes.set_xlabel(f"Time ({unit})", fontsize=font)
    axes.set_title(f"{title} (EMULATED)" if emulated else title, fontsize=1.1 * font)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _fill(axes: Axes, iteration: IterationResult, bars: list[list[Bar]], scale: float, font: float) -> None:
    """Waiting below, phases and iteration's end on it, the critical path on top; legend and colour bar."""
    from matplotlib.collections import PolyCollection

    figure = axes.get_figure(root=True)
    assert figure is not None  # it was made for one
    waiting = [Bar(s, 0.0, iteration.time_s, _LANE, iteration.blocking_power_w) for s in range(len(bars))]
    axes.add_collection(PolyCollection(_corners(waiting, scale), facecolors=_WAITING, zorder=1))
    flat, ends = [bar for lane in bars for bar in lane], end_bars(iteration)
    powers_w = np.array([bar.power_w for bar in (*flat, *ends)])
    limits = _limits(powers_w)
    width_px = float(np.median([bar.end_s - bar.start_s for bar in flat])) / iteration.time_s * _axes_width_px(figure)
    edge = float(np.clip(width_px * 0.05, 0.15, 0.8))
    style: dict[str, Any] = {"cmap": _colours(), "clim": limits, "edgecolors": _EDGE, "linewidths": edge}
    phases = PolyCollection(_corners(flat, scale), array=powers_w[: len(flat)], zorder=2, **style)
    axes.add_collection(phases)
    axes.add_collection(
        PolyCollection(_corners(ends, scale), array=powers_w[len(flat) :], hatch="////", zorder=2, **style)
    )
    chain = [bars[stage][number] for stage, number in critical_path([stage.phases for stage in iteration.stages])]
    outline = float(np.clip(width_px * 0.12, 1.2, 2.0))
    axes.add_collection(
        PolyCollection(_corners(chain, scale), facecolors="none", edgecolors=_CRITICAL, linewidths=outline, zorder=3)
    )
    if width_px >= _LEAST_TEXT_PX:
        _number(axes, flat, scale, limits)
    _legend(axes, iteration, outline, font)
    colour_bar = figure.colorbar(phases, ax=axes, pad=0.01, fraction=0.05, aspect=25)
    colour_bar.set_label("Power of one GPU (W)", fontsize=font)
    colour_bar.ax.tick_params(labelsize=font)


def _limits(powers_w: np.ndarray) -> tuple[float, float]:
    """Ends of the colour scale: the powers' own range, at least a tenth of the highest, so that rounding has no hue."""
    high = float(powers_w.max())
    return min(float(powers_w.min()), 0.9 * high), high


def _axes_width_px(figure: Figure) -> float:
    return float(figure.get_figwidth()) * _DPI * 0.85  # what labels and colour bar leave, about


def _colours() -> Any:
    """The map without its palest end, which is left to waiting, and its darkest, on which no number can be read."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps[_COLOURS](np.linspace(0.12, 0.9, 256)))


def _corners(bars: Sequence[Bar], scale: float) -> list[np.ndarray]:
    """n arrays (4, 2), the corners of the bars in the picture's units."""
    left = np.array([bar.start_s for bar in bars]) * scale
    right = np.array([bar.end_s for bar in bars]) * scale
    top = np.array([bar.stage + bar.part[0] for bar in bars])
    bottom = np.array([bar.stage + bar.part[1] for bar in bars])
    x, y = np.stack([left, right, right, left], axis=1), np.stack([top, top, bottom, bottom], axis=1)
    return list(np.stack([x, y], axis=2))


def _number(axes: Axes, bars: Sequence[Bar], scale: float, limits: tuple[float, float]) -> None:
    middle_w = limits[0] + 0.6 * (limits[1] - limits[0])
    for bar in bars:
        axes.text(
            (bar.start_s + bar.end_s) / 2 * scale,
            bar.stage + sum(bar.part) / 2,
            bar.text,
            ha="center",
            va="center",
            fontsize=8,
            color="white" if bar.power_w > middle_w else "black",
            zorder=4,
            clip_on=True,
        )


def _legend(axes: Axes, iteration: IterationResult, outline: float, font: float) -> None:
    from matplotlib.patches import Patch

    figure = axes.get_figure(root=True)
    assert figure is not None  # it was made for one
    handles = [
        Patch(facecolor="none", edgecolor=_CRITICAL, linewidth=max(outline, 1.2), label="critical path"),
        Patch(facecolor=_WAITING, label=f"waiting, {iteration.blocking_power_w:.0f} W"),
        Patch(facecolor=_colours()(0.45), edgecolor=_EDGE, hatch="////", label="gradients and optimizer"),
        Patch(facecolor="none", edgecolor="none", label="forward above, backward below"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False, fontsize=font, handlelength=1.6)
