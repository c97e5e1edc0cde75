"""What `energy-lightning plan` shows: methods beside each other, the frontier with the chosen plan, frontier.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from energy_lightning.frontier import FrontierPoint
from energy_lightning.report.comparison import clocks_mhz, nanobatched_share, relative_change
from energy_lightning.report.console import EMULATED, format_change, format_energy, format_time
from energy_lightning.report.pictures import FrontierPicture
from energy_lightning.types import Budget, Plan

BASELINE_METHOD = "max_frequency"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A planned job. Times are of one iteration, energies of one iteration per GPU (the mean over the job's GPUs).

    Attributes:
        job: names the job, for people.
        gpu: names the GPU model.
        num_gpus: GPUs of the whole job.
        budget: what the plans are chosen for.
        method: whose plan is used.
        frontiers: method -> plans by rising time, that of BASELINE_METHOD and of `method` among them.
        chosen: method -> its plan for the budget, or None where it has none.
    """

    job: str
    gpu: str
    num_gpus: int
    budget: Budget
    method: str
    frontiers: Mapping[str, Sequence[FrontierPoint]]
    chosen: Mapping[str, FrontierPoint | None]

    @property
    def baseline(self) -> FrontierPoint:
        """Plain execution at the highest clock."""
        return self.frontiers[BASELINE_METHOD][0]

    @property
    def title(self) -> str:
        """Job and GPUs."""
        return f"{self.job} on {self.num_gpus} x {self.gpu}"

    @property
    def picture_title(self) -> str:
        """Job and GPUs in two lines."""
        return f"{self.job}\non {self.num_gpus} x {self.gpu}"


def method_name(method: str) -> str:
    """As people read it: words instead of underscores."""
    return method.replace("_", " ")


def methods_table(planned: PlannedJob) -> Table:
    """A row a method: its plan for the budget against plain execution at the highest clock."""
    table = _table(f"{planned.title}\nPlans for the budget {planned.budget}, {EMULATED}", "Method")
    for method, points in planned.frontiers.items():
        point, label = planned.chosen[method], method_name(method)
        if point is None:
            table.add_row(f"{label} *", *_cells(points[0], planned), style="dim")
        else:
            table.add_row(label, *_cells(point, planned), style="bold" if method == planned.method else None)
    if None in planned.chosen.values():
        table.caption = "* has no plan within the budget; this is its fastest"
    return table


def frontier_table(planned: PlannedJob) -> Table:
    """A row a plan of the chosen method, the plan for the budget marked."""
    table = _table(f"Frontier of {method_name(planned.method)}, {EMULATED}", "Plan")
    chosen = planned.chosen[planned.method]
    for number, point in enumerate(planned.frontiers[planned.method], 1):
        mark = point == chosen
        label = f"{number} <- chosen" if mark else str(number)
        table.add_row(label, *_cells(point, planned), style="bold" if mark else None)
    return table


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(f"\n{first}")
    for heading in ("\nTime", "", "Energy\nper GPU", "", "Energy\nall GPUs", "Clocks\nMHz", "Nano-\nbatched"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(point: FrontierPoint, planned: PlannedJob) -> list[str]:
    base, plan = planned.baseline, plan_of(point)
    clocks = sorted({clocks_mhz(plan)[0], clocks_mhz(plan)[-1]})
    return [
        format_time(point.time_s),
        format_change(relative_change(point.time_s, base.time_s)),
        format_energy(point.energy_j),
        format_change(relative_change(point.energy_j, base.energy_j)),
        format_energy(point.energy_j * planned.num_gpus),
        "-".join(map(str, clocks)),
        f"{nanobatched_share(plan):.0%}",
    ]


def plan_of(point: FrontierPoint) -> Plan:
    """The plan that a point of a PlannedJob stands for."""
    assert isinstance(point.choice, Plan)  # that is what was planned
    return point.choice


def frontier_picture(planned: PlannedJob) -> FrontierPicture:
    """All frontiers, the budget and the chosen plan."""
    chosen = planned.chosen[planned.method]
    plans = {method_name(BASELINE_METHOD): planned.baseline}
    if chosen is not None:
        plans[method_name(planned.method)] = chosen
    return FrontierPicture(
        title=planned.picture_title,
        frontiers={method_name(m): points for m, points in planned.frontiers.items() if m != BASELINE_METHOD},
        plans=plans,
        chosen=None if chosen is None else method_name(planned.method),
        budget=planned.budget,
        num_gpus=planned.num_gpus,
        emulated=True,
    )


def write_frontier_csv(planned: PlannedJob, path: Path) -> Path:
    """Write every plan of every method as a row; the columns' units are in their names. Returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = list(csv_rows(planned))
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def csv_rows(planned: PlannedJob) -> Iterator[dict[str, Any]]:
    """The rows of frontier.csv; changes are fractions over plain execution at the highest clock."""
    base = planned.baseline
    for method, points in planned.frontiers.items():
        for point in points:
            plan, clocks = plan_of(point), clocks_mhz(plan_of(point))
            yield {
                "method": method,
                "emulated_gpu": planned.gpu,
                "time_s": point.time_s,
                "energy_per_gpu_j": point.energy_j,
                "energy_all_gpus_j": point.energy_j * planned.num_gpus,
                "time_change": point.time_s / base.time_s - 1.0,
                "energy_change": point.energy_j / base.energy_j - 1.0,
                "lowest_clock_mhz": clocks[0],
                "highest_clock_mhz": clocks[-1],
                "nanobatched_share": nanobatched_share(plan),
                "chosen": method == planned.method and point == planned.chosen[method],
            }
