"""`predict inference`: energies of a table of configurations, the one to select, and those that nothing beats."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from energy_lightning.app.predict_job import Job
from energy_lightning.app.predict_model import INFERENCE, REQUIRED, EnergyModel
from energy_lightning.app.predict_table import ENERGY, check_columns, energy_of, read_table
from energy_lightning.predict import PredictionError
from energy_lightning.report.prediction_pictures import draw_predicted, draw_terms
from energy_lightning.report.prediction_tables import frame_table
from energy_lightning.types import ConfigError

_ROW = "row"
_MOST_BARS = 30
_INTERVAL = ["low_energy_j", "high_energy_j"]


def predict_inference(job: Job) -> None:
    """Print, and write into the job's folder, each configuration's energy, the selected one and the front."""
    values = job.values
    table = read_table(values["csv"], values["columns"]).reset_index(drop=True)
    check_columns(table, REQUIRED[INFERENCE], values["csv"])
    model = EnergyModel.load(values["model_file"], INFERENCE)
    latency = values["latency_column"]
    if latency is not None and latency not in table.columns:
        raise ConfigError(f"no column latency_column={latency}; {values['csv']} has {', '.join(table.columns)}")
    level = values["level"]
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0.0 < level < 1.0:
        raise ConfigError(f"level must be a probability between 0 and 1, got {level!r}")
    limit = values["max_latency"]
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0.0):
        raise ConfigError(f"max_latency must be a number > 0 or null, got {limit!r}")
    with job.telling_warnings() as warned:
        predicted = predicted_table(model, table, level)
    lens, numbered = model.predicting, table.assign(**{_ROW: range(len(table))})
    selected, front = _choices(lens, numbered, latency, values["max_latency"])
    predicted["selected"] = np.arange(len(table)) == selected
    predicted["on_front"] = np.isin(np.arange(len(table)), front)
    _show(job, model, predicted.assign(**{_ROW: range(len(table))}), latency, front)
    files = _write(job, model, predicted)
    row = predicted.iloc[selected]
    job.complete(
        files,
        emulated=model.emulated,
        rows=len(table),
        selected={"row": selected, "predicted_energy_j": float(row["predicted_energy_j"])},
        front_rows=[int(i) for i in front],
        warnings=warned,
    )


def predicted_table(model: EnergyModel, table: Any, level: float) -> Any:
    """`table` with predicted energy, interval and terms (joules of whatever the fitted rows stood for)."""
    lens = model.predicting
    energy_j = lens.predict(table)
    low_j, high_j = (np.full(len(table), np.nan),) * 2
    if lens.fallback_ is None:
        low_j, high_j = lens.predict_interval(table, level=level)
    result = table.assign(predicted_energy_j=energy_j, low_energy_j=low_j, high_energy_j=high_j)
    terms = lens.explain(table)
    return result.assign(**{f"predicted_{name}": terms[name].to_numpy() for name in terms}, emulated=model.emulated)


def _choices(lens: Any, table: Any, latency: str | None, max_latency: float | None) -> tuple[int, list[int]]:
    """Positions of the selected row and of the front; no front without a second objective."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # told with the predictions
        limits = {"latency_column": latency, "max_latency": max_latency} if max_latency is not None else {}
        selected = lens.select(table, **limits)
        try:
            front = lens.pareto(table, latency_column=latency)
        except PredictionError:
            if latency is not None:
                raise
            return int(selected[_ROW]), []
    return int(selected[_ROW]), [int(row) for row in front[_ROW]]


def _show(job: Job, model: EnergyModel, predicted: Any, latency: str | None, front: list[int]) -> None:
    inputs = [n for n in model.inputs(model.table).columns if n in predicted and predicted[n].nunique() > 1]
    more = [latency] if latency is not None and latency not in inputs else []
    columns = [_ROW, *inputs, *more, "predicted_energy_j", *_INTERVAL]
    chosen = predicted[predicted["selected"]]
    job.say(frame_table(chosen, columns, title="Selected: least predicted energy", emulated=model.emulated))
    if front:
        against = latency or "number of GPUs"
        title = f"Nothing has both less energy and less {against}"
        job.say(frame_table(predicted.iloc[front], columns, title=title, emulated=model.emulated))


def _write(job: Job, model: EnergyModel, predicted: Any) -> list[str]:
    folder = job.folder.path
    predicted.to_csv(folder / "predictions.csv", index=False)
    shown = predicted.iloc[np.argsort(predicted["predicted_energy_j"], kind="stable")[:_MOST_BARS]]
    names = [name for name in predicted if name.startswith("predicted_") and name != "predicted_energy_j"]
    terms = {name.removeprefix("predicted_").removesuffix("_j"): shown[name].to_numpy() for name in names}
    rows = {f"row {row}": float(energy_j) for row, energy_j in shown["predicted_energy_j"].items()}
    draw_terms(terms, rows, folder / "terms.png", title="Least predicted energies", emulated=model.emulated)
    if ENERGY not in predicted:
        return ["predictions.csv", "terms.png"]
    measured_j = energy_of(predicted, ENERGY, "J")
    title = f"{len(predicted)} configurations"
    draw_predicted(
        measured_j, predicted["predicted_energy_j"], folder / "predicted.png", title=title, emulated=model.emulated
    )
    return ["predictions.csv", "terms.png", "predicted.png"]
