"""Tables, pictures and JSON of a run, on plans made here."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from energy_lightning.frontier import FrontierPoint
from energy_lightning.report import (
    FrontierPicture,
    compare,
    comparison_table,
    describe_plan,
    describe_schedules,
    draw_frontier,
    print_comparison,
    read_summary,
    write_json,
)
from energy_lightning.types import Budget, EnergyLightningError, PhasePlan, Plan, Schedule

OVERLAPPED = Plan.single_stage(
    PhasePlan("forward", 1260, True, {"fwd_attn": Schedule(8, "linear_0"), "fwd_mlp": Schedule(6, None)}),
    PhasePlan("backward", 1200),
)
PLANS = {
    "max frequency": FrontierPoint(2.0, 100.0, Plan.sequential(1410)),
    "frequency only": FrontierPoint(2.0004, 90.0, Plan.sequential(1300)),
    "kareus": FrontierPoint(1.5, 80.0, OVERLAPPED),
}


def test_changes_are_relative_to_the_baseline_and_ties_are_none() -> None:
    rows = {row.label: row for row in compare(PLANS)}
    assert (rows["kareus"].time_change, rows["kareus"].energy_change) == (-0.25, pytest.approx(-0.2))
    assert (rows["max frequency"].time_change, rows["max frequency"].energy_change) == (0.0, 0.0)
    assert rows["frequency only"].time_change == 0.0, "0.02% is within the noise"
    with pytest.raises(EnergyLightningError, match=r"no plan called 'other'.*kareus"):
        compare(PLANS, baseline="other")


def test_a_plan_in_words() -> None:
    assert describe_plan(Plan.sequential(1410)) == "1410 MHz, sequential"
    assert describe_plan(Plan.sequential()) == "clock as it is, sequential"
    assert describe_plan(OVERLAPPED) == "forward: 1260 MHz, two nanobatches\nbackward: 1200 MHz, sequential"
    assert describe_schedules(OVERLAPPED) == "fwd_attn: 8 SMs beside linear_0; fwd_mlp: 6 SMs, not overlapped"
    pipeline = Plan.from_stage_frequencies([[("forward", 1410)], [("forward", 1200), ("backward", 1300)]])
    assert describe_plan(pipeline) == "2 pipeline stages, 1200 to 1410 MHz, sequential"
    assert describe_schedules(pipeline) == ""


@pytest.mark.parametrize("width", [80, 140])
def test_emulated_tables_say_so(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    print_comparison(console, PLANS, title="One iteration", emulated=True, chosen="kareus")
    text = console.export_text()
    assert "One iteration (EMULATED)" in text
    assert "-25.0%" in text
    assert "fwd_attn: 8 SMs beside linear_0" in text
    assert len(text.splitlines()) <= 16, "readable in a narrow terminal"
    assert comparison_table(compare(PLANS), title="One iteration", emulated=False).title == "One iteration"


@pytest.mark.parametrize(
    "budget", [None, Budget("max_slowdown", 0.1), Budget("deadline", 1.8), Budget("energy_budget", 85)]
)
def test_the_picture_is_a_png(tmp_path: Path, budget: Budget | None) -> None:
    picture = FrontierPicture(
        title="t",
        frontiers={"kareus": [PLANS["kareus"], FrontierPoint(2.5, 70.0)], "frequency only": [PLANS["frequency only"]]},
        plans=PLANS,
        chosen="kareus",
        budget=budget,
        emulated=True,
    )
    path = draw_frontier(picture, tmp_path / "new" / "frontier.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_json_is_whole_and_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"loss": math.nan, "nested": [{"time_s": math.inf}, 1.5], "text": "x"})
    assert json.loads(path.read_text()) == {"loss": None, "nested": [{"time_s": None}, 1.5], "text": "x"}
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]
    assert read_summary(path)["text"] == "x"


@pytest.mark.parametrize("content", [None, "{half", "[1]"])
def test_unreadable_summaries_are_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "summary.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EnergyLightningError, match=r"summary\.json"):
        read_summary(path)


def test_a_full_disk_leaves_the_old_summary_and_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"status": "running"})

    def full(self: Path, _text: str, encoding: str) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"status": "completed"})
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]
    assert read_summary(path) == {"status": "running"}
