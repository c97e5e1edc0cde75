"""`energy-lightning fit` and `predict`: what they print and write, what they say to mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from served_tables import command, served, summary_of

from energy_lightning.app import main
from energy_lightning.app.predict_candidates import Candidates, runs_around
from energy_lightning.app.predict_model import EnergyModel
from energy_lightning.emulation import GPU
from energy_lightning.predict import EnergyLens
from energy_lightning.predict.sweep import FineTuningRun, emulate_run

SMALL = ["num_layers=4", "hidden_size=256", "num_heads=4", "ffn_size=1024", "tokens=1e7", "num_gpus=[2,4]"]
SMALL += ["emulated_runs=60", "sequence_length=128", "batch_size=32"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    served().to_csv(folder / "served.csv", index=False)
    assert command("fit", "kind=inference", f"csv={folder}/served.csv", f"output_dir={folder}") == 0
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder and output of a process of its own, which must not load torch."""
    folder = tmp_path_factory.mktemp("trained") / "new"
    code = "import sys\nfrom energy_lightning.app import main\ncode = main(sys.argv[1:])\n"
    code += "assert not {'torch', 'lightning', 'transformers'} & set(sys.modules)\nsys.exit(code)"
    arguments = ["predict", "training", *SMALL, "price_per_kwh=0.5", f"output_dir={folder}"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_training_energies_are_near_the_emulators_and_the_least_is_marked(trained: tuple[Path, str]) -> None:
    folder, output = trained
    table = pd.read_csv(folder / "predictions.csv")
    assert [(row.strategy, row.num_gpus) for row in table.itertuples()] == [
        ("single", 1),
        ("tp", 2),
        ("tp", 4),
        ("fsdp", 2),
        ("fsdp", 4),
    ]
    gpu = GPU.load("a100-sxm4-40gb")
    for row in table.itertuples():
        run = FineTuningRun(
            num_layers=4,
            hidden_size=256,
            num_heads=4,
            ffn_size=1024,
            sequence_length=128,
            batch_size=32,
            tokens=1e7,
            strategy=row.strategy,
            num_gpus=row.num_gpus,
        )
        time_s, energy_j = emulate_run(run, gpu)
        assert row.predicted_energy_j == pytest.approx(energy_j, rel=0.1)
        assert row.predicted_hours * 3600.0 == pytest.approx(time_s, rel=0.1)
        assert row.low_energy_j < row.predicted_energy_j < row.high_energy_j
        assert row.predicted_energy_kwh == pytest.approx(row.predicted_energy_j / 3.6e6)
        assert row.cost == pytest.approx(0.5 * row.predicted_energy_kwh)
    (least,) = [row for row in table.itertuples() if row.least]
    assert least.predicted_energy_j == table.predicted_energy_j.min()
    assert f"least energy: {least.strategy} on {least.num_gpus} GPU" in output
    assert output.count("<- least") == 1


def test_what_is_emulated_says_so(trained: tuple[Path, str]) -> None:
    folder, output = trained
    assert "(EMULATED)" in output
    assert summary_of(folder)["emulated"] is True
    assert pd.read_csv(folder / "predictions.csv")["emulated"].all()
    assert {file.name for file in folder.iterdir()} == {"predictions.csv", "terms.png", "summary.json", "config.yaml"}
    assert (folder / "terms.png").read_bytes().startswith(b"\x89PNG")


def test_splits_that_cannot_be_are_left_out_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = [*SMALL, "num_gpus=[3,4]", "strategies=[tp,fsdp]"]
    assert command("predict", "training", *split, f"output_dir={tmp_path}") == 0
    output = capsys.readouterr().out
    assert "left out: tp on 3 GPUs: model: tensor_parallel=3 does not divide num_heads=4" in output
    assert "left out: fsdp on 3 GPUs: batch_size=32 cannot be shared by 3 GPUs" in output
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokens=1e7"], "num_layers, hidden_size, num_heads, ffn_size must be given, or preset=NAME with one of"),
        (["preset=bert_bas", "tokens=1e7"], "unknown preset=bert_bas; did you mean bert_base?"),
        (["preset=bert_base"], "tokens must be given, e.g. tokens=VALUE"),
        (["preset=bert_base", "tokens=-1"], "tokens must be a finite number > 0 (of the whole run), got -1"),
        (["preset=bert_base", "tokens=1e7", "strategies=[ddp]"], "unknown strategy 'ddp' in strategies"),
        (["preset=bert_base", "tokens=1e7", "num_heads=7"], "num_heads=7 does not divide hidden_size=768"),
        (["preset=bert_base", "tokens=1e7", "batch_size=0"], "batch_size must be a whole number > 0, got 0"),
        (["preset=bert_base", "tokens=1e7", "price_per_kwh=-1"], "price_per_kwh must be a finite number >= 0"),
        (["preset=bert_base", "tokens=1e7", "level=90"], "level must be a probability between 0 and 1, got 90"),
        (["preset=bert_base", "tokens=1e7", "model_file=none.yaml"], "no model file none.yaml"),
        (["preset=bert_base", "tokens=1e7", "strategies=[]"], "no strategy is possible: nothing in strategies=[]"),
        (["preset=bert_base", "tokens=1e7", "strategies=tp", "num_gpus=1"], "nothing in strategies=tp with num_gpus=1"),
        (["preset=llama3.3_70b", "tokens=1e7", "num_gpus=2"], "no strategy is possible: single on 1 GPU"),
        (["preset=bert_base", "tokens=1e7", "device.gpu=a100"], "unknown GPU 'a100'"),
    ],
)
def test_mistakes_of_a_training_cost_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("predict", "training", *arguments, f"output_dir={tmp_path}") == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert message in str(summary_of(tmp_path)["error"])


def test_too_few_runs_choose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"num_layers": 4, "hidden_size": 256, "ffn_size": 512, "sequence_length": 128, "batch_size": 32}
    rows = pd.DataFrame(
        [{**sizes, "tokens": 1e6, "strategy": "fsdp", "num_gpus": n, "energy_j": 50.0 * n} for n in (2, 4)]
    )
    rows.to_csv(tmp_path / "few.csv", index=False)
    assert command("fit", "kind=training", f"csv={tmp_path}/few.csv", f"output_dir={tmp_path}") == 0
    assert "warning: FineTuningEnergy predicts" in capsys.readouterr().out
    files = [f"model_file={tmp_path}/model.yaml", f"output_dir={tmp_path}/out"]
    assert command("predict", "training", *SMALL, *files) == 0
    output = capsys.readouterr().out
    assert "least energy: not known, several predictions are equal" in output
    assert "<- least" not in output


def test_predict_says_what_it_can_predict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict"]) == 0
    assert "training   energy" in capsys.readouterr().out
    assert main(["predict", "trainig"]) == 2
    assert "'trainig' is not one of training, inference" in capsys.readouterr().err
    assert main(["predict", "training", "preset=bert_base", "token=1"]) == 2
    assert "did you mean tokens?" in capsys.readouterr().err


def test_a_gated_preset_counts_its_third_matrix() -> None:
    from energy_lightning.app.configuration import compose_config, conf_dir

    values = dict(compose_config(["preset=llama3.2_1b", "tokens=1e6"], [conf_dir()], "predict_training"))
    candidates = Candidates.from_values({**values, "strategies": ["single"], "num_gpus": [2]}, None)
    assert candidates.runs[0].ffn_size == 12288  # 8192 * 1.5
    assert "gated" in candidates.notes[0]


def test_runs_around_a_run_are_different_possible_and_close() -> None:
    run = FineTuningRun(
        num_layers=4, hidden_size=256, num_heads=4, ffn_size=512, sequence_length=64, batch_size=16, tokens=1e6
    )
    runs = runs_around(run, [2, 4], 80, seed=1)
    assert len(set(runs)) == 80
    assert runs == runs_around(run, [2, 4], 80, seed=1)
    assert {(r.strategy, r.num_gpus) for r in runs} == {("single", 1), ("tp", 2), ("tp", 4), ("fsdp", 2), ("fsdp", 4)}
    for name in ("num_layers", "hidden_size", "ffn_size", "sequence_length", "batch_size", "tokens"):
        values = [getattr(r, name) / getattr(run, name) for r in runs]
        assert 0.5 <= min(values) < 1.0 < max(values) <= 2.0
    assert all(r.hidden_size // r.num_heads == 64 for r in runs)


def test_the_model_file_predicts_as_the_first_fit_did(fitted: Path) -> None:
    table = served()
    inputs = table.drop(columns=["energy_j", "latency_s"])
    expected = EnergyLens(seed=0).fit(inputs, table.energy_j).predict(inputs)
    loaded = EnergyModel.load(fitted / "model.yaml", "inference")
    assert loaded.predicting.predict(inputs) == pytest.approx(expected, rel=1e-6)
    assert "E = " in (fitted / "model.yaml").read_text()


def test_an_exact_law_is_found_and_its_errors_are_of_rows_apart(fitted: Path) -> None:
    summary = summary_of(fitted)
    assert summary["status"] == "completed"
    assert 0.0 < float(str(summary["mape_of_fitted_rows_pct"])) < 2.0
    table = pd.read_csv(fitted / "predictions.csv")
    apart = (table.predicted_apart_j / table.energy_j - 1.0).abs().mean() * 100.0
    assert float(str(summary["mape_of_rows_apart_pct"])) == pytest.approx(apart)
    assert apart < 10.0
    for picture in ("predicted.png", "terms.png"):
        assert (fitted / picture).read_bytes().startswith(b"\x89PNG")


def test_inference_selects_the_least_within_the_latency_limit(fitted: Path, tmp_path: Path) -> None:
    files = [f"model_file={fitted}/model.yaml", f"csv={fitted}/served.csv", f"output_dir={tmp_path}"]
    assert command("predict", "inference", *files, "latency_column=latency_s", "max_latency=0.2") == 0
    table = pd.read_csv(tmp_path / "predictions.csv")
    (selected,) = table.index[table.selected]
    within = table[table.latency_s <= 0.2]
    assert within.predicted_energy_j.min() > table.predicted_energy_j.min()
    assert table.predicted_energy_j[selected] == within.predicted_energy_j.min()
    for row in table.itertuples():  # the front: nothing has less of one and no more of the other
        beaten = (
            (table.latency_s <= row.latency_s)
            & (table.predicted_energy_j <= row.predicted_energy_j)
            & ((table.latency_s < row.latency_s) | (table.predicted_energy_j < row.predicted_energy_j))
        )
        assert not (row.on_front and beaten.any())
        assert (
            row.on_front or beaten.any() or table.duplicated(["latency_s", "predicted_energy_j"], keep=False)[row.Index]
        )
    terms = table[["predicted_prefill_j", "predicted_decode_j", "predicted_overhead_j"]].sum(axis=1)
    assert terms.to_numpy() == pytest.approx(table.predicted_energy_j.to_numpy())
    assert (tmp_path / "predicted.png").exists()


def test_a_limit_that_is_no_number_costs_one_line(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"model_file={fitted}/model.yaml", f"csv={fitted}/served.csv", f"output_dir={tmp_path}/out"]
    assert command("predict", "inference", *files, "latency_column=latency_s", "max_latency=soon") == 1
    assert capsys.readouterr().err == "error: max_latency must be a number > 0 or null, got 'soon'\n"


def test_rows_outside_the_fitted_range_are_warned_of(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served(5).assign(batch_size=512).drop(columns="energy_j").to_csv(tmp_path / "far.csv", index=False)
    files = [f"model_file={fitted}/model.yaml", f"csv={tmp_path}/far.csv", f"output_dir={tmp_path}/out"]
    assert command("predict", "inference", *files) == 0
    text = "EnergyLens extrapolates: batch_size in 5 rows (fitted on 1 to 64)"
    assert capsys.readouterr().out.count(f"warning: {text}") == 1
    assert summary_of(tmp_path / "out")["warnings"] == [text]
