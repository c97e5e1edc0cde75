"""`energy-lightning fit`: a predictor fitted to a CSV of measurements, as a model file that `predict` loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from energy_lightning.app.folder import COMPLETED
from energy_lightning.app.hydra_jobs import checked_arguments, exit_code, run_hydra
from energy_lightning.app.predict_job import Job, run_job
from energy_lightning.app.predict_model import FORMULA, REQUIRED, TRAINING, EnergyModel, accuracy_of, fitted_model
from energy_lightning.app.predict_table import check_columns, energy_of, read_table
from energy_lightning.app.settings import checked_switch
from energy_lightning.report.prediction_pictures import draw_predicted, draw_terms

CONFIG_NAME = "fit"
MODEL_FILE = "model.yaml"
_MOST_BARS = 30
MOST_ROWS = 20_000  # a dozen constants are known from far fewer; files and pictures stay readable
MOST_SEARCHED = 2_000  # by a formula search, whose time grows with them


def fit(arguments: Sequence[str]) -> int:
    """Fit what `arguments` (Hydra overrides and flags) describe; 0 when every job has a model file."""
    return exit_code(run_hydra(checked_arguments(arguments, CONFIG_NAME), run_fit, CONFIG_NAME), COMPLETED)


def run_fit(config: Any, path: Path) -> str:
    """Fit as the composed configuration says, into the folder `path`; the job's status."""
    return run_job(config, path, _fit)


def _fit(job: Job) -> None:
    values = job.values
    table = read_table(values["csv"], values["columns"])
    check_columns(table, REQUIRED.get(values["kind"], ()), values["csv"])  # an unknown kind is named below
    energy_j = energy_of(table, values["energy_column"], values["energy_unit"])
    column_says = "emulated" in table and bool(table["emulated"].astype(str).eq("True").any())
    emulated = checked_switch(values, "emulated") or column_says
    most = MOST_SEARCHED if values["method"] == FORMULA else MOST_ROWS
    if (total := len(table)) > most:
        chosen = np.sort(np.random.default_rng(0).choice(total, most, replace=False))
        table, energy_j = table.iloc[chosen].reset_index(drop=True), energy_j[chosen]
        job.say(f"note: {most} of {total} rows, drawn at random, are enough: the others are left out")
    with job.telling_warnings() as warned:
        model = fitted_model(values["kind"], table, energy_j, values, emulated=emulated)
    name = f"{values['kind']}, {Path(values['csv']).name}"
    files, accuracy = write_fit(job, model, name)
    job.complete(files, kind=model.kind, emulated=emulated, rows=len(table), warnings=warned, **accuracy)


def write_fit(job: Job, model: EnergyModel, name: str) -> tuple[list[str], dict[str, float]]:
    """Print the law; write model file, predictions and pictures. Names of the files, and how good the fit is."""
    folder, apart_j = job.folder.path, model.apart_j()
    accuracy = accuracy_of(model, apart_j)
    title = f"{name}: {len(model.table)} rows"
    job.say(f"{title}{' (EMULATED)' if model.emulated else ''}")
    job.say(model.words())
    for note in model.explaining.notes_:
        if note not in job.told:
            job.say(f"note: {note}")
    job.say(_in_words(accuracy))
    model.save(folder / MODEL_FILE, **accuracy)
    fitted_j = model.explaining.predict(model.inputs(model.table))
    with_predictions = model.table.assign(fitted_energy_j=fitted_j, predicted_apart_j=apart_j, emulated=model.emulated)
    with_predictions.to_csv(folder / "predictions.csv", index=False)
    shown_j, how = (apart_j, "rows apart from the fit") if np.isfinite(apart_j).all() else (fitted_j, "fitted rows")
    draw_predicted(model.energy_j, shown_j, folder / "predicted.png", title=f"{title}; {how}", emulated=model.emulated)
    files = [MODEL_FILE, "predictions.csv", "predicted.png"]
    if _has_terms(model):
        draw_shares(model, folder / "terms.png", title=name)
        files.append("terms.png")
    return files, accuracy


def draw_shares(model: EnergyModel, path: Path, *, title: str) -> None:
    """Shares of the terms in at most 30 rows, spread over the range of energies."""
    order = np.argsort(model.energy_j, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(_MOST_BARS, len(order))).astype(int))]
    inputs = model.inputs(model.table)
    terms = model.explaining.explain(inputs).iloc[chosen]
    rows = {f"row {row}": float(model.energy_j[row]) for row in chosen}
    joules = {name.removesuffix("_j"): terms[name].to_numpy() for name in terms}
    draw_terms(
        joules, rows, path, title=title, of="emulated" if model.emulated else "measured", emulated=model.emulated
    )


def _has_terms(model: EnergyModel) -> bool:
    if model.kind == TRAINING:
        return model.explaining.fallback_ is None and model.settings["law"] != "published"
    return True


def _in_words(accuracy: dict[str, float]) -> str:
    text = f"mean error of the fitted rows {accuracy['mape_of_fitted_rows_pct']:.1f}%"
    if "mape_of_rows_apart_pct" in accuracy:
        return f"{text}, of rows apart from the fit {accuracy['mape_of_rows_apart_pct']:.1f}% (5 folds)"
    return f"{text}; too few rows to keep some apart"
