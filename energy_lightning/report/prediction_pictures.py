"""Predictions of energy as pictures: predicted against measured, residuals, term shares, factors of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from energy_lightning.report.console import format_energy
from energy_lightning.report.prediction_tables import Effect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#f0e442", "#999999")  # Okabe and Ito
_EMULATED = "EMULATED"


def draw_predicted(
    energy_j: ArrayLike, predicted_j: ArrayLike, path: Path, *, title: str, emulated: bool = False
) -> Path:
    """Predicted against measured energy, and the residuals, as a PNG; energies (n,) in joules. Returns `path`."""
    measured, predicted = (np.asarray(values, dtype=np.float64) for values in (energy_j, predicted_j))
    figure, kind = _figure(title, emulated, (11.0, 4.6)), "emulated" if emulated else "measured"
    left, right = figure.subplots(1, 2)
    ends = [min(measured.min(), predicted.min()), max(measured.max(), predicted.max())]
    left.plot(ends, ends, color="0.5", linewidth=1, label="equal")
    left.plot(measured, predicted, "o", markersize=4, color=_COLOURS[0], alpha=0.7)
    left.set(xscale="log", yscale="log", xlabel=f"{kind} energy (J)", ylabel="predicted energy (J)")
    left.legend(fontsize=8)
    right.axhline(0.0, color="0.5", linewidth=1)
    right.plot(predicted, 100.0 * (predicted / measured - 1.0), "o", markersize=4, color=_COLOURS[1], alpha=0.7)
    right.set(xscale="log", xlabel="predicted energy (J)", ylabel=f"predicted / {kind} energy - 1 (%)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return _saved(figure, path)


def draw_terms(
    terms: Mapping[str, ArrayLike],
    rows: Mapping[str, float],
    path: Path,
    *,
    title: str,
    of: str = "predicted",
    emulated: bool = False,
) -> Path:
    """Share of each term in each row's prediction as stacked bars, a PNG. Returns `path`.

    Args:
        terms: name -> joules, (n,).
        rows: name of each row -> its energy in joules, shown beside it. of: what that is: measured or predicted.
    """
    labels = [f"{name}: {format_energy(energy_j)}" for name, energy_j in rows.items()]
    values = {name: np.asarray(joules, dtype=np.float64) for name, joules in terms.items()}
    total = np.sum(list(values.values()), axis=0)
    figure = _figure(title, emulated, (9.0, 1.4 + 0.28 * max(len(labels), 4)))
    axes, start = figure.subplots(), np.zeros(len(labels))
    for number, (name, joules) in enumerate(values.items()):
        share = 100.0 * joules / total
        hatch = "//" if number >= len(_COLOURS) else None
        axes.barh(range(len(labels)), share, left=start, label=name, color=_COLOURS[number % 8], hatch=hatch)
        start = start + share
    axes.set(yticks=range(len(labels)), yticklabels=labels, xlabel="share of the predicted energy (%)", xlim=(0, 100))
    axes.set_ylabel(f"each with its {of} energy")
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="energy", title_fontsize=7)
    return _saved(figure, path)


def draw_factors(effects: Sequence[Effect], path: Path, *, title: str, emulated: bool = False) -> Path:
    """By how much each factor multiplies energy over its range, as bars; pale: not clear. A PNG. Returns `path`."""
    figure = _figure(title, emulated, (8.0, 1.6 + 0.35 * len(effects)))
    axes = figure.subplots()
    change = np.log2([effect.times for effect in effects])
    bars = axes.barh(range(len(effects)), change, color=[_COLOURS[1] if value > 0 else _COLOURS[0] for value in change])
    for row, (effect, bar) in enumerate(zip(effects, bars, strict=True)):
        bar.set_alpha(1.0 if effect.clear else 0.4)
        text = f" x{effect.times:.3g}" if effect.clear else f" x{effect.times:.3g}, not clear"
        axes.annotate(text, (max(change[row], 0.0), row), va="center", fontsize=8)
    labels = [f"{e.name}, {e.lowest} to {e.highest}" if e.lowest else e.name for e in effects]
    axes.set(yticks=range(len(effects)), yticklabels=labels)
    axes.axvline(0.0, color="0.5", linewidth=1)
    axes.set_xlabel("doublings of energy from the factor's lowest to its highest value, the others held")
    axes.margins(x=0.2)
    axes.invert_yaxis()
    return _saved(figure, path)


def _figure(title: str, emulated: bool, size_in: tuple[float, float]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=size_in, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # no display, whatever the user's matplotlib is set to
    figure.suptitle(f"{title} ({_EMULATED})" if emulated else title)
    if emulated:
        figure.text(0.5, 0.5, _EMULATED, fontsize=60, color="0.5", alpha=0.12, ha="center", va="center")
    return cast("Figure", figure)


def _saved(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path
