"""`energy-lightning recurring`: the state of a recurring job's store, as a table, a picture and CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from energy_lightning.app.folder import COMPLETED
from energy_lightning.app.hydra_jobs import checked_arguments, exit_code, run_hydra
from energy_lightning.app.predict_job import Job, run_job
from energy_lightning.recurring import JointOptimizer, TargetNeverReachedError, savings
from energy_lightning.report.recurring import beliefs_table, draw_recurring, savings_line
from energy_lightning.types import ConfigError

CONFIG_NAME = "recurring"


def recurring(arguments: Sequence[str]) -> int:
    """Show the store that `arguments` (Hydra overrides and flags) name; the exit code."""
    return exit_code(run_hydra(checked_arguments(arguments, CONFIG_NAME), run_recurring, CONFIG_NAME), COMPLETED)


def run_recurring(config: Any, path: Path) -> str:
    """Show as the composed configuration says, into the folder `path`; the job's status."""
    return run_job(config, path, _show)


def _show(job: Job) -> None:
    store, limit_w = Path(str(job.values["store"])), _limit(job.values["power_limit_w"])
    optimizer = JointOptimizer.of_store(store)
    runs, beliefs, emulated = optimizer.runs(), optimizer.beliefs(power_limit_w=limit_w), optimizer.emulated
    try:
        best: int | None = optimizer.best(power_limit_w=limit_w)
    except TargetNeverReachedError as error:
        best = None
        job.say(f"warning: {error}")
    title, default = f"Recurring job {store.name}: {len(runs)} runs", optimizer.default
    saved = savings(runs, default, optimizer.cost)
    job.say(beliefs_table(beliefs, title=title, default=default, best=best, emulated=emulated))
    job.say(savings_line(saved, default))
    folder = job.folder.path
    draw_recurring(
        beliefs,
        runs,
        folder / "recurring.png",
        cost=optimizer.cost,
        saved=saved,
        title=title,
        default=default,
        emulated=emulated,
    )
    files = _write_tables(folder, optimizer, emulated=emulated, best=best, limit_w=limit_w)
    job.complete(
        [*files, "recurring.png"],
        store=str(store),
        emulated=emulated,
        settings=asdict(optimizer.settings),
        best=best,
        num_runs=len(runs),
        savings=None if saved is None else asdict(saved),
    )


def _write_tables(
    folder: Path, optimizer: JointOptimizer, *, emulated: bool, best: int | None, limit_w: float | None
) -> list[str]:
    costs = [
        None if run.energy_j is None or run.time_s is None else optimizer.cost(run.energy_j, run.time_s)
        for run in optimizer.runs()
    ]
    tables = {
        "beliefs.csv": [
            {
                **asdict(one),
                "is_default": one.batch_size == optimizer.default,
                "is_best": one.batch_size == best,
                "emulated": emulated,
            }
            for one in optimizer.beliefs(power_limit_w=limit_w)
        ],
        "profiles.csv": [
            {
                "batch_size": size,
                **asdict(one),
                "is_best": one.power_limit_w == optimizer.limit_of(size),
                "emulated": emulated,
            }
            for size, sweep in optimizer.profiles().items()
            for one in sweep
        ],
        "runs.csv": [
            {**asdict(run), "cost_j": cost, "emulated": emulated}
            for run, cost in zip(optimizer.runs(), costs, strict=True)
        ],
    }
    for name, rows in tables.items():
        _write_csv(folder / name, rows)
    return [name for name, rows in tables.items() if rows]


def _write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    listed = list(rows)
    if not listed:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)


def _limit(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0.0:
        raise ConfigError(f"power_limit_w must be a limit in W or null, got {value!r}")
    return float(value)
