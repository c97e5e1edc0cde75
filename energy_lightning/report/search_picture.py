"""A search as a picture: what each pass found, partition by partition, and the front that came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from energy_lightning.frontier import pareto_front
from energy_lightning.search import Finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIRST = "#b0b0b0"
_PASSES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito (2008)
_MOST_ROUNDS = 4  # groups into which the batches of a search with a single kind of pass are put
_MOST_COLUMNS = 3


def group_findings(history: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Label -> findings, in the order in which the labels came up: the passes.

    A search whose batches all serve one purpose is split by time instead, into at most _MOST_ROUNDS groups of batches.
    """
    if not history:
        return {}
    first = history[0].found_by
    later = {finding.found_by for finding in history} - {first}
    groups: dict[str, list[Finding]] = {}
    if len(later) > 1:
        for finding in history:
            groups.setdefault(finding.found_by, []).append(finding)
        return groups
    rounds = sorted({f.ask for f in history if f.ask is not None and f.found_by in later}) or [0]
    per_group = math.ceil(len(rounds) / _MOST_ROUNDS)
    number = {ask: i for i, ask in enumerate(rounds)}
    for finding in history:
        label = finding.found_by
        if finding.found_by in later and finding.ask is not None:
            low = number[finding.ask] // per_group * per_group
            high = min(low + per_group, len(rounds))
            label += f", batch {low + 1}" if high == low + 1 else f", batches {low + 1} to {high}"
        groups.setdefault(label, []).append(finding)
    return groups


def draw_search(histories: Mapping[str, Sequence[Finding]], path: Path, *, title: str, emulated: bool = False) -> Path:
    """Write a panel for every partition (name -> what its search measured) as a PNG to `path`, which is returned.

    Energies are per GPU and of one execution of the partition. Draws without a display.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(1, min(_MOST_COLUMNS, math.ceil(math.sqrt(len(histories)))))
    rows = max(1, math.ceil(len(histories) / columns))
    size_in = (max(8.0, 5.0 * columns), 4.2 * rows + 0.8)
    figure = Figure(figsize=size_in, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # no display, whatever the user's matplotlib is set to
    grid = figure.subplots(rows, columns, squeeze=False)
    panels = grid.ravel()
    for axes, (name, history) in zip(panels, histories.items(), strict=False):
        _draw_panel(axes, name, history)
    for axes in panels[len(histories) :]:
        axes.set_visible(False)
    figure.suptitle(f"{title} (EMULATED)" if emulated else title, fontsize=14)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _draw_panel(axes: Axes, name: str, history: Sequence[Finding]) -> None:
    time_s, energy_j = np.array([(f.time_s, f.energy_j) for f in history]).reshape(-1, 2).T
    front = pareto_front(time_s, energy_j) if len(history) else np.empty(0, dtype=np.intp)
    best = {(time_s[i], energy_j[i]) for i in front}
    for number, (label, findings) in enumerate(group_findings(history).items()):
        colour = _FIRST if number == 0 else _PASSES[(number - 1) % len(_PASSES)]
        share = sum((f.time_s, f.energy_j) in best for f in findings)
        label = f"{label}: {len(findings)}, {share} on the front"
        points = [f.time_s * 1e3 for f in findings], [f.energy_j for f in findings]
        axes.plot(*points, "o", markersize=4.5, color=colour, label=label, zorder=3)
    axes.plot(
        time_s[front] * 1e3,
        energy_j[front],
        drawstyle="steps-post",
        color="black",
        linewidth=1.0,
        label="front",
        zorder=2,
    )
    axes.set_title(f"{name}, {len(history)} measured", fontsize=11)
    axes.set_xlabel("Time (ms)")
    axes.set_ylabel("Energy per GPU (J)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, framealpha=0.6)
