"""`energy-lightning sweep`: runs over many settings, measured or emulated, the law of their energy, what drives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from energy_lightning.app.fit import write_fit
from energy_lightning.app.folder import COMPLETED
from energy_lightning.app.hydra_jobs import checked_arguments, exit_code, run_hydra
from energy_lightning.app.predict_job import Job, run_job, terminated_as_interrupted
from energy_lightning.app.predict_model import TRAINING, fitted_model
from energy_lightning.app.settings import checked_switch
from energy_lightning.app.sweep_factors import effects_of
from energy_lightning.app.sweep_measured import (
    Machine,
    machine_for,
    measure_training,
    measured_key,
    measuring_options,
    with_baselines,
    with_speedups,
)
from energy_lightning.app.sweep_runs import (
    FACTORS,
    Outcome,
    RunFile,
    Settings,
    alone_with,
    collect,
    design,
    emulated_outcomes,
    key_of,
)
from energy_lightning.emulation import GPU
from energy_lightning.predict import PredictionError
from energy_lightning.report.prediction_pictures import draw_factors
from energy_lightning.report.prediction_tables import Effect, effects_table
from energy_lightning.types import ConfigError

CONFIG_NAME = "sweep"
_LAW = {"law": "roofline", "correction": "auto"}
_MOST_SHOWN = 5
_RESTLESS = 0.1  # spread of the energy between a run's windows
_KINDS = ("training", "inference")


def sweep(arguments: Sequence[str]) -> int:
    """Sweep as `arguments` (Hydra overrides and flags) say; 0 when every job has its table and law."""
    kind, rest = _split_kind(arguments)
    if kind == "inference":
        from energy_lightning.app.sweep_inference import CONFIG_NAME as NAME
        from energy_lightning.app.sweep_inference import run_inference_sweep

        name, job = NAME, run_inference_sweep
    else:
        name, job = CONFIG_NAME, run_sweep
    checked = checked_arguments(rest, name)
    with terminated_as_interrupted():
        return exit_code(run_hydra(checked, job, name), COMPLETED)


def _split_kind(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The value of kind=... (training without one), and the other arguments."""
    given = [argument.removeprefix("kind=") for argument in arguments if argument.startswith("kind=")]
    kind = given[-1] if given else _KINDS[0]
    if kind not in _KINDS:
        raise ConfigError(f"unknown kind={kind}; choose one of {', '.join(_KINDS)}")
    return kind, [argument for argument in arguments if not argument.startswith("kind=")]


def run_sweep(config: Any, path: Path) -> str:
    """Sweep as the composed configuration says, in the folder `path`; the job's status."""
    return run_job(config, path, _sweep)


def _sweep(job: Job) -> None:
    import pandas

    values, folder = job.values, job.folder.path
    machine = machine_for(values["device"]["name"])
    rows, failures, before = _rows(job, machine)
    name, emulated = _device_name(machine, values), machine is None or machine.emulated
    say_how_it_went(job, name, rows, failures, before, emulated=emulated)
    pandas.DataFrame(failures, columns=[*FACTORS, "tokens", "reason"]).to_csv(folder / "failures.csv", index=False)
    if not rows:
        raise PredictionError("every run failed; failures.csv has the reasons")
    table = pandas.DataFrame(rows)
    table.to_csv(folder / "runs.csv", index=False)
    known = table.dropna(axis="columns") if machine is not None else table
    if "speedup" in table and "speedup" not in known:
        job.say("note: some speed-ups are unknown, as their run on one GPU failed: the law is fitted without any")
    with job.telling_warnings(units_known=True) as warned:
        model = fitted_model(TRAINING, known, table["energy_j"].to_numpy(), _LAW, emulated=emulated)
    files, accuracy = write_fit(job, model, f"sweep on {name}")
    effects, r2 = effects_of(table, table["energy_j"], FACTORS)
    files += _show(job, effects, r2, f"sweep on {name}", emulated=emulated)
    job.complete(
        ["runs.csv", "runs.jsonl", "failures.csv", *files],
        emulated=emulated,
        device=name,
        runs=len(rows),
        failed=len(failures),
        known_before=before,
        factors={effect.name: effect.times for effect in effects},
        warnings=warned,
        **accuracy,
    )


def _rows(job: Job, machine: Machine | None) -> tuple[list[Settings], list[Settings], int]:
    values = job.values
    runs = design(values)
    if machine is None:
        gpu = GPU.load(values["device"]["gpu"])
        keyed = {key_of(run, gpu, values["dtype"]): run for run in runs}

        def produce(missing: list[tuple[str, Settings]]) -> Iterable[Outcome]:
            return emulated_outcomes(missing, gpu, values["dtype"])

    else:
        options = measuring_options(values)
        runs = with_baselines(runs) if checked_switch(values, "baselines") else runs
        keyed = {measured_key(run, machine, options): run for run in runs}

        def produce(missing: list[tuple[str, Settings]]) -> Iterable[Outcome]:
            return measure_training(missing, machine, values, options)

    doing = "emulated" if machine is None else "measured"
    path, retry = job.folder.path / "runs.jsonl", checked_switch(values, "retry_failed")
    with job.status() as update, alone_with(path):
        found = collect(keyed, RunFile(path, retry), produce, lambda n: update(f"{doing} {n} of {len(keyed)} runs"))
    if machine is None:
        return found
    return with_speedups(found[0]), *found[1:]


def _device_name(machine: Machine | None, values: dict[str, Any]) -> str:
    return GPU.load(values["device"]["gpu"]).display_name if machine is None else machine.gpu_model


def say_how_it_went(
    job: Job, device: str, rows: Sequence[Settings], failures: Sequence[Settings], before: int, *, emulated: bool
) -> None:
    """One line for the sweep, one for each of the commonest reasons of failures, one where windows differ much."""
    label = "EMULATED" if emulated else "measured"
    total = len(rows) + len(failures)
    job.say(f"{total} runs on {device} ({label}): {before} known before, {len(failures)} failed")
    reasons = Counter(failure["reason"] for failure in failures).most_common()
    for reason, count in reasons[:_MOST_SHOWN]:
        job.say(f"failed, {count} runs: {reason}")
    if len(reasons) > _MOST_SHOWN:
        job.say(f"{len(reasons) - _MOST_SHOWN} more reasons in failures.csv")
    if before and failures:
        job.say("runs that failed before stay failed; retry_failed=true does them again")
    if restless := sum(row.get("energy_spread", 0.0) > _RESTLESS for row in rows):
        job.say(
            f"note: in {restless} of {len(rows)} runs the windows' energies differ by more than {_RESTLESS:.0%}: "
            "measure longer (window_s=...) in another output_dir, with nothing else running"
        )


def _show(job: Job, effects: Sequence[Effect], r2: float, name: str, *, emulated: bool) -> list[str]:
    """Print and draw the effects; names of the files."""
    if not effects:
        job.say("factors: too few runs to tell, or nothing varies")
        return []
    title = "Energy of a run over all GPUs, by factor, the others held"
    job.say(effects_table(effects, title=title, emulated=emulated))
    first = effects[0]
    span = f" from {first.lowest} to {first.highest}" if first.lowest else ""
    job.say(f"{first.name} drives energy most:{span} x{first.times:.3g} (main effects explain R2 {r2:.2f})")
    draw_factors(effects, job.folder.path / "factors.png", title=name, emulated=emulated)
    return ["factors.png"]
