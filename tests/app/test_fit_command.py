"""`energy-lightning fit`: units, mistakes, and files that are no models."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from served_tables import command, served

from energy_lightning.app import fit
from energy_lightning.app.predict_model import REQUIRED, EnergyModel
from energy_lightning.types import EnergyLightningError

RUN = dict.fromkeys(REQUIRED["training"], 1)  # a training table's columns


def test_kilowatt_hours_are_converted_or_suspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = served()
    table["energy_kwh"] = table.pop("energy_j") / 3.6e6
    table.to_csv(tmp_path / "kwh.csv", index=False)
    base = ["fit", "kind=inference", f"csv={tmp_path}/kwh.csv", f"output_dir={tmp_path}/out"]
    assert command(*base) == 1
    assert "no column energy_j; the energies may be in energy_kwh" in capsys.readouterr().err
    assert command(*base, "energy_column=energy_kwh") == 1
    assert "named as if in kWh, energy_unit is J: give energy_unit=kWh" in capsys.readouterr().err
    assert command(*base, "energy_column=energy_kwh", "energy_unit=kWh") == 0
    model = EnergyModel.load(tmp_path / "out" / "model.yaml", "inference")
    assert model.energy_j == pytest.approx(served().energy_j.to_numpy())
    assert "suspicious" not in capsys.readouterr().out
    table.rename(columns={"energy_kwh": "energy_j"}).to_csv(tmp_path / "kwh.csv", index=False)
    assert command(*base) == 0
    assert "warning: suspicious magnitude" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, ["csv=none.csv"], "no file none.csv"),
        ({}, ["kind=trainig"], "unknown kind=trainig; choose one of training, inference"),
        ({}, ["kind=training"], "has no column num_layers, hidden_size, ffn_size, sequence_length, tokens"),
        ({}, ["method=quantum"], "unknown method=quantum; choose one of robust, published, formula"),
        ({}, ["emulated=no"], "emulated must be true or false, got 'no'"),
        ({}, ["energy_unit=MWh"], "unknown energy_unit=MWh; choose one of J, mJ, kJ, Wh, kWh"),
        ({}, ["columns.batch_size=b"], "columns.batch_size=b: "),
        ({"batch_size": 0}, [], "column batch_size must be finite and > 0: row 0 has 0"),
        ({"energy_j": -1.0}, [], "energy_j must be finite and > 0: row 0 has -1"),
        ({"energy_j": float("nan")}, [], "column energy_j must hold numbers: row 0 has"),
        ({"batch_size": "many"}, [], "column batch_size must hold numbers"),
        ({**RUN, "speedup": "fast"}, ["kind=training"], "column speedup must hold numbers: row 0 has 'fast'"),
    ],
)
def test_mistakes_of_a_fit_cost_one_line(
    change: dict[str, object],
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served().assign(**change).to_csv(tmp_path / "t.csv", index=False)
    base = ["fit", "kind=inference", f"csv={tmp_path}/t.csv", f"output_dir={tmp_path}/out"]
    assert command(*base, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out" / "model.yaml").exists()


def test_two_columns_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = served().to_csv(index=False).splitlines()
    text = "\n".join(f"{line},{'batch_size' if number == 0 else 4}" for number, line in enumerate(lines))
    (tmp_path / "t.csv").write_text(text)
    assert command("fit", "kind=inference", f"csv={tmp_path}/t.csv", f"output_dir={tmp_path}/out") == 1
    assert "has two columns batch_size: rename or remove one of them" in capsys.readouterr().err


def test_gpu_models_with_few_runs_are_told_and_energies_without_sense_are_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Energies that no work explains, three runs of one GPU model, one of another: an answer, and its worth."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"num_layers": rng.choice([2, 4], 20), "hidden_size": rng.choice([128, 256], 20)})
    table = table.assign(ffn_size=512, sequence_length=64, batch_size=8, tokens=1e6)
    table["strategy"] = rng.choice(["single", "fsdp"], 20)
    table["num_gpus"] = np.where(table.strategy == "single", 1, 2)
    table["energy_j"], table["gpu_model"] = rng.uniform(500.0, 900.0, 20), ["a"] * 16 + ["b"] * 3 + ["c"]
    table.to_csv(tmp_path / "runs.csv", index=False)
    assert command("fit", "kind=training", f"csv={tmp_path}/runs.csv", f"output_dir={tmp_path}/out") == 0
    assert "which lean on the others' law: b (3), c (1)" in capsys.readouterr().out
    predictions = pd.read_csv(tmp_path / "out" / "predictions.csv")
    assert predictions.fitted_energy_j.between(200.0, 2000.0).all()
    assert list(predictions.index[predictions.predicted_apart_j.isna()]) == [19]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: training\n", "is no model file"),
        ("[1, 2]\n", "is no model file"),
        ("kind: training\nemulated: false\nsettings: {}\ntable: 'a,energy_j'\n", "is a model of training"),
        ("kind: inference\nemulated: false\nsettings: {}\ntable: |\n  a,b\n  1,2\n", "no column energy_j"),
    ],
)
def test_other_files_are_no_models(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(EnergyLightningError, match=re.escape(message)):
        EnergyModel.load(tmp_path / "m.yaml", "inference")


def test_of_very_many_rows_some_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "MOST_ROWS", 30)
    served().to_csv(tmp_path / "t.csv", index=False)
    assert command("fit", "kind=inference", f"csv={tmp_path}/t.csv", f"output_dir={tmp_path}/out") == 0
    assert "note: 30 of 40 rows, drawn at random, are enough" in capsys.readouterr().out
    table = EnergyModel.load(tmp_path / "out" / "model.yaml", "inference").table
    assert len(table) == 30
    known = {tuple(row) for row in served()[list(table)].itertuples(index=False)}
    assert known.issuperset(map(tuple, table.itertuples(index=False)))
