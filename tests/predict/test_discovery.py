"""FormulaSearch: formulas are read and never executed; known structures are found or the closed form is kept."""

from __future__ import annotations

import math
import sys

import numpy as np
import pandas as pd
import pytest
from lens_tables import measured
from sklearn.base import clone

from energy_lightning.predict import FormulaSearch, OutOfRangeWarning, PredictionError, mape_pct
from energy_lightning.predict.discovery import ADDITIVE, Formula

TEXT = "((-1.5) + (2.0 * exp(((0.25 * x) - log((3.0 * y))))))"
LOGS = {"x": np.array([0.5, 1.0, 2.0]), "y": np.array([1.0, 4.0, 0.2])}


def test_a_formula_has_the_value_of_its_text() -> None:
    formula = Formula(TEXT)
    assert formula.names == ["x", "y"]
    expected = [
        eval(TEXT, {"exp": math.exp, "log": math.log, "x": x, "y": y}) for x, y in zip(*LOGS.values(), strict=True)
    ]
    assert formula.value(LOGS, formula.constants) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["__import__('os')", "x.y", "open(x)", "x / y", "exp(x, y)", "[x]", "'a'", "x < y"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(PredictionError, match="a formula may hold numbers"):
        Formula(text)


def test_constants_are_fitted() -> None:
    x = np.linspace(0.0, 4.0, 20)
    found = Formula("(2.0 + ((-1.0) * exp((0.3 * x))))").fitted({"x": x}, 3.0 - 0.5 * np.exp(0.4 * x))
    assert found == pytest.approx([3.0, 0.5, 0.4], rel=1e-3)  # the sign is no constant


def rising() -> tuple[pd.DataFrame, np.ndarray]:
    """Energy that falls with the batch size and rises again, which the closed form cannot follow."""
    rng = np.random.default_rng(0)
    batch, tp = rng.choice([8, 16, 32, 64, 128, 256, 512, 1024, 2048], 60), rng.choice([1, 2, 4], 60)
    energy = (900.0 / batch**0.8 + 0.9 * batch**0.45) * tp**0.3 * np.exp(0.02 * rng.normal(size=60))
    return pd.DataFrame({"batch_size": batch, "tensor_parallel": tp}), energy


def test_a_structure_that_the_closed_form_lacks_is_found() -> None:
    pytest.importorskip("pyoperon")
    table, energy = rising()
    search = FormulaSearch(max_length=16, num_evaluations=15_000).fit(table, energy)
    closed = next(c for c in search.candidates_ if c.formula == ADDITIVE)
    assert search.chosen_.cv_rmse < 0.5 * closed.cv_rmse
    assert mape_pct(energy, search.predict(table)) < 6.0
    assert search.formula().startswith("ln E = ")
    text = search.formula(digits=12).removeprefix("ln E = ")
    columns = {name: table[name].to_numpy(float) for name in table}
    value = eval(text, {"exp": np.exp, "log": np.log, "ln": np.log}, columns)
    assert np.exp(value) == pytest.approx(search.predict(table))
    assert search.select(table).predicted_energy_j == search.predict(table).min()
    again = clone(search).fit(table, energy)
    assert (again.predict(table) == search.predict(table)).all()
    with pytest.warns(OutOfRangeWarning, match="batch_size"):
        search.predict(table.assign(batch_size=4))


def test_the_published_shape_is_kept_where_it_predicts_best() -> None:
    pytest.importorskip("pyoperon")
    table, energy = measured(60, noise=0.03)
    search = FormulaSearch(max_length=16, num_evaluations=5_000).fit(table, energy)
    assert search.chosen_.formula == ADDITIVE
    assert "output_tokens / (batch_size^" in search.formula()
    assert mape_pct(energy, search.predict(table)) < 5.0


def test_complexity_costs() -> None:
    pytest.importorskip("pyoperon")
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"batch_size": rng.choice([8, 16, 32, 64, 128], 40)})
    energy = 500.0 / table.batch_size**0.7 * np.exp(0.1 * rng.normal(size=40))
    search = FormulaSearch(max_length=16, num_evaluations=5_000).fit(table, energy)
    best = min(search.candidates_, key=lambda c: c.cv_rmse)
    good = [c for c in search.candidates_ if c.cv_rmse <= best.cv_rmse + best.cv_error]
    assert search.chosen_.length == min(c.length for c in good) < max(c.length for c in search.candidates_)


def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table, energy = rising()
    with pytest.raises(PredictionError, match="a search needs 12 rows"):
        FormulaSearch().fit(table.iloc[:8], energy[:8])
    with pytest.raises(PredictionError, match="missing column batch_size"):
        FormulaSearch().fit(table[["tensor_parallel"]], energy)
    with pytest.raises(PredictionError, match="row 0 has nan"):
        FormulaSearch().fit(table, [math.nan, *energy[1:]])
    monkeypatch.setitem(sys.modules, "pyoperon.sklearn", None)
    with pytest.raises(ImportError, match=r"energy_lightning\[discovery\]"):
        FormulaSearch().fit(table, energy)
