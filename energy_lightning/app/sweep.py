"""`energy-lightning sweep`: emulated training runs over architectures, the law of their energy, what drives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from energy_lightning.app.fit import write_fit
from energy_lightning.app.folder import COMPLETED
from energy_lightning.app.hydra_jobs import checked_arguments, exit_code, run_hydra
from energy_lightning.app.predict_job import Job, run_job
from energy_lightning.app.predict_model import TRAINING, fitted_model
from energy_lightning.app.sweep_factors import effects_of
from energy_lightning.app.sweep_runs import FACTORS, RunFile, design, emulate_all
from energy_lightning.emulation import GPU
from energy_lightning.predict import PredictionError
from energy_lightning.report.prediction_pictures import draw_factors
from energy_lightning.report.prediction_tables import Effect, effects_table

CONFIG_NAME = "sweep"
_LAW = {"law": "roofline", "correction": "auto"}
_MOST_SHOWN = 5


def sweep(arguments: Sequence[str]) -> int:
    """Sweep as `arguments` (Hydra overrides and flags) say; 0 when every job has its table and law."""
    return exit_code(run_hydra(checked_arguments(arguments, CONFIG_NAME), run_sweep, CONFIG_NAME), COMPLETED)


def run_sweep(config: Any, path: Path) -> str:
    """Sweep as the composed configuration says, in the folder `path`; the job's status."""
    return run_job(config, path, _sweep)


def _sweep(job: Job) -> None:
    import pandas

    values, folder = job.values, job.folder.path
    gpu = GPU.load(values["device"]["gpu"])
    runs = design(values)
    with job.status() as update:
        known = RunFile(folder / "runs.jsonl")
        rows, failures, before = emulate_all(
            runs, gpu, values["dtype"], known, lambda n: update(f"emulated {n} of {len(runs)} runs")
        )
    job.say(f"{len(runs)} runs on {gpu.display_name} (EMULATED): {before} known before, {len(failures)} failed")
    pandas.DataFrame(failures, columns=[*FACTORS, "tokens", "reason"]).to_csv(folder / "failures.csv", index=False)
    reasons = Counter(failure["reason"] for failure in failures).most_common()
    for reason, count in reasons[:_MOST_SHOWN]:
        job.say(f"failed, {count} runs: {reason}")
    if len(reasons) > _MOST_SHOWN:
        job.say(f"{len(reasons) - _MOST_SHOWN} more reasons in failures.csv")
    if not rows:
        raise PredictionError("every run failed; failures.csv has the reasons")
    table = pandas.DataFrame(rows)
    table.to_csv(folder / "runs.csv", index=False)
    name = f"sweep on {gpu.display_name}"
    with job.telling_warnings() as warned:
        model = fitted_model(TRAINING, table, table["energy_j"].to_numpy(), _LAW, emulated=True)
    files, accuracy = write_fit(job, model, name)
    effects, r2 = effects_of(table, table["energy_j"], FACTORS)
    files += _show(job, effects, r2, name)
    job.complete(
        ["runs.csv", "runs.jsonl", "failures.csv", *files],
        emulated=True,
        device=gpu.display_name,
        runs=len(rows),
        failed=len(failures),
        known_before=before,
        factors={effect.name: effect.times for effect in effects},
        warnings=warned,
        **accuracy,
    )


def _show(job: Job, effects: Sequence[Effect], r2: float, name: str) -> list[str]:
    """Print and draw the effects; names of the files."""
    if not effects:
        job.say("factors: too few runs to tell, or nothing varies")
        return []
    job.say(effects_table(effects, title="Energy of a run over all GPUs, by factor, the others held", emulated=True))
    first = effects[0]
    span = f" from {first.lowest} to {first.highest}" if first.lowest else ""
    job.say(f"{first.name} drives energy most:{span} x{first.times:.3g} (main effects explain R2 {r2:.2f})")
    draw_factors({e.name: e.times for e in effects}, job.folder.path / "factors.png", title=name, emulated=True)
    return ["factors.png"]
