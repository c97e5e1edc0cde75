"""EnergyLens against laws written down in the tests."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from lens_tables import configurations, measured, published_law
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from energy_lightning.predict import (
    EnergyLens,
    FallbackWarning,
    OutOfRangeWarning,
    PredictionError,
    UnitWarning,
    mape_pct,
)


@pytest.mark.parametrize(("method", "limit_pct"), [("robust", 1.0), ("published", 8.0)])
def test_the_law_behind_a_table_is_found(method: str, limit_pct: float) -> None:
    lens = EnergyLens(method=method).fit(*measured(50))
    new = configurations(200, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        assert mape_pct(published_law(new), lens.predict(new)) < limit_pct


def test_outliers_move_the_fit_little() -> None:
    table, energy = measured(50, noise=0.02)
    energy[[3, 20, 41]] *= [8.0, 0.1, 6.0]
    clean = np.delete(np.arange(50), [3, 20, 41])
    assert mape_pct(energy[clean], EnergyLens().fit(table, energy).predict(table)[clean]) < 5.0


@pytest.mark.parametrize("form", ["additive", "logarithmic"])
def test_the_printed_formula_is_the_prediction(form: str) -> None:
    table, energy = measured(30, noise=0.05)
    lens = EnergyLens(form=form).fit(table, energy)
    text = lens.formula(digits=12).removeprefix("E = ").replace("^", "**").replace("\n", "")
    names = {column: table[column].to_numpy(float) for column in table}
    assert eval(text, {"ln": np.log}, names) == pytest.approx(lens.predict(table), rel=1e-8)


def test_parameters_are_in_joules_and_the_columns_units() -> None:
    table, energy = measured(30, noise=0.05)
    lens = EnergyLens().fit(table, energy)
    c = lens.parameters_
    batch, tp, pp = table.batch_size, table.tensor_parallel, table.pipeline_parallel
    prefill = c["alpha_p"] * table.input_tokens / (batch ** c["beta_p"] + c["eps_p"]) * tp ** c["gamma1_p"]
    decode = c["alpha_d"] * table.output_tokens / (batch ** c["beta_d"] + c["eps_d"]) * tp ** c["gamma1_d"]
    saturated = c["alpha_s"] * table.output_tokens * tp ** c["gamma1_s"] * pp ** c["gamma2_s"]
    overhead = c["delta1"] * tp + c["delta2"] * pp
    split = lens.explain(table)
    assert split["prefill_j"].to_numpy() == pytest.approx((prefill * pp ** c["gamma2_p"]).to_numpy())
    assert split["decode_j"].to_numpy() == pytest.approx((decode * pp ** c["gamma2_d"] + saturated).to_numpy())
    assert split["overhead_j"].to_numpy() == pytest.approx(overhead.to_numpy())
    assert split.sum(axis=1).to_numpy() == pytest.approx(lens.predict(table))


def test_logarithmic_law_is_found() -> None:
    table = configurations(40, 2)
    ratio = table.output_tokens / (0.4 * table.input_tokens * table.tensor_parallel * table.pipeline_parallel)
    energy = 900.0 / table.batch_size**0.6 * table.tensor_parallel**0.5 * np.log(1.3 + ratio)
    lens = EnergyLens(form="logarithmic").fit(table, energy)
    assert mape_pct(energy, lens.predict(table)) < 3.0


def test_missing_token_columns_count_as_constant() -> None:
    table, energy = measured(20)
    few = table[["batch_size", "tensor_parallel", "pipeline_parallel"]]
    constant = few.assign(input_tokens=1.0, output_tokens=1.0)
    assert EnergyLens().fit(few, energy).predict(few) == pytest.approx(
        EnergyLens().fit(constant, energy).predict(constant), rel=1e-6
    )


def test_constant_columns_get_no_exponent_and_are_named() -> None:
    table, energy = measured(20)
    lens = EnergyLens().fit(table.assign(tensor_parallel=4, pipeline_parallel=1), energy)
    for name in ("gamma1_p", "gamma1_d", "gamma2_p", "gamma2_d"):
        assert lens.parameters_[name] == 0.0
    assert lens.parameters_["delta2"] < 1e-9
    assert "tensor_parallel, pipeline_parallel" in lens.notes_[0]
    assert "pipeline_parallel" not in lens.formula()


def test_pooled_models_have_exponents_and_a_factor_each() -> None:
    rng = np.random.default_rng(0)
    table, energy = measured(60)
    total = rng.choice([4.0, 14.0, 70.0], 60)
    odd = np.where(total == 14.0, 1.3, 1.0)  # one model costs more than its size tells
    table = table.assign(total_params_b=total, activated_params_b=total / 2.0)
    lens = EnergyLens().fit(table, energy * (total / 10.0) ** 0.8 * odd)
    assert mape_pct(energy * (total / 10.0) ** 0.8 * odd, lens.predict(table)) < 3.0
    factors = {total: factor for (_, total), factor in lens.model_effects_.items()}
    assert factors[14.0] / np.sqrt(factors[4.0] * factors[70.0]) > 1.15


def crowded(num_rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Three models whose energy falls with the batch size and rises again, and 2% noise."""
    rng = np.random.default_rng(seed)
    batch, total = rng.choice([16, 64, 128, 256, 512, 1024, 2048], num_rows), rng.choice([3.0, 13.0, 70.0], num_rows)
    energy = total**0.8 * (300.0 / batch**0.9 + 2.0 + 0.15 * batch**0.5) * np.exp(0.02 * rng.normal(size=num_rows))
    return pd.DataFrame({"batch_size": batch, "total_params_b": total, "activated_params_b": total}), energy


def test_energy_that_rises_again_with_the_batch_is_followed_where_models_are_pooled() -> None:
    table, energy = crowded(60, 0)
    new, truth = crowded(200, 1)
    lens = EnergyLens().fit(table, energy)
    assert mape_pct(truth, lens.predict(new)) < 4.0
    assert mape_pct(truth, EnergyLens(crowding=False).fit(table, energy).predict(new)) > 8.0
    predicted = {size: lens.predict(new[new.batch_size == size]).mean() for size in (16, 256, 2048)}
    assert predicted[16] > predicted[256] < predicted[2048]
    split = lens.explain(new)
    assert split["crowding_j"].to_numpy()[new.batch_size == 2048].min() > 0.0
    assert split.sum(axis=1).to_numpy() == pytest.approx(lens.predict(new))
    assert "crowding_j" not in EnergyLens().fit(table[["batch_size"]], energy).explain(table[["batch_size"]])


def test_the_printed_formula_of_pooled_models_is_the_prediction_but_for_their_factors() -> None:
    table, energy = crowded(60, 0)
    lens = EnergyLens(model_effects=False).fit(table, energy)
    text = lens.formula(digits=12).removeprefix("E = ").replace("^", "**").replace("\n", "")
    ones = {name: 1.0 for name in ("input_tokens", "output_tokens", "tensor_parallel", "pipeline_parallel")}
    names = ones | {column: table[column].to_numpy(float) for column in table}
    assert eval(text, {}, names) == pytest.approx(lens.predict(table), rel=1e-8)


def test_select_is_the_least_prediction_within_the_limit() -> None:
    table, energy = measured(40)
    table["latency_s"] = np.random.default_rng(1).uniform(1.0, 9.0, 40)
    lens = EnergyLens().fit(table.drop(columns="latency_s"), energy)
    predicted = lens.predict(table)
    assert lens.select(table).name == predicted.argmin()
    allowed = [i for i in range(40) if table.latency_s[i] <= 3.0]
    chosen = lens.select(table, latency_column="latency_s", max_latency=3.0)
    assert chosen.name == min(allowed, key=lambda i: predicted[i])
    assert chosen.predicted_energy_j == predicted[chosen.name]
    with pytest.raises(PredictionError, match=r"no configuration has latency_s <= 0\.5; the lowest is"):
        lens.select(table, latency_column="latency_s", max_latency=0.5)
    with pytest.raises(PredictionError, match="together"):
        lens.select(table, max_latency=0.5)


@pytest.mark.parametrize("column", ["latency_s", None])
def test_pareto_holds_what_nothing_beats(column: str | None) -> None:
    table, energy = measured(40)
    table["latency_s"] = np.random.default_rng(1).uniform(1.0, 9.0, 40)
    lens = EnergyLens().fit(table.drop(columns="latency_s"), energy)
    second = table.latency_s if column else table.tensor_parallel * table.pipeline_parallel
    points = list(zip(second, lens.predict(table), strict=True))
    expected = {
        i for i, (x, y) in enumerate(points) if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
    }
    assert set(lens.pareto(table, latency_column=column).index) == expected


def test_it_is_a_scikit_learn_estimator() -> None:
    table, energy = measured(30, noise=0.05)
    lens = EnergyLens(seed=3, num_starts=2)
    assert clone(lens).get_params() == lens.get_params()
    assert lens.get_params()["num_starts"] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        assert cross_val_score(lens, table, energy, cv=3).min() > 0.8
    assert (clone(lens).fit(table, energy).predict(table) == lens.fit(table, energy).predict(table)).all()


def test_a_mapping_of_sequences_is_a_table() -> None:
    table, energy = measured(20)
    plain = {name: list(values) for name, values in table.items()}
    before = {name: list(values) for name, values in plain.items()}
    assert (
        EnergyLens().fit(plain, list(energy)).predict(plain) == EnergyLens().fit(table, energy).predict(table)
    ).all()
    assert plain == before


def test_the_energy_of_a_token_that_stops_to_fall_with_the_batch_is_followed() -> None:
    """Past some batch the energy is in proportion to the tokens: fewer tokens are then cheaper than a larger batch."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"batch_size": np.repeat([8, 32, 128, 512, 2048], 4), "output_tokens": rng.uniform(900, 1100, 20)}
    )
    energy = table.output_tokens * (2.0 / table.batch_size**0.9 + 0.05) * np.exp(0.01 * rng.normal(size=20))
    new = pd.DataFrame({"batch_size": [512, 2048], "output_tokens": [905.0, 1085.0]})
    robust, published = (EnergyLens(method=m).fit(table, energy) for m in ("robust", "published"))
    assert robust.select(new).batch_size == 512
    assert (
        robust.predict(new)[1] / robust.predict(new)[0] > 1.03 > published.predict(new)[1] / published.predict(new)[0]
    )
    assert "output_tokens\n" in robust.formula() or robust.formula().endswith("output_tokens")
    assert "alpha_s" in robust.parameters_
    assert "alpha_s" not in published.parameters_


def test_intervals_hold_new_measurements_as_often_as_they_say() -> None:
    lens = EnergyLens().fit(*measured(50, noise=0.1))
    new, energy = measured(300, seed=5, noise=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        low, high = lens.predict_interval(new, level=0.9, num_draws=60)
    assert 0.8 < ((low < energy) & (energy < high)).mean() < 0.98
    ranges = lens.parameter_intervals(num_draws=60)
    assert set(ranges) == set(lens.parameters_)
    truth = {"beta_p": 0.2, "beta_d": 0.75, "gamma1_p": 0.25, "gamma2_p": 0.1, "gamma1_d": 0.35, "gamma2_d": 0.6}
    assert sum(ranges[name][0] < value < ranges[name][1] for name, value in truth.items()) >= 4
    assert all(high - low < 1.0 for low, high in (ranges[name] for name in truth))


_GOOD = measured(20)


@pytest.mark.parametrize(
    ("table", "energy", "message"),
    [
        (_GOOD[0].drop(columns="batch_size"), _GOOD[1], "missing column batch_size; the table has input_tokens"),
        (_GOOD[0].assign(batch_size=[0, *_GOOD[0].batch_size[1:]]), _GOOD[1], "column batch_size.*row 0 has 0"),
        (_GOOD[0].assign(tensor_parallel=-1), _GOOD[1], "column tensor_parallel.*row 0 has -1"),
        (_GOOD[0].assign(input_tokens=np.nan), _GOOD[1], "column input_tokens.*row 0 has nan"),
        (_GOOD[0].assign(input_tokens="many"), _GOOD[1], "column input_tokens must hold numbers"),
        (_GOOD[0], [0.0, *_GOOD[1][1:]], "energy_j must be finite and > 0: row 0 has 0"),
        (_GOOD[0], [*_GOOD[1][:-1], 1e308], "energy_j must be 1e-30 to 1e\\+30 J: row .* has 1e\\+308"),
        (
            {"batch_size": [1.0] * 8, "input_tokens": [1.0] * 7},
            [1.0] * 8,
            "column input_tokens has 7 values, column batch_size 8",
        ),
        (_GOOD[0], [*_GOOD[1][:-1], -3.0], "row 19 has -3"),
        (_GOOD[0], [*_GOOD[1][:-1], np.nan], "row 19 has nan"),
        (_GOOD[0], _GOOD[1][:-1], "energy_j has 19 values, the table 20 rows"),
        (_GOOD[0].iloc[:0], [], "at least one row"),
        (_GOOD[0].to_numpy(), _GOOD[1], "named columns, got ndarray"),
        (_GOOD[0].assign(total_params_b=7.0), _GOOD[1], "the other of"),
    ],
)
def test_bad_tables_are_refused(table: object, energy: object, message: str) -> None:
    with pytest.raises(PredictionError, match=re.sub(r" ", r"\\s", message)):
        EnergyLens().fit(table, energy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "cubic"}, "choose one of additive"),
        ({"method": "x"}, "robust, published"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"seed": "x"}, "seed must be a whole number >= 0, got 'x'"),
        ({"num_starts": 0}, ">= 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(PredictionError, match=message):
        EnergyLens(**settings).fit(*_GOOD)


@pytest.mark.parametrize(
    ("table", "energy", "reason"),
    [
        (_GOOD[0].iloc[:3], _GOOD[1][:3], "3 rows are too few"),
        (pd.DataFrame({"batch_size": [8.0] * 6}), [1.0, 2.0, 4.0, 1.0, 2.0, 4.0], "no column varies"),
    ],
)
def test_too_little_to_fit_on_falls_back_to_the_mean(table: pd.DataFrame, energy: list[float], reason: str) -> None:
    with pytest.warns(FallbackWarning, match=reason):
        lens = EnergyLens().fit(table, energy)
    assert reason in lens.fallback_
    assert lens.predict(table) == pytest.approx(np.exp(np.log(energy).mean()))
    assert lens.explain(table).to_numpy().sum(axis=1) == pytest.approx(lens.predict(table))
    assert lens.formula().startswith("E = ")
    with pytest.raises(PredictionError, match="no intervals"):
        lens.predict_interval(table)


@pytest.mark.parametrize(("factor", "guess"), [(1.0 / 3.6e6, "kWh"), (1e9, "mJ")])
def test_suspicious_magnitudes_are_flagged(factor: float, guess: str) -> None:
    with pytest.warns(UnitWarning, match=guess):
        lens = EnergyLens().fit(_GOOD[0], _GOOD[1] * factor)
    assert any("suspicious magnitude" in note for note in lens.notes_)


def test_single_rows_in_another_unit_are_flagged() -> None:
    table, energy = measured(40)
    energy[[7, 9]] /= 3.6e6
    with pytest.warns(UnitWarning, match="2 of 40 rows, the first is row 7"):
        lens = EnergyLens().fit(table, energy)
    assert any("2 of 40 rows" in note for note in lens.notes_)


def test_joules_are_not_flagged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EnergyLens().fit(*_GOOD).predict(_GOOD[0])


def test_extrapolation_is_named() -> None:
    lens = EnergyLens().fit(*_GOOD)
    with pytest.warns(OutOfRangeWarning, match="batch_size in 20 rows"):
        lens.predict(_GOOD[0].assign(batch_size=4096))


def test_a_column_of_the_fit_may_not_disappear() -> None:
    table = _GOOD[0].assign(total_params_b=np.arange(1, 21), activated_params_b=np.arange(1, 21))
    lens = EnergyLens().fit(table, _GOOD[1])
    with pytest.raises(PredictionError, match="the fit had column activated_params_b"):
        lens.predict(_GOOD[0])
