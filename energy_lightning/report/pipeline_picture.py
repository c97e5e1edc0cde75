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
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

_DPI = 120
_LANE, _FORWARD, _BACKWARD, _END = (0.06, 0.94), (0.06, 0.66), (0.34, 0.94), (0.06, 0.94)  # parts of a lane's height
_WAITING, _CRITICAL, _EDGE = "#e9edf2", "#08306b", "#ffffff"
_PX_PER_DIGIT = 10.0  # a phase with less carries no microbatch number
_COLOURS, _HATCH = "YlOrRd", "////"


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


@dataclass(frozen=True, slots=True)
class _Canvas:
    """The axes and how to draw on them.

    per_s: the picture's time unit; px_per_s: about that many pixels a second; limits_w: ends of the colour scale.
    """

    axes: Axes
    per_s: float
    px_per_s: float
    limits_w: tuple[float, float]
    font: float


def draw_pipeline(iteration: IterationResult, path: Path, *, title: str, emulated: bool = True) -> Path:
    """Write one iteration as a PNG to `path`, which is returned. Draws without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_stages, most_phases = len(iteration.stages), max(len(stage.phases) for stage in iteration.stages)
    size_in = (float(np.clip(5.0 + 0.3 * most_phases, 10.0, 26.0)), float(np.clip(1.8 + 0.9 * num_stages, 3.0, 16.0)))
    figure = Figure(figsize=size_in, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)  # no display, whatever the user's matplotlib is set to
    axes, font = figure.add_subplot(), float(np.clip(size_in[0], 10.0, 18.0))
    unit, per_s = ("s", 1.0) if iteration.time_s >= 1.0 else ("ms", 1e3)
    axes.set_xlim(0.0, iteration.time_s * per_s)
    axes.set_ylim(num_stages, 0.0)  # stage 0 on top
    px_per_s = size_in[0] * _DPI * 0.85 / iteration.time_s  # what labels and colour bar leave, about
    lanes, ends = phase_bars(iteration), end_bars(iteration)
    limits_w = _limits([bar.power_w for bar in (*ends, *(bar for lane in lanes for bar in lane))])
    phases = _fill(_Canvas(axes, per_s, px_per_s, limits_w, font), iteration, lanes, ends)
    colour_bar = figure.colorbar(phases, ax=axes, pad=0.01, fraction=0.05, aspect=25)
    colour_bar.set_label("Power of one GPU (W)", fontsize=font)
    colour_bar.ax.tick_params(labelsize=font)
    figure.legend(handles=_legend(iteration), loc="outside lower left", ncols=4, frameon=False, fontsize=font)
    axes.set_yticks(np.arange(num_stages) + 0.5, [f"stage {s}" for s in range(num_stages)])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(labelsize=font)
    axes.set_xlabel(f"Time ({unit})", fontsize=font)
    axes.set_title(f"{title} (EMULATED)" if emulated else title, fontsize=1.1 * font)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _fill(canvas: _Canvas, iteration: IterationResult, lanes: list[list[Bar]], ends: list[Bar]) -> PolyCollection:
    """Waiting below, phases and iteration's end on it, the critical path on top. The phases, for the colour bar."""
    from matplotlib.collections import PolyCollection

    def add(bars: Sequence[Bar], **style: Any) -> PolyCollection:
        added = PolyCollection(_corners(bars, canvas.per_s), **style)
        canvas.axes.add_collection(added)
        return added

    flat = [bar for lane in lanes for bar in lane]
    width_px = float(np.median([bar.end_s - bar.start_s for bar in flat])) * canvas.px_per_s
    style = {"cmap": _colours(), "clim": canvas.limits_w, "edgecolors": _EDGE, "zorder": 2}
    style["linewidths"] = float(np.clip(width_px * 0.05, 0.15, 0.8))
    waiting = [Bar(s, 0.0, iteration.time_s, _LANE, iteration.blocking_power_w) for s in range(len(lanes))]
    add(waiting, facecolors=_WAITING, zorder=1)
    phases = add(flat, array=[bar.power_w for bar in flat], **style)
    add(ends, array=[bar.power_w for bar in ends], hatch=_HATCH, **style)
    chain = [lanes[stage][number] for stage, number in critical_path([stage.phases for stage in iteration.stages])]
    outline = float(np.clip(width_px * 0.12, 1.2, 2.0))
    add(chain, facecolors="none", edgecolors=_CRITICAL, linewidths=outline, zorder=3)
    if width_px >= _PX_PER_DIGIT * max(len(bar.text) for bar in flat):
        _number(canvas, flat)
    return phases


def _limits(powers_w: Sequence[float]) -> tuple[float, float]:
    """Ends of the colour scale: the powers' own range, at least a tenth of the highest, so that rounding has no hue."""
    return min(*powers_w, 0.9 * max(powers_w)), max(powers_w)


def _colours() -> Any:
    """The map without its palest end, which is left to waiting, and its darkest, on which no number can be read."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps[_COLOURS](np.linspace(0.12, 0.9, 256)))


def _corners(bars: Sequence[Bar], per_s: float) -> list[np.ndarray]:
    """n arrays (4, 2), the corners of the bars in the picture's units."""
    left, right = np.array([(bar.start_s, bar.end_s) for bar in bars]).reshape(-1, 2).T * per_s
    top, bottom = np.array([(bar.stage + bar.part[0], bar.stage + bar.part[1]) for bar in bars]).reshape(-1, 2).T
    x, y = np.stack([left, right, right, left], axis=1), np.stack([top, top, bottom, bottom], axis=1)
    return list(np.stack([x, y], axis=2))


def _number(canvas: _Canvas, bars: Sequence[Bar]) -> None:
    """Each bar's microbatch in its middle, where the bar is wide enough."""
    low_w, high_w = canvas.limits_w
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "zorder": 4, "clip_on": True}
    for bar in bars:
        if (bar.end_s - bar.start_s) * canvas.px_per_s < _PX_PER_DIGIT * len(bar.text):
            continue
        colour = "white" if bar.power_w > low_w + 0.6 * (high_w - low_w) else "black"
        x, y = (bar.start_s + bar.end_s) / 2 * canvas.per_s, bar.stage + sum(bar.part) / 2
        canvas.axes.text(x, y, bar.text, color=colour, **style)


def _legend(iteration: IterationResult) -> list[Patch]:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor="none", edgecolor=_CRITICAL, linewidth=2.0, label="critical path"),
        Patch(facecolor=_WAITING, label=f"waiting, {iteration.blocking_power_w:.0f} W"),
        Patch(facecolor=_colours()(0.45), edgecolor=_EDGE, hatch=_HATCH, label="gradients and optimizer"),
        Patch(facecolor="none", edgecolor="none", label="forward above, backward below"),
    ]
