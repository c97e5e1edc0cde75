"""Predictors in the hands of someone in a hurry: filtered tables, lost columns, odd settings, other units."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lens_tables import measured
from sklearn.exceptions import NotFittedError

from energy_lightning.predict import (
    EnergyLens,
    FineTuningEnergy,
    FormulaSearch,
    OutOfRangeWarning,
    PredictionError,
    SpeedupLaw,
    UnitWarning,
    mape_pct,
    scores,
)

TABLE, ENERGY = measured(30, noise=0.05)
LENS = EnergyLens(num_starts=1).fit(TABLE, ENERGY)
SIZES = {"num_layers": 4, "hidden_size": 256, "ffn_size": 1024, "sequence_length": 128, "tokens": 1e6}
RUNS = pd.DataFrame(SIZES | {"batch_size": np.tile([8, 16, 32, 64], 4), "num_gpus": np.repeat([1, 2, 4, 8], 4)})
RUNS["strategy"] = np.where(RUNS.num_gpus == 1, "single", "fsdp")
RUN_ENERGY = 1e4 / RUNS.batch_size + 50.0 * RUNS.num_gpus
LAW = FineTuningEnergy().fit(RUNS, RUN_ENERGY)


@pytest.mark.parametrize(("fitted", "table"), [(LENS, TABLE), (LAW, RUNS)])
def test_terms_go_with_the_rows_that_they_explain(fitted: Any, table: pd.DataFrame) -> None:
    chosen = table[table.batch_size > 8]
    terms = fitted.explain(chosen)
    assert list(terms.index) == list(chosen.index) != list(range(len(chosen)))
    assert terms.sum(axis=1).to_numpy() == pytest.approx(fitted.predict(chosen))


@pytest.mark.parametrize("level", [0, 1, 90, -0.1, float("nan"), "0.9", True])
def test_a_level_is_a_probability(level: Any) -> None:
    for ask in (LENS.predict_interval, LAW.predict_interval):
        with pytest.raises(PredictionError, match="level must be a probability between 0 and 1"):
            ask(TABLE if ask == LENS.predict_interval else RUNS, level=level)
    with pytest.raises(PredictionError, match="level must be"):
        LENS.parameter_intervals(level=level)


@pytest.mark.parametrize("num_draws", [0, 1, -3, 20.5])
def test_intervals_need_draws(num_draws: Any) -> None:
    with pytest.raises(PredictionError, match="num_draws must be a whole number >= 10"):
        LENS.predict_interval(TABLE, num_draws=num_draws)


@pytest.mark.parametrize("settings", [{"num_starts": "6"}, {"num_starts": 1.5}, {"crowding": "no"}])
def test_settings_of_another_kind_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(PredictionError, match=f"^{next(iter(settings))} must be"):
        EnergyLens(**settings).fit(TABLE, ENERGY)


def test_a_column_that_varied_in_the_fit_is_no_1_in_a_prediction() -> None:
    with pytest.raises(PredictionError, match="the fit had column tensor_parallel, 1 to 8"):
        LENS.predict(TABLE.drop(columns="tensor_parallel"))


def test_a_column_that_did_not_vary_may_be_left_out() -> None:
    table = TABLE.assign(input_tokens=512)
    lens = EnergyLens(num_starts=1).fit(table, ENERGY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lens.predict(table.drop(columns="input_tokens")) == pytest.approx(lens.predict(table))


def test_warnings_point_at_the_line_that_predicts() -> None:
    with pytest.warns(OutOfRangeWarning) as warned:
        LENS.predict(TABLE.assign(batch_size=10_000))
    with pytest.warns(UnitWarning) as of_units:
        EnergyLens(num_starts=1).fit(TABLE, ENERGY / 3.6e6)
    assert [str(each.filename) for each in (*warned, *of_units)] == [__file__] * 2


def test_a_strategy_that_no_fitted_run_had_is_said() -> None:
    with pytest.warns(OutOfRangeWarning, match="no fitted run had strategy tp"):
        LAW.predict(RUNS[RUNS.num_gpus > 1].assign(strategy="tp"))


@pytest.mark.parametrize(
    "laws", [{"fsdp": 3.0}, {"fsdp": SpeedupLaw("tp", (3.0, 0.5))}, [SpeedupLaw("fsdp", (0.01, 1.2))]]
)
def test_speedup_laws_are_those_of_their_strategies(laws: Any) -> None:
    with pytest.raises(PredictionError, match="speedup_laws must give each strategy its own SpeedupLaw"):
        FineTuningEnergy(speedup_laws=laws).fit(RUNS, RUN_ENERGY)


def test_half_a_gpu_trains_nothing() -> None:
    with pytest.raises(PredictionError, match=r"num_gpus must be >= 1: row 0 has 0\.5"):
        LAW.predict(RUNS.assign(strategy="fsdp", num_gpus=0.5))
    with pytest.raises(PredictionError, match="num_gpus must be >= 1"):
        SpeedupLaw.fit("tp", [0.5, 2, 4], [0.5, 2, 3])


def test_throughputs_are_no_speedups() -> None:
    with pytest.raises(PredictionError, match=r"over one GPU, where they are 1, got 5\.2 there"):
        SpeedupLaw.fit("tp", [1, 2, 4, 8], [5.2, 7.6, 9.3, 9.8])
    with pytest.raises(PredictionError, match=r"parameters must be \(s_max, k\)"):
        SpeedupLaw("tp", (3.0,))  # type: ignore[arg-type]


def test_a_prediction_that_is_no_number_scores_nothing() -> None:
    with pytest.raises(PredictionError, match="with 1 that are not finite"):
        scores([1.0, 2.0, 3.0], [np.nan, 1.0, 2.0])
    with pytest.raises(PredictionError, match=r"each of 3 energies, got shape \(1,\)"):
        mape_pct([1.0, 2.0, 3.0], [1.0])


class Frame:
    """What frames of other libraries have in common."""

    columns = tuple(TABLE.columns)

    def __getitem__(self, name: str) -> list[float]:
        return list(TABLE[name])


def test_frames_of_other_libraries_are_read_and_chosen_from() -> None:
    assert LENS.predict(Frame()) == pytest.approx(LENS.predict(TABLE))
    assert dict(LENS.select(Frame())) == dict(LENS.select(TABLE))


def test_a_limit_is_a_number() -> None:
    with pytest.raises(PredictionError, match="max_latency must be a number in latency_s's unit, got '1'"):
        LENS.select(TABLE.assign(latency_s=1.0), latency_column="latency_s", max_latency="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [lambda s: s.explain(TABLE), lambda s: s.predict_interval(TABLE)])
def test_a_search_that_was_not_fitted_says_so(ask: Callable[[FormulaSearch], Any]) -> None:
    with pytest.raises(NotFittedError):
        ask(FormulaSearch())


def test_a_search_flags_units_and_counts_its_columns() -> None:
    pytest.importorskip("pyoperon")
    search, table = FormulaSearch(num_searches=1, num_evaluations=100, consider_published=False), TABLE[["batch_size"]]
    with pytest.warns(UnitWarning, match="kWh"):
        search.fit(table, ENERGY / 3.6e6)
    assert "kWh" in search.notes_[0]
    assert (search.n_features_in_, list(search.feature_names_in_)) == (1, ["batch_size"])
    assert list(search.explain(table[5:]).index) == list(table[5:].index)
