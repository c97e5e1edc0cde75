"""`energy-lightning plan`: the frontier of a big job on an emulated GPU, and the plan that serves a budget."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from energy_lightning.app.folder import COMPLETED, RUNNING, RunFolder, recorded
from energy_lightning.app.hydra_jobs import checked_arguments, exit_code, run_hydra
from energy_lightning.app.planning import PlanRequest, plan_job, refuse_unmet_budget
from energy_lightning.app.settings import check_missing
from energy_lightning.emulation import emulate_iteration
from energy_lightning.measure import save_plan
from energy_lightning.report import compare, draw_frontier
from energy_lightning.report.pipeline_picture import draw_pipeline
from energy_lightning.report.planning import (
    PlannedJob,
    frontier_picture,
    frontier_table,
    method_name,
    methods_table,
    plan_of,
    write_frontier_csv,
)
from energy_lightning.types import ConfigError

CONFIG_NAME = "plan"
RESULTS = ("summary.json", "plan.yaml", "frontier.csv", "frontier.png", "pipeline.png")
WIDTH = 100  # of tables that do not go to a terminal


def plan(arguments: Sequence[str]) -> int:
    """Plan the jobs that `arguments` (Hydra overrides and flags) describe; 0 when all of them have a plan."""
    return exit_code(run_hydra(checked_arguments(arguments, CONFIG_NAME), run_plan, CONFIG_NAME), COMPLETED)


def run_plan(config: Any, path: Path) -> str:
    """Plan what the composed configuration says, into the folder `path`; the job's status, as in the summary."""
    folder = RunFolder(path)
    return recorded(folder, lambda: _run_in(folder, config))


def _run_in(folder: RunFolder, config: Any) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if OmegaConf.is_missing(config.workload, "preset"):
        config.workload.preset = None  # said by PlanRequest, after what is wrong with the rest
    try:
        check_missing(config)
        values: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:  # KEY=${...}
        raise ConfigError(f"cannot read the settings: {' '.join(str(error).split())}") from error
    request = PlanRequest.from_values(values)
    folder.path.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:  # of an earlier run into this folder: not to be taken for this one's
        (folder.path / name).unlink(missing_ok=True)
    OmegaConf.save(config, folder.config, resolve=True)
    folder.update(status=RUNNING, error=None, emulated=True, device=request.gpu.display_name)
    folder.update(over_memory=request.over_memory or None)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    if request.over_memory:
        console.print(f"OVER MEMORY: {request.over_memory}", highlight=False, soft_wrap=True)
    with console.status("") as status:
        planned = plan_job(request, lambda method: status.update(f"planning {method_name(method)} ..."))
    _show(console, planned, folder)
    refuse_unmet_budget(planned)
    _write_chosen(planned, request, folder)
    names = "plan.yaml, frontier.png, pipeline.png, frontier.csv, summary.json"
    console.print(f"{folder.path}: {names}", highlight=False, soft_wrap=True)


def _show(console: Console, planned: PlannedJob, folder: RunFolder) -> None:
    console.print(methods_table(planned))
    console.print(frontier_table(planned))
    write_frontier_csv(planned, folder.path / "frontier.csv")
    draw_frontier(frontier_picture(planned), folder.frontier_picture)


def _write_chosen(planned: PlannedJob, request: PlanRequest, folder: RunFolder) -> None:
    """plan.yaml, pipeline.png and the summary of the chosen plan."""
    chosen = {method_name(method): point for method, point in planned.chosen.items() if point is not None}
    name = method_name(planned.method)
    point = chosen[name]
    plan = plan_of(point)
    references = {label: plan_of(other) for label, other in chosen.items()}
    run = {"gpu": f"{request.gpu.display_name} (emulated)", "num_gpus": planned.num_gpus}
    run |= {"workload": request.workload.key()}
    save_plan(folder.path / "plan.yaml", plan, run=run, budget=planned.budget, references=references)
    iteration = emulate_iteration(request.workload, request.gpu, plan)
    draw_pipeline(iteration, folder.path / "pipeline.png", title=f"{name}: {planned.picture_title}")
    folder.update(
        status=COMPLETED,
        workload=request.workload.key(),
        num_gpus=planned.num_gpus,
        budget=str(planned.budget),
        method=planned.method,
        time_s=point.time_s,
        energy_per_gpu_j=point.energy_j,
        energy_all_gpus_j=point.energy_j * planned.num_gpus,
        comparison=[row.to_dict() for row in compare(chosen)] if "max frequency" in chosen else [],
    )
