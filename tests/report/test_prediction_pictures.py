"""Pictures of predictions: what their axes, legends and titles say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energy_lightning.report import prediction_pictures as pictures
from energy_lightning.report.prediction_tables import Effect


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures instead of files."""
    figures: list[Any] = []
    monkeypatch.setattr(pictures, "_saved", lambda figure, path: figures.append(figure) or path)
    return figures


@pytest.mark.parametrize(("emulated", "kind"), [(False, "measured"), (True, "emulated")])
def test_predicted_against_measured(emulated: bool, kind: str, drawn: list[Any]) -> None:
    pictures.draw_predicted([1.0, 10.0], [1.1, 5.0], Path("p"), title="served", emulated=emulated)
    left, right = drawn[0].axes
    assert (left.get_xlabel(), left.get_ylabel()) == (f"{kind} energy (J)", "predicted energy (J)")
    assert right.get_ylabel() == f"predicted / {kind} energy - 1 (%)"
    assert right.lines[1].get_ydata() == pytest.approx([10.0, -50.0])
    assert drawn[0].get_suptitle() == ("served (EMULATED)" if emulated else "served")
    assert ("EMULATED" in [text.get_text() for text in drawn[0].texts]) == emulated


def test_shares_of_terms_stand_beside_each_rows_energy(drawn: list[Any]) -> None:
    rows = {"row 3": 4.0, "row 0": 2e4}
    pictures.draw_terms({"prefill": [1.0, 2e4], "decode": [3.0, 0.0]}, rows, Path("p"), title="t", of="measured")
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["row 3: 4.000 J", "row 0: 20.00 kJ"]
    assert axes.get_ylabel() == "each with its measured energy"
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([25.0, 100.0, 75.0, 0.0])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["prefill", "decode"]


def test_factors_say_their_range_and_whether_they_are_clear(drawn: list[Any]) -> None:
    effects = [Effect("num_layers", 1.0, 0.1, "2", "8", 4.0), Effect("tp instead of single", -1.0, 0.9, "", "", 0.5)]
    pictures.draw_factors(effects, Path("p"), title="t")
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["num_layers, 2 to 8", "tp instead of single"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([2.0, -1.0])
    assert [text.get_text() for text in axes.texts] == [" x4", " x0.5, not clear"]
