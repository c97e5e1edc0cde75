"""Tables, CSV rows and frontier picture of a planned job, on points made here."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from energy_lightning.frontier import FrontierPoint
from energy_lightning.report import FrontierPicture, draw_frontier
from energy_lightning.report.console import format_energy
from energy_lightning.report.planning import PlannedJob, csv_rows, frontier_picture, frontier_table, methods_table
from energy_lightning.types import Budget, PhasePlan, Plan


def point(time_s: float, energy_j: float, *clocks_mhz: int, nanobatched: int = 0) -> FrontierPoint:
    """A plan of a stage each clock, of which the first `nanobatched` run two nanobatches."""
    stages = tuple((PhasePlan("forward", f, i < nanobatched),) for i, f in enumerate(clocks_mhz))
    return FrontierPoint(time_s, energy_j, Plan(stages))


BASE, SLOW = point(10.0, 2000.0, 1410, 1410), point(11.0, 1500.0, 1200, 1200)
FAST, MIXED = point(8.0, 1900.0, 1410, 1410, nanobatched=2), point(9.9, 1600.0, 1110, 1410, nanobatched=1)
PLANNED = PlannedJob(
    job="a job",
    gpu="A100",
    num_gpus=16,
    budget=Budget("deadline", 10.0),
    method="kareus",
    frontiers={"max_frequency": [BASE], "perseus": [SLOW], "kareus": [FAST, MIXED]},
    chosen={"max_frequency": BASE, "perseus": None, "kareus": MIXED},
)


def text_of(table: object, width: int = 100) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_the_methods_beside_each_other() -> None:
    text = text_of(methods_table(PLANNED))
    assert "a job on 16 x A100" in text
    assert "budget deadline=10, EMULATED" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(" ") and line.strip()}
    assert " ".join(rows["kareus"]) == "kareus 9.900 s -1.0% 1600.0 J -20.0% 25.60 kJ 1110-1410 50%"
    assert " ".join(rows["perseus"][:5]) == "perseus * 11.000 s +10.0%"
    assert "* has no plan within the budget" in text
    assert " ".join(rows["max"]) == "max frequency 10.000 s 2000.0 J 32.00 kJ 1410 0%"


def test_the_frontier_marks_the_chosen_plan() -> None:
    lines = text_of(frontier_table(PLANNED)).splitlines()
    assert lines[0].strip() == "Frontier of kareus, EMULATED"
    (chosen,) = [line for line in lines if "<- chosen" in line]
    assert "9.900 s" in chosen


@pytest.mark.parametrize("width", [80, 120])
def test_no_figure_is_cut_off(width: int) -> None:
    assert "…" not in text_of(methods_table(PLANNED), width) + text_of(frontier_table(PLANNED), width)


def test_rows_of_the_csv() -> None:
    rows = list(csv_rows(PLANNED))
    assert [row["chosen"] for row in rows] == [False, False, False, True]
    assert rows[3] == {
        "method": "kareus",
        "emulated_gpu": "A100",
        "time_s": 9.9,
        "energy_per_gpu_j": 1600.0,
        "energy_all_gpus_j": 25600.0,
        "time_change": pytest.approx(-0.01),
        "energy_change": pytest.approx(-0.2),
        "lowest_clock_mhz": 1110,
        "highest_clock_mhz": 1410,
        "nanobatched_share": 0.5,
        "chosen": True,
    }


def drawn(picture: FrontierPicture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Figure:
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    draw_frontier(picture, tmp_path / "frontier.png")
    return figures[0]


def test_the_picture_is_in_seconds_and_tells_the_energy_of_all_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = drawn(frontier_picture(PLANNED), tmp_path, monkeypatch).axes[0]
    assert "EMULATED" in axes.get_title()
    assert axes.get_xlabel() == "Time of one iteration (s)"
    assert axes.get_ylabel() == "Energy of one iteration per GPU (J)"
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["perseus frontier", "kareus frontier", "max frequency", "chosen: kareus", "budget deadline=10"]
    (total,) = axes.child_axes
    assert total.get_ylabel() == "all 16 GPUs (kJ)"
    assert total.get_ylim() == pytest.approx([16e-3 * limit for limit in axes.get_ylim()])


def test_a_budget_far_away_does_not_squeeze_the_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = replace(frontier_picture(PLANNED), budget=Budget("deadline", 500.0))
    axes = drawn(far, tmp_path, monkeypatch).axes[0]
    assert axes.get_xlim()[1] < 15.0
    assert "budget deadline=500 (outside)" in axes.get_legend_handles_labels()[1]


def test_a_job_without_a_plan_for_the_budget_has_a_picture_too(tmp_path: Path) -> None:
    missed = replace(PLANNED, chosen=dict.fromkeys(PLANNED.frontiers))
    assert frontier_picture(missed).chosen is None
    assert draw_frontier(frontier_picture(missed), tmp_path / "f.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("energy_j", "text"),
    [(99.99, "99.990 J"), (9999.9, "9999.9 J"), (1e4, "10.00 kJ"), (1.5e6, "1500.00 kJ"), (2.5e7, "25.00 MJ")],
)
def test_energies_keep_short(energy_j: float, text: str) -> None:
    assert format_energy(energy_j) == text
