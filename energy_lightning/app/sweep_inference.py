"""`energy-lightning sweep kind=inference`: a model served over token counts and batch sizes, and EnergyLens on it.

On the machine's GPU the model generates in earnest, prefill and decode measured apart; on an emulated GPU nothing is
generated, both come from the model of the GPU (`predict.serving`).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from energy_lightning.app.fit import write_fit
from energy_lightning.app.predict_job import Job, run_job
from energy_lightning.app.predict_model import INFERENCE, EnergyModel, fitted_model
from energy_lightning.app.settings import checked_seed, checked_switch
from energy_lightning.app.sweep import say_how_it_went
from energy_lightning.app.sweep_launch import measured_outcomes
from energy_lightning.app.sweep_measured import Machine, machine_for, measured_key, measuring_options, timeout_of
from energy_lightning.app.sweep_models import ServedModel
from energy_lightning.app.sweep_runs import Outcome, RunFile, Settings, alone_with, collect
from energy_lightning.app.sweep_worker import Orders
from energy_lightning.emulation import GPU
from energy_lightning.predict import PredictionError
from energy_lightning.predict.serving import ServingRun, emulate_serving
from energy_lightning.types import ConfigError, EnergyLightningError

CONFIG_NAME = "sweep_inference"
FACTORS = ("input_tokens", "output_tokens", "batch_size", "tensor_parallel")
_MOST_COMBINATIONS = 20_000


def run_inference_sweep(config: Any, path: Path) -> str:
    """Sweep as the composed configuration says, in the folder `path`; the job's status."""
    return run_job(config, path, _sweep)


def serving_design(values: Mapping[str, Any]) -> list[Settings]:
    """All combinations of the factors' values, or `count` of them drawn with `seed`; ConfigError for a bad one."""
    lists = []
    for name in FACTORS:
        given = values[name] if isinstance(values[name], list) else [values[name]]
        if not given or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in given):
            raise ConfigError(f"{name} must be a list of whole numbers > 0, got {values[name]!r}")
        lists.append(list(dict.fromkeys(given)))
    seed = checked_seed(values)
    count, total = values["count"], math.prod(map(len, lists))
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigError(f"count must be a whole number > 0, or null for all combinations, got {count!r}")
    if total > _MOST_COMBINATIONS:
        raise ConfigError(f"the factors have {total} combinations, at most {_MOST_COMBINATIONS}: give fewer values")
    runs = [dict(zip(FACTORS, combination, strict=True)) for combination in itertools.product(*lists)]
    if count is None or count >= total:
        return runs
    return [runs[i] for i in np.random.default_rng(seed).choice(total, count, replace=False)]


def _sweep(job: Job) -> None:
    import pandas

    values, folder = job.values, job.folder.path
    model, machine = ServedModel.open(values["served_model"]), machine_for(values["device"]["name"])
    gpu = GPU.load(values["device"]["gpu"]) if machine is None else None
    emulated = machine is None or machine.emulated
    name = gpu.display_name if machine is None and gpu else machine.gpu_model if machine else ""
    rows, failures, before = _rows(job, model, machine, gpu)
    say_how_it_went(job, f"{model.name}, {name}", rows, failures, before, emulated=emulated)
    pandas.DataFrame(failures, columns=[*FACTORS, "reason"]).to_csv(folder / "failures.csv", index=False)
    if not rows:
        raise PredictionError("every run failed; failures.csv has the reasons")
    table = pandas.DataFrame(rows)
    table.to_csv(folder / "runs.csv", index=False)
    settings = {"form": "additive", "method": "robust", "seed": values["seed"]}
    with job.telling_warnings(units_known=True) as warned:
        fitted = fitted_model(INFERENCE, table, table["energy_j"].to_numpy(), settings, emulated=emulated)
    files, accuracy = write_fit(job, fitted, f"{model.name} on {name}")
    job.complete(
        ["runs.csv", "runs.jsonl", "failures.csv", *files],
        emulated=emulated,
        device=name,
        model=model.name,
        runs=len(rows),
        failed=len(failures),
        known_before=before,
        warnings=warned,
        **_prefill_shares(job, fitted, table),
        **accuracy,
    )


def _prefill_shares(job: Job, model: EnergyModel, table: Any) -> dict[str, float]:
    """Prefill's share of the energy of prefill and decode: as found apart, and as the formula splits their sum."""
    if model.explaining.fallback_ is not None:
        return {}
    terms = model.explaining.explain(model.inputs(model.table))
    found = float((table["prefill_energy_j"] / table["energy_j"]).mean())
    split = float((terms["prefill_j"] / (terms["prefill_j"] + terms["decode_j"])).mean())
    job.say(f"prefill takes {found:.0%} of a request's energy on average; the formula splits {split:.0%} off")
    return {"prefill_share": found, "prefill_share_of_formula": split}


def _rows(
    job: Job, model: ServedModel, machine: Machine | None, gpu: GPU | None
) -> tuple[list[Settings], list[Settings], int]:
    values, runs = job.values, serving_design(job.values)
    if machine is None:
        assert gpu is not None
        shared = {"model": model.name, "gpu_model": gpu.name, "dtype": values["dtype"]}
        keyed = {json.dumps({**run, **shared}, sort_keys=True): run for run in runs}

        def produce(missing: list[tuple[str, Settings]]) -> Iterable[Outcome]:
            return ((key, _emulated(run, model, gpu, values["dtype"])) for key, run in missing)

    else:
        options = measuring_options(values) | model.options()
        keyed = {measured_key(run, machine, options): run for run in runs}

        def produce(missing: list[tuple[str, Settings]]) -> Iterable[Outcome]:
            return _measured(missing, model, machine, options, timeout_of(values))

    doing = "emulated" if machine is None else "measured"
    path, retry = job.folder.path / "runs.jsonl", checked_switch(values, "retry_failed")
    with job.status() as update, alone_with(path):
        return collect(keyed, RunFile(path, retry), produce, lambda n: update(f"{doing} {n} of {len(keyed)} runs"))


def _emulated(run: Settings, model: ServedModel, gpu: GPU, dtype: str) -> dict[str, Any]:
    try:
        prefill, decode = emulate_serving(ServingRun(**run), model.shape(), gpu, dtype=dtype)
    except EnergyLightningError as error:
        return {"failed": str(error)}
    each = run["tensor_parallel"] / run["batch_size"]  # joules of a request over all GPUs, from one GPU's of the batch
    row = {
        "prefill_time_s": prefill.time_s,
        "decode_time_s": decode.time_s,
        "latency_s": prefill.time_s + decode.time_s,
        "prefill_energy_j": prefill.energy_j * each,
        "decode_energy_j": decode.energy_j * each,
        "energy_j": (prefill.energy_j + decode.energy_j) * each,
    }
    return {"row": _labelled(run, model, gpu.name, row, emulated=True)}


def _measured(
    missing: list[tuple[str, Settings]], model: ServedModel, machine: Machine, options: dict[str, Any], timeout_s: float
) -> Iterator[Outcome]:
    runs, settings = [], dict(missing)
    for key, run in missing:
        if run["tensor_parallel"] > 1:
            yield key, {"failed": "tensor_parallel > 1 is emulated only: this sweep measures on one GPU"}
        else:
            runs.append((key, run))
    for key, content in measured_outcomes(Orders(INFERENCE, runs, 1, options), timeout_s):
        if "row" in content:
            row = _labelled(settings[key], model, machine.gpu_model, content["row"], emulated=machine.emulated)
            yield key, {"row": row}
        else:
            yield key, content


def _labelled(
    run: Settings, model: ServedModel, gpu_model: str, row: Mapping[str, Any], *, emulated: bool
) -> dict[str, Any]:
    named = {"pipeline_parallel": 1, "model": model.name, "gpu_model": gpu_model}
    return {**run, **named, **row, "emulated": emulated}
