"""What a run found, gathered while the strategy is still up, and the report made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console

import energy_lightning
from energy_lightning.app.folder import RunFolder
from energy_lightning.device import has_emulated_figures
from energy_lightning.frontier import FrontierPoint
from energy_lightning.report import ComparisonRow, FrontierPicture, draw_frontier, draw_search, print_comparison
from energy_lightning.search import Finding
from energy_lightning.types import Budget, DeviceMode, Plan

CHOSEN = "kareus"
EMULATED_SUFFIX = " (emulated)"  # tables and pictures say it in their own way
_ENERGY_METRICS = ("total_energy_j", "total_time_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What a run found. Times are of one iteration, energies of one iteration per GPU.

    Attributes:
        device: name of the GPU; None where nothing was accounted.
        emulated: whether its numbers are emulated.
        mode: what the GPU permitted at the end ("full", "measure-only", "time-only"); None without a GPU.
        workload: plain values of the job's shape, or None.
        rehearsed: the workload is not the trained model's own.
        budget: the budget.
        plan: the plan in use at the end, or None.
        frontiers: label -> points by rising time; empty where nothing was profiled.
        references: label -> plan to compare with.
        totals: total_energy_j (all GPUs) and total_time_s of the training, where they were accounted.
        num_steps: optimizer steps taken.
        findings: partition -> what its search measured, empty where nothing was searched.
        collectives: backends with SM counts asked and granted; empty for a single process.
    """

    device: str | None
    emulated: bool
    mode: DeviceMode | None
    workload: Mapping[str, Any] | None
    rehearsed: bool
    budget: Budget
    plan: Plan | None
    frontiers: Mapping[str, Sequence[FrontierPoint]]
    references: Mapping[str, FrontierPoint]
    totals: Mapping[str, float]
    num_steps: int
    findings: Mapping[str, Sequence[Finding]]
    collectives: Sequence[Mapping[str, Any]] = ()

    @property
    def job_name(self) -> str:
        """The workload's model, with its parallelism."""
        if self.workload is None:
            return "this job"
        name = "rehearsed " if self.rehearsed else ""
        name += str(self.workload["model"]["name"])
        sizes = {"TP": "tensor_parallel", "CP": "context_parallel", "PP": "pipeline_parallel", "DP": "data_parallel"}
        return " ".join(
            [name, *(f"{short}{self.workload[key]}" for short, key in sizes.items() if self.workload[key] > 1)]
        )


class OutcomeRecorder(Callback):
    """Gathers the outcome at the end of training, before the strategy gives its device back."""

    outcome: RunOutcome | None = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read strategy and callbacks."""
        strategy: Any = trainer.strategy
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
        optimizers: list[Any] = [c for c in callbacks if isinstance(c, energy_lightning.FrontierOptimizer)]
        found = optimizers[0].outcome if optimizers else None
        device, workload = strategy.device, strategy.workload
        self.outcome = RunOutcome(
            device=None if device is None else device.name.removesuffix(EMULATED_SUFFIX),
            emulated=device is not None and has_emulated_figures(device),
            mode=None if device is None else device.mode,
            workload=None if workload is None else workload.key(),
            rehearsed=strategy.rehearsing,
            budget=strategy.budget,
            plan=strategy.applied_plan,
            frontiers={} if found is None else found.frontiers,
            references={} if found is None else found.references,
            totals=_energy_totals(trainer.callback_metrics),
            num_steps=trainer.global_step,
            findings=optimizers[0].findings if optimizers else {},
            collectives=strategy.collectives_report(),
        )


def _energy_totals(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if name.removeprefix("emulated_").removeprefix("energy/") in _ENERGY_METRICS
    }


def report(
    outcome: RunOutcome,
    folder: RunFolder,
    *,
    before: Mapping[str, float],
    after: Mapping[str, float],
    console: Console | None = None,
) -> None:
    """Print the tables, draw frontier.png and complete summary.json."""
    console = console or Console()
    rows: list[ComparisonRow] = []
    if outcome.references:
        title = f"One iteration of {outcome.job_name} on {outcome.device}, budget {outcome.budget}"
        rows = print_comparison(console, outcome.references, title=title, emulated=outcome.emulated, chosen=CHOSEN)
        draw_frontier(_picture(outcome), folder.frontier_picture)
        console.print(f"Frontier: {folder.frontier_picture}")
    if outcome.findings:
        name = f"Search of {outcome.job_name} on {outcome.device}"
        draw_search(outcome.findings, folder.search_picture, title=name, emulated=outcome.emulated)
    for name, value in after.items():
        console.print(f"Validation {name}: " + (f"{before[name]:.4f} -> " if name in before else "") + f"{value:.4f}")
    folder.update(
        emulated=outcome.emulated,
        device=outcome.device,
        mode=outcome.mode,
        workload=outcome.workload,
        rehearsed=outcome.rehearsed,
        budget=str(outcome.budget),
        plan=None if outcome.plan is None else outcome.plan.to_dict(),
        comparison=[row.to_dict() for row in rows],
        totals=dict(outcome.totals),
        num_steps=outcome.num_steps,
        collectives=list(outcome.collectives),
        validation_before=dict(before),
        validation_after=dict(after),
    )


def _picture(outcome: RunOutcome) -> FrontierPicture:
    return FrontierPicture(
        plans=outcome.references,
        chosen=CHOSEN,
        title=f"{outcome.job_name} on {outcome.device}",
        frontiers=outcome.frontiers,
        budget=outcome.budget,
        emulated=outcome.emulated,
    )
