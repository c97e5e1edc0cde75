"""`predict training`: a law from a model file or from emulated runs, asked for each strategy and number of GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from energy_lightning.app.predict_candidates import DTYPE, Candidates, runs_around, table_of
from energy_lightning.app.predict_job import Job
from energy_lightning.app.predict_model import TRAINING, EnergyModel, fitted_model
from energy_lightning.app.predict_table import JOULES
from energy_lightning.app.settings import checked_seed
from energy_lightning.emulation import GPU
from energy_lightning.predict.sweep import emulate_run
from energy_lightning.report.prediction_pictures import draw_terms
from energy_lightning.report.prediction_tables import Prices, training_table
from energy_lightning.types import ConfigError

_MOST_GPUS = 8  # of the emulated runs, beside those asked for
_LAW = {"law": "roofline", "correction": "auto"}


def predict_training(job: Job) -> None:
    """Print, and write into the job's folder, what each possible way to run the training would take."""
    values = job.values
    prices = Prices(values["price_per_kwh"], values["price_per_gpu_hour"])
    level = _checked_level(values["level"])
    emulated_gpu = GPU.load(values["device"]["gpu"]) if values["model_file"] is None else None
    candidates = Candidates.from_values(values, emulated_gpu)
    for note in candidates.notes:
        job.say(f"note: {note}")
    for name, reason in candidates.left_out.items():
        job.say(f"left out: {name}: {reason}")
    with job.telling_warnings() as warned:
        if emulated_gpu is None:
            model = EnergyModel.load(values["model_file"], TRAINING)
        else:
            model = emulated_model(candidates, emulated_gpu, values["emulated_runs"], checked_seed(values))
        asked = _with_gpu_model(table_of(candidates.runs), model, values["gpu_model"])
        table = predicted_table(model, asked, level, prices)
    basis = f"{emulated_gpu.display_name} emulated" if emulated_gpu else values["model_file"]
    title = f"Energy of the run over all GPUs, by a law of {len(model.table)} runs, {basis}"
    job.say(training_table(table, title=title, level=level, emulated=model.emulated))
    least = table.iloc[int(table["predicted_energy_j"].argmin())]
    job.say(_verdict(table, least))
    table.to_csv(job.folder.path / "predictions.csv", index=False)
    files = ["predictions.csv", *_draw_terms(job, model, asked, table)]
    job.complete(
        files,
        emulated=model.emulated,
        least={name: _plain(value) for name, value in least.items()},
        left_out=dict(candidates.left_out),
        warnings=warned,
    )


def _draw_terms(job: Job, model: EnergyModel, asked: Any, table: Any) -> list[str]:
    """Names of the files: none where the law has no terms."""
    if model.predicting.fallback_ is not None or model.predicting.law == "published":
        return []
    terms = model.predicting.explain(model.inputs(asked))
    joules = {name: terms[name].to_numpy() for name in terms if terms[name].max() > 0.0}
    names = [f"{row.strategy} on {row.num_gpus}" for row in table.itertuples()]
    rows = dict(zip(names, table["predicted_energy_j"], strict=True))
    picture = job.folder.path / "terms.png"
    draw_terms(joules, rows, picture, title="What the energy goes into", emulated=model.emulated)
    return [picture.name]


def emulated_model(candidates: Candidates, gpu: GPU, count: int, seed: int) -> EnergyModel:
    """A law fitted to `count` emulated runs of sizes around the candidates'. Emulated."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 30:
        raise ConfigError(f"emulated_runs must be a whole number >= 30, got {count!r}")
    asked = candidates.runs
    counts = sorted({run.num_gpus for run in asked if run.num_gpus > 1} | {2, _MOST_GPUS})
    runs = runs_around(asked[0], counts, count, seed)
    figures = [emulate_run(run, gpu, dtype=DTYPE) for run in runs]
    table = table_of(runs).assign(time_s=[time_s for time_s, _ in figures])
    return fitted_model(TRAINING, table, np.array([energy_j for _, energy_j in figures]), _LAW, emulated=True)


def predicted_table(model: EnergyModel, asked: Any, level: float, prices: Prices) -> Any:
    """`asked` with energy, interval, hours, cost and the mark of the least as further columns."""
    inputs = model.inputs(asked)
    energy_j = model.predicting.predict(inputs)
    low_j, high_j = (np.full(len(asked), np.nan),) * 2
    if model.predicting.fallback_ is None:
        low_j, high_j = model.predicting.predict_interval(inputs, level=level)
    hours = model.time_s(asked) / 3600.0
    kwh = energy_j / JOULES["kWh"]
    return asked.assign(
        predicted_energy_j=energy_j,
        low_energy_j=low_j,
        high_energy_j=high_j,
        predicted_energy_kwh=kwh,
        predicted_hours=hours,
        cost=prices.cost(kwh, hours * asked["num_gpus"].to_numpy()),
        least=_least(energy_j),
        emulated=model.emulated,
    )


def _least(energy_j: Any) -> Any:
    """(n,) marks the least, and nothing where another is as low."""
    lowest = energy_j <= energy_j.min() * (1.0 + 1e-9)
    return lowest if lowest.sum() == 1 else np.zeros(len(energy_j), dtype=bool)


def _with_gpu_model(asked: Any, model: EnergyModel, chosen: str | None) -> Any:
    """The GPU model filled in, where the law has one for each."""
    if "gpu_model" not in model.table.columns:
        if chosen is not None:
            raise ConfigError(f"gpu_model={chosen}: the model file's table has no column gpu_model; leave it out")
        return asked
    known = sorted({str(name) for name in model.table["gpu_model"]})
    if chosen is None and len(known) > 1:
        raise ConfigError(f"the model file knows several GPU models: gpu_model=NAME with one of {', '.join(known)}")
    if chosen is not None and chosen not in known:
        raise ConfigError(f"unknown gpu_model={chosen}; the model file knows {', '.join(known)}")
    return asked.assign(gpu_model=chosen or known[0])


def _verdict(table: Any, least: Any) -> str:
    """Which is least, and whether the intervals tell it from the next."""
    if not table["least"].any():
        return "least energy: not known, several predictions are equal"
    text = f"least energy: {least['strategy']} on {least['num_gpus']} GPU{'' if least['num_gpus'] == 1 else 's'}"
    others = table[~table["least"]]
    if len(others):
        next_ = others.iloc[int(others["predicted_energy_j"].argmin())]
        more = next_["predicted_energy_j"] / least["predicted_energy_j"] - 1.0
        text += f"; next: {next_['strategy']} on {next_['num_gpus']}, {more:+.1%}"
        if least["high_energy_j"] >= next_["low_energy_j"]:
            text += " (their intervals overlap)"
    if table["predicted_hours"].notna().all():
        fastest = table.iloc[int(table["predicted_hours"].argmin())]
        if not fastest["least"]:
            more = fastest["predicted_energy_j"] / least["predicted_energy_j"] - 1.0
            text += f"; fastest: {fastest['strategy']} on {fastest['num_gpus']}, {more:+.1%}"
    return text


def _checked_level(level: Any) -> float:
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0.0 < level < 1.0:
        raise ConfigError(f"level must be a probability between 0 and 1, got {level!r}")
    return float(level)


def _plain(value: Any) -> Any:
    """As JSON has it: no numpy types, null for NaN."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and np.isnan(plain) else plain
