"""`energy-lightning sweep`: its table, what it says of factors, and that a killed one goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from energy_lightning.app import main
from energy_lightning.app.configuration import compose_config, conf_dir
from energy_lightning.app.predict_model import EnergyModel
from energy_lightning.app.sweep_factors import effects_of
from energy_lightning.app.sweep_runs import FACTORS, RunFile, design
from energy_lightning.emulation import GPU
from energy_lightning.predict.sweep import FineTuningRun, emulate_run
from energy_lightning.types import ConfigError, MeasurementError

SMALL = ["num_layers=[2,4]", "hidden_size=[128,256]", "ffn_size=[512]", "num_heads=[4]", "num_gpus=[2,8]", "count=40"]
SETTINGS = {"tokens": 1e6, "count": None, "seed": 0}


def sweep(folder: Path, *arguments: str) -> int:
    return main(["sweep", *SMALL, *arguments, f"output_dir={folder}"])


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    assert sweep(folder) == 0
    return folder


def test_every_run_is_in_the_table_or_among_the_failures(swept: Path) -> None:
    table, failures = pd.read_csv(swept / "runs.csv"), pd.read_csv(swept / "failures.csv")
    assert len(table) + len(failures) == 40
    assert len(failures) > 0
    assert failures.reason.str.contains("tensor_parallel=8 does not divide num_heads=4").all()
    assert set(failures.strategy) == {"tp"}
    assert table.emulated.all()
    assert not table.isna().any().any()
    row = table[table.strategy == "fsdp"].iloc[0]
    run = FineTuningRun(**{n: row[n] if n == "strategy" else int(row[n]) for n in (*FACTORS, "tokens")})
    time_s, energy_j = emulate_run(run, GPU.load("a100-sxm4-40gb"))
    assert (row.time_s, row.energy_j) == pytest.approx((time_s, energy_j))


def test_files_and_summary(swept: Path) -> None:
    names = {"runs.jsonl", "runs.csv", "failures.csv", "predictions.csv", "model.yaml", "summary.json", "config.yaml"}
    names |= {"factors.png", "predicted.png", "terms.png"}
    assert {file.name for file in swept.iterdir()} == names
    summary = json.loads((swept / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["emulated"] is True
    assert summary["known_before"] == 0
    assert {"num_layers", "batch_size", "num_gpus"} <= set(summary["factors"])
    assert "ffn_size" not in summary["factors"]  # has one value


def test_the_model_file_serves_predict_training(swept: Path, tmp_path: Path) -> None:
    model = EnergyModel.load(swept / "model.yaml", "training")
    assert model.emulated
    sizes = ["num_layers=4", "hidden_size=256", "num_heads=4", "ffn_size=512", "tokens=2e6", "num_gpus=2"]
    arguments = [*sizes, f"model_file={swept}/model.yaml", f"output_dir={tmp_path}"]
    assert main(["predict", "training", *arguments]) == 0
    table = pd.read_csv(tmp_path / "predictions.csv")
    run = FineTuningRun(
        num_layers=4,
        hidden_size=256,
        num_heads=4,
        ffn_size=512,
        sequence_length=128,
        batch_size=32,
        tokens=2e6,
        strategy="fsdp",
        num_gpus=2,
    )
    time_s, energy_j = emulate_run(run, GPU.load("a100-sxm4-40gb"))
    (row,) = [row for row in table.itertuples() if row.strategy == "fsdp"]
    assert row.predicted_energy_j == pytest.approx(energy_j, rel=0.15)
    assert row.predicted_hours * 3600.0 == pytest.approx(time_s, rel=0.15)
    assert row.emulated


def test_a_killed_sweep_goes_on_where_it_was(swept: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "energy_lightning.app", "sweep", *SMALL, f"output_dir={tmp_path}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    runs, until_s = tmp_path / "runs.jsonl", time.monotonic() + 120.0
    while (not runs.exists() or runs.read_bytes().count(b"\n") < 5) and time.monotonic() < until_s:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = runs.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    runs.write_bytes(kept + b'{"key": "half a li')
    assert not (tmp_path / "runs.csv").exists()
    assert sweep(tmp_path) == 0
    assert runs.read_bytes().startswith(kept)
    assert len({json.loads(line)["key"] for line in runs.read_bytes().splitlines()}) == 40
    assert json.loads((tmp_path / "summary.json").read_text())["known_before"] == kept.count(b"\n")
    assert (tmp_path / "runs.csv").read_text() == (swept / "runs.csv").read_text()


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"key": "a", "row": {}}\n[1]\n')
    with pytest.raises(MeasurementError, match="line 2 is not a run of a sweep"):
        RunFile(tmp_path / "runs.jsonl")


def values(**changed: object) -> dict[str, object]:
    lists = {name: [2, 4] for name in FACTORS} | {"strategy": ["single", "tp"], "num_gpus": [2, 4]}
    return {**lists, **SETTINGS, **changed}


def test_all_combinations_once_with_one_gpu_for_single() -> None:
    runs = design(values())
    assert len(runs) == 2**6 * 3  # six factors; single on 1, tp on 2 and on 4
    assert len({tuple(run.items()) for run in runs}) == len(runs)
    assert {(run["strategy"], run["num_gpus"]) for run in runs} == {("single", 1), ("tp", 2), ("tp", 4)}


def test_drawn_runs_are_different_and_repeatable() -> None:
    first, again, other = (design(values(count=50, seed=seed)) for seed in (3, 3, 4))
    assert first == again != other
    assert len({tuple(run.items()) for run in first}) == 50


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_layers": []}, "num_layers must be a list of whole numbers, got"),
        ({"num_layers": [2.5]}, "num_layers must be a list of whole numbers, got"),
        ({"num_layers": [0]}, "num_layers must be > 0"),
        ({"strategy": ["ddp"]}, "unknown strategy=ddp; choose from single, tp, fsdp"),
        ({"strategy": ["tp"], "num_gpus": [1]}, "no run has these values"),
        ({"count": 0}, "count must be a whole number > 0"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"tokens": float("inf")}, "tokens must be a finite number > 0"),
        ({"num_layers": list(range(1, 2001))}, "have 256000 combinations, at most 200000"),
    ],
)
def test_impossible_designs_are_named(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        design(values(**changed))


def test_defaults_are_a_design() -> None:
    config = dict(compose_config([], [conf_dir()], "sweep"))
    lists = {name: list(config[name]) for name in FACTORS}
    assert len(design({**config, **lists})) == config["count"]


def test_effects_of_a_product_of_powers() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.choice([1, 2, 4, 8], 200) for name in FACTORS if name != "strategy"})
    table["strategy"] = np.where(table.num_gpus > 1, "fsdp", "single")
    energy_j = 7.0 * table.num_layers**0.5 / table.batch_size * np.where(table.num_gpus > 1, table.num_gpus, 1.2)
    effects, r2 = effects_of(table, energy_j, FACTORS)
    found = {effect.name: effect.times for effect in effects}
    assert r2 == pytest.approx(1.0)
    assert [effect.name for effect in effects][:4] == [
        "batch_size",
        "num_gpus",
        "num_layers",
        "fsdp on 2 instead of single",
    ]
    assert found["batch_size"] == pytest.approx(1.0 / 8.0)
    assert found["num_layers"] == pytest.approx(8.0**0.5)
    assert found["num_gpus"] == pytest.approx(4.0)  # from 2 to 8
    assert found["fsdp on 2 instead of single"] == pytest.approx(2.0 / 1.2)
    assert found["ffn_size"] == pytest.approx(1.0)


def test_few_rows_show_no_effects() -> None:
    table = pd.DataFrame({name: [1, 2] for name in FACTORS} | {"strategy": ["single", "tp"]})
    assert effects_of(table, [1.0, 2.0], FACTORS)[0] == []
