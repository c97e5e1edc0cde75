"""FormulaSearch: texts are read and never executed; the published shape is found from the data, or a better one."""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from lens_tables import configurations, measured, published_law
from scipy.optimize._numdiff import approx_derivative
from sklearn.base import clone

from energy_lightning.predict import FormulaSearch, OutOfRangeWarning, PredictionError, mape_pct
from energy_lightning.predict.power_sums import PowerSum, Term, _Fit, power_sum

QUICK = {"num_searches": 1, "num_evaluations": 10_000}
LOGS = {"x": np.array([0.5, 1.0, 2.0]), "y": np.array([1.0, 4.0, 0.2])}


def test_a_text_that_is_a_sum_of_products_is_read() -> None:
    text = "(0.5 + (2.0 * (exp(((0.25 * x) - (1.5 * y))) + exp((y + 3.0)))))"
    found = power_sum(text)
    assert found is not None
    expected = [eval(text, {"exp": math.exp, "x": x, "y": y}) for x, y in zip(LOGS["x"], LOGS["y"], strict=True)]
    assert np.exp(found.log_energy(LOGS, 3)) == pytest.approx(expected)
    assert found.structure == ((), ("x", "y"), ("y",))
    assert found.num_constants == 6


@pytest.mark.parametrize(
    "text", ["(x + exp(y))", "(exp(x) + (-2.0))", "((-1.0) * exp(x))", "exp(exp(x))", "exp((y + exp(x)))", "(x * y)"]
)
def test_other_formulas_are_no_sums_of_products(text: str) -> None:
    assert power_sum(text) is None


@pytest.mark.parametrize("text", ["__import__('os')", "x.y", "open(x)", "x / y", "exp(x, y)", "[x]", "'a'", "x < y"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(PredictionError, match="a formula may hold numbers"):
        power_sum(text)


def test_constants_are_fitted_and_outliers_move_them_little() -> None:
    rng = np.random.default_rng(0)
    logs = {"x": rng.uniform(0.0, 4.0, 80), "y": rng.uniform(-1.0, 3.0, 80)}
    target = np.log(3.0 * np.exp(0.7 * logs["x"] - 1.2 * logs["y"]) + 5.0)
    target[[3, 40]] += [2.0, -2.0]
    found = PowerSum((Term(0.0, {"x": 0.1, "y": -0.1}), Term(0.0, {}))).fitted(logs, target)
    first, second = found.terms
    assert np.exp([first.log_factor, second.log_factor]) == pytest.approx([3.0, 5.0], rel=0.03)
    assert [first.exponents["x"], first.exponents["y"]] == pytest.approx([0.7, -1.2], abs=0.02)


def test_neighbours_are_one_column_or_one_term_away() -> None:
    formula = PowerSum((Term(1.0, {"x": 1.0}), Term(0.0, {})))
    found = {each.structure for each in formula.neighbours(["x", "y"], LOGS, np.zeros(3))}
    assert found == {
        ((),),
        (("x",),),
        ((), ()),  # x left out
        ((), ("x", "y")),
        (("x",), ("x",)),
        (("x",), ("y",)),
        ((), (), ("x",)),
        ((), ("x",), ("x",)),
        ((), ("x",), ("y",)),
    }


def additive_parts(formula: PowerSum) -> dict[str, Term]:
    """Terms by the tokens that they count; overheads are the others."""
    named = {}
    for term in formula.terms:
        tokens = {"input_tokens", "output_tokens"} & {n for n, power in term.exponents.items() if abs(power) > 0.5}
        named[" ".join(sorted(tokens)) or f"overhead {sorted(term.exponents)}"] = term
    return named


def test_the_published_shape_is_found_from_noisy_data() -> None:
    """Prefill, decode and overheads apart, each with its exponents, though the search knows of none of them."""
    pytest.importorskip("pyoperon")
    table, energy = measured(60, noise=0.03)
    search = FormulaSearch(consider_published=False, **QUICK).fit(table, energy)
    new = configurations(300, 77)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        assert mape_pct(published_law(new), search.predict(new)) < 3.0  # rows held out, without noise
    parts = additive_parts(search.found_)
    prefill, decode = parts.pop("input_tokens").exponents, parts.pop("output_tokens").exponents
    assert (prefill["input_tokens"], prefill["batch_size"]) == pytest.approx((1.0, -0.2), abs=0.06)
    assert (decode["output_tokens"], decode["batch_size"]) == pytest.approx((1.0, -0.75), abs=0.06)
    assert (decode["tensor_parallel"], decode["pipeline_parallel"]) == pytest.approx((0.35, 0.6), abs=0.06)
    assert parts
    assert all(name.startswith("overhead") for name in parts)
    text = search.formula(digits=12).removeprefix("E = ").replace("^", "**").replace("\n", "")
    columns = {name: table[name].to_numpy(float) for name in table}
    assert eval(text, {}, columns) == pytest.approx(search.predict(table))
    assert search.explain(table).sum(axis=1).to_numpy() == pytest.approx(search.predict(table))


def rising() -> tuple[pd.DataFrame, np.ndarray]:
    """Energy that falls with the batch size and rises again, which the closed form cannot follow."""
    rng = np.random.default_rng(0)
    batch, tp = rng.choice([8, 16, 32, 64, 128, 256, 512, 1024, 2048], 60), rng.choice([1, 2, 4], 60)
    energy = (900.0 / batch**0.8 + 0.9 * batch**0.45) * tp**0.3 * np.exp(0.02 * rng.normal(size=60))
    return pd.DataFrame({"batch_size": batch, "tensor_parallel": tp}), energy


def test_a_structure_that_the_closed_form_lacks_is_used() -> None:
    pytest.importorskip("pyoperon")
    table, energy = rising()
    search = FormulaSearch(num_folds=3, **QUICK).fit(table, energy)
    assert search.chosen_ == "found"
    assert search.cv_rmse_["found"] < 0.5 * search.cv_rmse_["EnergyLens"]
    powers = [term.exponents.get("batch_size", 0.0) for term in search.found_.terms]
    assert min(powers) < -0.7
    assert max(powers) > 0.4
    assert mape_pct(energy, search.predict(table)) < 3.0
    assert search.select(table).predicted_energy_j == search.predict(table).min()
    low, high = search.predict_interval(table, level=0.9)
    assert 0.75 < ((low < energy) & (energy < high)).mean() <= 1.0
    again = clone(search).fit(table, energy)
    assert (again.predict(table) == search.predict(table)).all()
    with pytest.warns(OutOfRangeWarning, match="batch_size"):
        search.predict(table.assign(batch_size=4))


def test_the_published_form_is_kept_where_it_predicts_better() -> None:
    """Its eps, which a power cannot follow: energy of small batches levels off."""
    pytest.importorskip("pyoperon")
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"batch_size": rng.choice([1, 2, 3, 4, 8, 16, 64], 30)})
    energy = 900.0 / (table.batch_size**2.0 + 1.0)
    search = FormulaSearch(num_folds=3, max_length=8, **QUICK).fit(table, energy)
    assert search.chosen_ == "EnergyLens"
    assert search.cv_rmse_["EnergyLens"] < search.cv_rmse_["found"]
    assert search.formula() == search.lens_.formula()
    assert (search.predict(table) == search.lens_.predict(table)).all()
    assert list(search.explain(table)) == ["prefill_j", "decode_j", "overhead_j"]


def test_constants_cost() -> None:
    pytest.importorskip("pyoperon")
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"batch_size": rng.choice([8, 16, 32, 64, 128], 40)})
    energy = 500.0 / table.batch_size**0.7 * np.exp(0.1 * rng.normal(size=40))
    search = FormulaSearch(consider_published=False, **QUICK).fit(table, energy)
    assert search.found_.structure == (("batch_size",),)
    assert search.found_.terms[0].exponents["batch_size"] == pytest.approx(-0.7, abs=0.05)
    assert max(candidate.num_constants for candidate in search.candidates_) > 2


def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table, energy = rising()
    with pytest.raises(PredictionError, match="a search needs 12 rows"):
        FormulaSearch().fit(table.iloc[:8], energy[:8])
    with pytest.raises(PredictionError, match=r"a search needs 20 rows .* got 15 rows"):
        FormulaSearch(num_folds=20).fit(table.iloc[:15], energy[:15])
    with pytest.raises(PredictionError, match="missing column batch_size"):
        FormulaSearch().fit(table[["tensor_parallel"]], energy)
    with pytest.raises(PredictionError, match="row 0 has nan"):
        FormulaSearch().fit(table, [math.nan, *energy[1:]])
    for setting in (
        {"seed": -1},
        {"seed": 0.5},
        {"seed": True},
        {"num_folds": 1},
        {"max_length": 0},
        {"penalty": -1.0},
    ):
        (name,) = setting
        with pytest.raises(PredictionError, match=f"{name} must be a"):
            FormulaSearch(**setting).fit(table, energy)
    monkeypatch.setitem(sys.modules, "pyoperon.sklearn", None)
    with pytest.raises(ImportError, match=r"energy_lightning\[discovery\]"):
        FormulaSearch().fit(table, energy)


def test_a_found_formula_is_used_again_without_a_search() -> None:
    table, energy = rising()
    terms = [
        {"factor_j": 900.0, "exponents": {"batch_size": -0.8, "tensor_parallel": 0.3}},
        {"factor_j": 0.9, "exponents": {"batch_size": 0.45, "tensor_parallel": 0.3}},
    ]
    error = [0.02] * 60
    found = {
        "chosen": "found",
        "terms": terms,
        "cv_rmse": {"found": 0.02, "EnergyLens": 0.3},
        "errors": {"found": error, "EnergyLens": error},
    }
    search = FormulaSearch().use(found, table, energy)
    batch, tp = table.batch_size.to_numpy(float), table.tensor_parallel.to_numpy(float)
    assert search.predict(table) == pytest.approx((900.0 / batch**0.8 + 0.9 * batch**0.45) * tp**0.3)
    assert search.apart_j(energy) == pytest.approx(energy * np.exp(0.02))
    assert search.notes_ == [
        "error of ln E on rows apart from the fit: 0.020 by search, 0.300 by EnergyLens, so the found formula is used"
    ]
    assert list(search.explain(table)) == [f"term{i} (batch_size, tensor_parallel)_j" for i in (1, 2)]
    again = FormulaSearch().use(search.found(), table, energy)
    assert again.predict(table) == pytest.approx(search.predict(table))
    with pytest.warns(OutOfRangeWarning, match="batch_size"):
        again.predict(table.assign(batch_size=4))


@pytest.mark.parametrize(
    "changed",
    [
        {"terms": []},
        {"terms": [{"factor_j": 1.0, "exponents": {"input_tokens": 1.0}}]},
        {"terms": [{"exponents": {}}]},
        {"errors": {"found": [0.1]}},
        {"errors": {"found": ["a"] * 60}},
        {"chosen": "EnergyLens"},
    ],
)
def test_what_no_search_found_is_refused(changed: dict[str, object]) -> None:
    table, energy = rising()
    terms = [{"factor_j": 1.0, "exponents": {"batch_size": -1.0}}]
    found = {"chosen": "found", "terms": terms, "cv_rmse": {"found": 0.1}, "errors": {"found": [0.1] * 60}}
    FormulaSearch().use(found, table, energy)
    with pytest.raises(PredictionError, match="search again"):
        FormulaSearch().use(found | changed, table, energy)


def test_the_fit_follows_the_slopes_of_its_residuals() -> None:
    rng = np.random.default_rng(0)
    logs = {"x": rng.normal(size=9), "y": rng.normal(size=9)}
    formula = PowerSum((Term(0.0, {"x": 1.0, "y": 1.0}), Term(0.0, {}), Term(0.0, {"y": 1.0})))
    fit = _Fit.of(formula, logs, 0.3 * rng.normal(size=9))
    constants = rng.normal(size=6)
    slopes = approx_derivative(fit.residuals, constants, method="3-point")  # (n + K, K)
    jacobian = fit.jacobian(constants).T
    assert jacobian == pytest.approx(slopes, rel=1e-5, abs=1e-5)
