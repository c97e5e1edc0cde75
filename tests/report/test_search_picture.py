"""The picture of a search: points by the pass that found them, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from energy_lightning.report.search_picture import draw_search, group_findings
from energy_lightning.search import Finding


def found(*labels_and_asks: tuple[str, int | None]) -> list[Finding]:
    return [Finding(1.0 + 0.1 * i, 9.0 - 0.5 * i, label, ask) for i, (label, ask) in enumerate(labels_and_asks)]


def labels(history: Sequence[Finding]) -> dict[str, int]:
    return {label: len(findings) for label, findings in group_findings(history).items()}


def test_passes_are_groups() -> None:
    history = found(("initial sample", 0), ("total energy", 1), ("uncertainty", 1), ("total energy", 2))
    assert labels(history) == {"initial sample": 1, "total energy": 2, "uncertainty": 1}


def test_batches_of_one_kind_are_grouped_by_time() -> None:
    history = found(("initial sample", 0), ("initial sample", 3), *(("improvement", ask) for ask in (4, 5, 7, 8, 9)))
    assert labels(history) == {
        "initial sample": 2,
        "improvement, batches 1 to 2": 2,
        "improvement, batches 3 to 4": 2,
        "improvement, batch 5": 1,
    }
    assert labels(found(("random", 0), ("random", 1))) == {"random": 2}
    assert labels([]) == {}


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (4, 2, 2), (5, 2, 3), (0, 1, 1)])
def test_a_panel_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, rows: int, columns: int
) -> None:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    history = [Finding(1.0, 5.0, "initial sample", 0), Finding(1.0, 4.0, "improvement", 1), Finding(2.0, 4.5, "told")]
    path = draw_search(
        {f"part {i}": history for i in range(count)}, tmp_path / "new" / "s.png", title="t", emulated=True
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    assert figure.get_suptitle() == "t (EMULATED)"
    assert len(figure.axes) == rows * columns
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"part {i}, 3 measured" for i in range(count)]
    for axes in panels:
        texts = axes.get_legend_handles_labels()[1]
        assert texts == [
            "initial sample: 1, 0 on the front",
            "improvement: 1, 1 on the front",
            "told: 1, 0 on the front",
            "front",
        ]
