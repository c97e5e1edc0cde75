"""`fit kind=inference method=formula`, and `predict inference` by what it found."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from served_tables import command

from energy_lightning.app.predict_model import EnergyModel
from energy_lightning.predict import discovery
from energy_lightning.types import EnergyLightningError

pytestmark = pytest.mark.usefixtures("climb_alone")


@pytest.fixture
def climb_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas are found by the climb from one product, which takes a tenth of a second, without pyoperon."""
    monkeypatch.setattr(discovery, "searched", lambda *_, **__: [])


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """Energy that falls with the batch size and rises again, which the closed form cannot follow."""
    batch = np.tile([8, 32, 128, 512, 2048], 4)
    noise = np.exp(0.02 * np.random.default_rng(0).normal(size=20))
    table = pd.DataFrame({"batch_size": batch, "energy_j": (900.0 / batch**0.8 + 0.9 * batch**0.45) * noise})
    table.to_csv(tmp_path / "served.csv", index=False)
    return tmp_path / "served.csv"


@pytest.mark.parametrize("compared", ["true", "false"])
def test_a_found_formula_is_printed_saved_and_used(
    compared: str, csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["fit", "kind=inference", f"csv={csv}", "method=formula", f"consider_published={compared}"]
    assert command(*base, f"output_dir={tmp_path}/found") == 0
    output = capsys.readouterr().out
    powers = [float(power) for power in re.findall(r"batch_size\^(\S+)", output.partition("note:")[0])]
    assert min(powers) == pytest.approx(-0.8, abs=0.1)
    assert max(powers) == pytest.approx(0.45, abs=0.1)
    assert ("so the found formula is used" in output) == (compared == "true")
    assert "of rows apart from the fit" in output

    monkeypatch.setattr(discovery.FormulaSearch, "fit", lambda *_: pytest.fail("searched again"))
    found = f"{tmp_path}/found"
    assert command("predict", "inference", f"model_file={found}/model.yaml", f"csv={csv}", f"output_dir={found}/p") == 0
    fitted, predicted = pd.read_csv(f"{found}/predictions.csv"), pd.read_csv(f"{found}/p/predictions.csv")
    assert predicted.predicted_energy_j.to_numpy() == pytest.approx(fitted.fitted_energy_j.to_numpy())
    assert (predicted.low_energy_j < predicted.predicted_energy_j).all()
    parts = [name for name in predicted if name.startswith("predicted_term")]
    assert predicted[parts].sum(axis=1).to_numpy() == pytest.approx(predicted.predicted_energy_j.to_numpy())
    assert all(name.endswith("_j") for name in parts)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("form=logarithmic", "method=formula goes with form=additive, got form=logarithmic"),
        ("consider_published=3", "consider_published must be true or false, got 3"),
        ("seed=-1", "seed must be a whole number from 0 to 4294967295, got -1"),
    ],
)
def test_settings_that_do_not_go_together(
    argument: str, message: str, csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["fit", "kind=inference", f"csv={csv}", "method=formula", f"output_dir={tmp_path}/out"]
    assert command(*base, argument) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


def test_without_the_library_its_extra_is_named(
    csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("FormulaSearch needs pyoperon: pip install 'energy_lightning[discovery]'")

    monkeypatch.setattr(discovery, "searched", missing)
    assert command("fit", "kind=inference", f"csv={csv}", "method=formula", f"output_dir={tmp_path}/out") == 1
    assert "energy_lightning[discovery]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": 99}, "is of version 99, this energy_lightning knows 2: update it, or fit again"),
        ({"version": "new"}, "is of version new"),
        ({"table": "batch_size,energy_j\n1,much\n"}, "column energy_j must hold numbers: row 0 has 'much'"),
        ({"found": {"chosen": "found"}}, "no found formula can be read ('terms'): search again"),
    ],
)
def test_model_files_that_cannot_be_used(changed: dict[str, object], message: str, csv: Path, tmp_path: Path) -> None:
    content = {"kind": "inference", "emulated": False, "settings": {"method": "formula"}, "table": csv.read_text()}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(content | changed))
    with pytest.raises(EnergyLightningError, match=re.escape(message)):
        _ = EnergyModel.load(tmp_path / "m.yaml", "inference").predicting
