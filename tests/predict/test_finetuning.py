"""FineTuningEnergy against runs whose energy is written down here, and on emulated runs."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from energy_lightning.emulation import GPU
from energy_lightning.predict import (
    FallbackWarning,
    FineTuningEnergy,
    OutOfRangeWarning,
    PredictionError,
    PredictionWarning,
    Proxies,
    SpeedupLaw,
    UnitWarning,
    mape_pct,
    sizes_of_config,
)
from energy_lightning.predict.sweep import FineTuningRun, emulate_run, emulated_sweep, random_runs


def runs(count: int, seed: int = 0, noise: float = 0.0) -> pd.DataFrame:
    """A GPU with a launch overhead, a saturating compute rate and slow links; energy by time and by work."""
    rng = np.random.default_rng(seed)
    t = pd.DataFrame(
        {
            "num_layers": rng.choice([2, 4, 6, 8, 12], count),
            "hidden_size": rng.choice([128, 256, 512, 768, 1280], count),
            "ffn_size": rng.choice([512, 1024, 2048, 4096], count),
            "sequence_length": rng.choice([64, 128, 256], count),
            "batch_size": rng.choice([8, 16, 32, 64], count),
            "tokens": rng.choice([1e6, 2e6, 4e6], count),
            "strategy": rng.choice(["single", "tp", "fsdp"], count),
        }
    )
    t["num_gpus"] = np.where(t.strategy == "single", 1, rng.choice([2, 4, 8], count))
    n, steps = t.num_gpus, t.tokens / (t.batch_size * t.sequence_length)
    weights = t.num_layers * (4.0 * t.hidden_size**2 + 2.0 * t.hidden_size * t.ffn_size)
    flops = t.batch_size * t.sequence_length * (6.0 * weights + 12.0 * t.num_layers * t.sequence_length * t.hidden_size)
    launch_s, compute_s = 6e-4 * t.num_layers + 2e-3, flops / 2e13
    alone_s = np.maximum(launch_s, compute_s) + 0.3 * np.minimum(launch_s, compute_s) + weights * 28 / 5e11
    sent = np.where(
        t.strategy == "tp", t.num_layers * t.batch_size * t.sequence_length * t.hidden_size * 8, weights * 6
    )
    busy_s = np.maximum(launch_s, compute_s / n) + 0.3 * np.minimum(launch_s, compute_s / n)
    step_s = busy_s + weights * 28 / 5e11 / n + (n - 1) / n * sent / 8e9
    time_s = steps * step_s + 10.0
    t["speedup"] = (steps * alone_s + 10.0) / time_s
    t["energy_j"] = (n * 70.0 * time_s + steps * (flops * 4e-12 + 60.0 * alone_s)) * np.exp(
        noise * rng.normal(size=count)
    )
    return t


TABLE = runs(300, noise=0.04)
LEARN, REST = TABLE.iloc[:210], TABLE.iloc[210:]


def r2(measured: np.ndarray, predicted: np.ndarray) -> float:
    return 1.0 - float(((measured - predicted) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


@pytest.mark.parametrize("columns", [["speedup"], []], ids=["with speed-ups", "without"])
def test_runs_apart_are_predicted(columns: list[str]) -> None:
    dropped = [] if columns else ["speedup"]
    model = FineTuningEnergy().fit(LEARN.drop(columns=dropped), LEARN.energy_j)
    predicted = model.predict(REST.drop(columns=dropped))
    assert r2(REST.energy_j.to_numpy(), predicted) > 0.95
    assert mape_pct(REST.energy_j, predicted) < 10.0


def test_efficiency_explains_and_the_published_law_explains_less() -> None:
    ours = FineTuningEnergy().fit(TABLE, TABLE.energy_j).laws_["any"]
    published = FineTuningEnergy(law="published").fit(TABLE, TABLE.energy_j).laws_["any"]
    assert ours.regression.adjusted_r2 > 0.95
    for law in (ours, published):
        assert law.without_efficiency is not None
        assert law.without_efficiency.adjusted_r2 < law.regression.adjusted_r2 - 0.03
    assert published.regression.adjusted_r2 < ours.regression.adjusted_r2


def test_published_law_is_least_squares_on_its_proxies() -> None:
    law = FineTuningEnergy(law="published").fit(TABLE, TABLE.energy_j).laws_["any"]
    t = TABLE
    c = t.tokens * (12.0 * t.num_layers * t.hidden_size**2 + 3.0 * t.num_layers * t.sequence_length * t.hidden_size)
    m = t.batch_size * t.sequence_length * t.hidden_size * t.num_layers
    design = [
        np.ones(300),
        np.log(c),
        np.log(m),
        t.strategy == "tp",
        t.strategy == "fsdp",
        np.log(t.speedup / t.num_gpus),
    ]
    expected = np.linalg.lstsq(np.column_stack(design).astype(float), np.log(t.energy_j))[0]
    assert law.regression.names == ("intercept", "ln C", "ln M", "tp", "fsdp", "ln eta")
    assert law.regression.coefficients == pytest.approx(expected, rel=1e-6)


def test_mechanistic_law_finds_its_prices() -> None:
    t = TABLE.drop(columns="speedup")
    p = Proxies.of(**{name: t[name] for name in t.columns.drop(["strategy", "num_gpus", "energy_j"])})
    steps = t.tokens / (t.batch_size * t.sequence_length)
    energy = 3e-12 * p.compute_flops + 2e-7 * p.memory * steps + 50.0
    model = FineTuningEnergy(law="mechanistic").fit(t, energy)
    assert model.laws_["any"].prices == pytest.approx(
        {"J per FLOP": 3e-12, "J per value": 2e-7, "J per run": 50.0}, rel=1e-3
    )
    assert model.predict(t) == pytest.approx(energy.to_numpy(), rel=1e-3)


def test_intervals_hold_new_runs_as_often_as_they_say() -> None:
    low, high = FineTuningEnergy().fit(LEARN, LEARN.energy_j).predict_interval(REST, level=0.9)
    assert 0.8 < ((low < REST.energy_j) & (REST.energy_j < high)).mean() <= 1.0
    assert np.median(high / low) < 1.6


def test_terms_add_up() -> None:
    model = FineTuningEnergy().fit(TABLE, TABLE.energy_j)
    parts = model.explain(TABLE)
    assert parts.sum(axis=1).to_numpy() == pytest.approx(model.predict(TABLE))
    assert (parts.to_numpy() >= 0.0).all()


def test_summary_holds_what_an_auditor_needs() -> None:
    text = FineTuningEnergy().fit(TABLE, TABLE.energy_j).summary()
    for part in ("J per FLOP", "ln eta", "HC3 error", "adjusted R2", "RMSE", "without efficiency", "300 runs"):
        assert part in text


def test_each_gpu_model_has_its_law() -> None:
    other = runs(120, seed=8)
    both = pd.concat([LEARN.assign(gpu_model="slow"), other.assign(gpu_model="fast", energy_j=other.energy_j / 3.0)])
    model = FineTuningEnergy().fit(both, both.energy_j)
    alone = FineTuningEnergy().fit(LEARN, LEARN.energy_j)
    assert mape_pct(alone.predict(REST), model.predict(REST.assign(gpu_model="slow"))) < 3.0
    with pytest.raises(PredictionError, match="no law for gpu_model 'new'; fitted: slow, fast"):
        model.predict(REST.assign(gpu_model="new"))
    with pytest.raises(PredictionError, match="several GPU models, slow, fast: add a column gpu_model"):
        model.predict(REST)
    only = FineTuningEnergy().fit(LEARN.assign(gpu_model="slow"), LEARN.energy_j)
    assert only.predict(REST) == pytest.approx(alone.predict(REST))


@pytest.mark.parametrize("law", ["roofline", "published", "mechanistic"])
def test_a_gpu_model_with_few_runs_shares_the_law_but_for_a_factor(law: str) -> None:
    few = runs(5, seed=8)
    both = pd.concat([LEARN.assign(gpu_model="slow"), few.assign(gpu_model="fast", energy_j=few.energy_j / 3.0)])
    how = "lean on the others' law" if law == "roofline" else "share a law with the others but for a factor"
    with pytest.warns(FallbackWarning, match=rf"{how}: fast \(5\)"):
        model = FineTuningEnergy(law=law).fit(both, both.energy_j)
    assert "fast (5)" in model.notes_[-1]
    slow, fast = (model.predict(REST.assign(gpu_model=name)) for name in ("slow", "fast"))
    alone = FineTuningEnergy(law=law).fit(LEARN, LEARN.energy_j)
    assert slow == pytest.approx(alone.predict(REST), rel=0.05 if law == "roofline" else 1e-6)
    worse = mape_pct(REST.energy_j, slow) + (6.0 if law == "roofline" else 20.0)
    assert mape_pct(REST.energy_j / 3.0, fast) < worse
    if law != "published":
        assert model.explain(REST.assign(gpu_model="fast")).sum(axis=1).to_numpy() == pytest.approx(fast)


@pytest.mark.parametrize("column", ["gpu", "GPU name", "device"])
def test_the_column_of_gpu_models_may_have_another_usual_name(column: str) -> None:
    both = pd.concat([LEARN.assign(gpu_model="slow"), LEARN.assign(gpu_model="fast", energy_j=LEARN.energy_j / 3.0)])
    named = both.rename(columns={"gpu_model": column})
    new = REST.assign(**{column: "fast"})
    expected = FineTuningEnergy().fit(both, both.energy_j).predict(REST.assign(gpu_model="fast"))
    assert FineTuningEnergy().fit(named, named.energy_j).predict(new) == pytest.approx(expected)


def test_a_column_device_of_numbers_names_no_gpu_model() -> None:
    table = LEARN.assign(device=np.arange(len(LEARN)) % 2)
    assert set(FineTuningEnergy().fit(table, table.energy_j).laws_) == {"any"}


def test_runs_that_their_columns_do_not_explain_are_pointed_at() -> None:
    both = pd.concat([LEARN, LEARN.assign(energy_j=LEARN.energy_j / 3.0)])
    with pytest.warns(PredictionWarning, match=r"runs differ by \d\d% from what their columns tell.*column gpu_model"):
        model = FineTuningEnergy().fit(both, both.energy_j)
    assert "column gpu_model" in model.notes_[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FineTuningEnergy().fit(both.assign(gpu_model=["slow"] * 210 + ["fast"] * 210), both.energy_j)


@pytest.mark.parametrize("columns", [["speedup"], []], ids=["with speed-ups", "without"])
def test_twenty_runs_a_gpu_model_are_enough(columns: list[str]) -> None:
    errors = []
    for seed in range(6):
        slow, fast = runs(30, seed, noise=0.05), runs(30, seed + 50, noise=0.05)
        fast["energy_j"] *= 0.3 * (fast.hidden_size / 512.0) ** -0.1
        table = pd.concat([slow.assign(gpu_model="slow"), fast.assign(gpu_model="fast")], ignore_index=True)
        order = np.random.default_rng(seed).permutation(60)
        learn, rest = table.iloc[order[:42]], table.iloc[order[42:]]
        dropped = [] if columns else ["speedup"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutOfRangeWarning)
            model = FineTuningEnergy().fit(learn.drop(columns=dropped), learn.energy_j)
            errors.append(mape_pct(rest.energy_j, model.predict(rest.drop(columns=dropped))))
    assert np.mean(errors) < 10.0


def test_a_few_broken_runs_do_little_harm() -> None:
    broken = LEARN.energy_j * np.where(np.arange(len(LEARN)) % 25 == 3, 3.0, 1.0)
    worse = mape_pct(REST.energy_j, FineTuningEnergy().fit(LEARN, broken).predict(REST))
    assert worse < mape_pct(REST.energy_j, FineTuningEnergy().fit(LEARN, LEARN.energy_j).predict(REST)) + 1.5


def test_noisy_runs_on_two_gpu_models_are_predicted_well_enough() -> None:
    """160 emulated runs, single, tp and fsdp, two GPU models, 10% noise in energy, 3% in speed-ups."""
    rng = np.random.default_rng(0)
    tables = [pd.DataFrame(emulated_sweep(random_runs(80, s), GPU.load(n))) for s, n in ((1, "rtx2080ti"), (2, "a40"))]
    table = pd.concat(tables, ignore_index=True)
    table["energy_j"] *= np.exp(0.1 * rng.normal(size=len(table)))
    table["speedup"] *= np.where(table.num_gpus > 1, np.exp(0.03 * rng.normal(size=len(table))), 1.0)
    order = rng.permutation(len(table))
    learn, rest = table.iloc[order[:112]], table.iloc[order[112:]]
    for columns in (table.columns, table.columns.drop("speedup")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutOfRangeWarning)
            predicted = FineTuningEnergy().fit(learn[columns], learn.energy_j).predict(rest[columns])
        left = ((rest.energy_j - predicted) ** 2).sum() / ((rest.energy_j - rest.energy_j.mean()) ** 2).sum()
        assert 1.0 - left > 0.93
        assert mape_pct(rest.energy_j, predicted) < 15.0


def test_speedup_laws_stand_in_for_the_column() -> None:
    laws = {name: SpeedupLaw.preset("rtx2080ti", name) for name in ("tp", "fsdp")}
    plain = TABLE.drop(columns="speedup")
    speedup = [
        1.0 if s == "single" else float(laws[s].speedup(n)) for s, n in zip(plain.strategy, plain.num_gpus, strict=True)
    ]
    by_laws = FineTuningEnergy(speedup_laws=laws).fit(plain, TABLE.energy_j)
    by_column = FineTuningEnergy().fit(plain.assign(speedup=speedup), TABLE.energy_j)
    assert by_laws.predict(plain) == pytest.approx(by_column.predict(plain.assign(speedup=speedup)))
    with pytest.raises(PredictionError, match="speedup_laws has none for 'fsdp'"):
        FineTuningEnergy(speedup_laws={"tp": laws["tp"]}).fit(plain, TABLE.energy_j)


def test_speedup_of_one_gpu_may_be_missing() -> None:
    gaps = TABLE.assign(speedup=TABLE.speedup.where(TABLE.num_gpus > 1))
    ones = TABLE.assign(speedup=TABLE.speedup.where(TABLE.num_gpus > 1, 1.0))
    assert FineTuningEnergy().fit(gaps, TABLE.energy_j).predict(gaps) == pytest.approx(
        FineTuningEnergy().fit(ones, TABLE.energy_j).predict(ones)
    )


def test_select_finds_the_least() -> None:
    model = FineTuningEnergy().fit(LEARN, LEARN.energy_j)
    assert model.select(REST).predicted_energy_j == model.predict(REST).min()
    assert clone(model).get_params() == model.get_params()


def test_outside_the_fitted_range_a_warning_and_no_wild_correction() -> None:
    large = TABLE.iloc[[0]].assign(num_layers=96, hidden_size=12288, ffn_size=49152)
    predicted = []
    for correction in ("quadratic", "none"):
        model = FineTuningEnergy(correction=correction).fit(TABLE, TABLE.energy_j)
        with pytest.warns(OutOfRangeWarning, match=r"hidden_size in 1 rows \(fitted on 128 to 1280\)"):
            predicted.append(model.predict(large)[0])
    assert 0.5 < predicted[0] / predicted[1] < 2.0


_DROP = ["strategy", "tokens"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns=_DROP), "missing columns tokens, strategy; the table has num_layers"),
        (lambda t: t.assign(batch_size=0), "column batch_size must be finite and > 0: row 0 has 0"),
        (lambda t: t.assign(hidden_size=np.nan), "column hidden_size.*row 0 has nan"),
        (lambda t: t.assign(strategy="ddp"), "unknown strategy 'ddp' in row 0; choose one of single, tp, fsdp"),
        (lambda t: t.assign(strategy="single", num_gpus=4), "strategy 'single' and num_gpus=4"),
        (lambda t: t.assign(speedup=-1.0), "column speedup.*row 0 has -1"),
        (lambda t: t.to_numpy(), "named columns, got ndarray"),
        (lambda t: t.iloc[:0], "at least one row"),
        (lambda t: t.assign(gpu_model=["a40", None, *["a40"] * (len(t) - 2)]), "column gpu_model is empty in row 1"),
    ],
)
def test_bad_tables_are_refused(change: object, message: str) -> None:
    with pytest.raises(PredictionError, match=re.sub(" ", r"\\s", message)):
        FineTuningEnergy().fit(change(TABLE), TABLE.energy_j)  # type: ignore[operator]


@pytest.mark.parametrize("bad", [0.0, -5.0, np.nan, np.inf])
def test_bad_energies_are_refused(bad: float) -> None:
    with pytest.raises(PredictionError, match="energy_j must be finite and > 0: row 2"):
        FineTuningEnergy().fit(TABLE, TABLE.energy_j.where(TABLE.index != 2, bad))


@pytest.mark.parametrize("settings", [{"law": "cubic"}, {"correction": "cubic"}])
def test_bad_settings_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(PredictionError, match=r"unknown .* 'cubic'; choose one of"):
        FineTuningEnergy(**settings).fit(TABLE, TABLE.energy_j)


def test_a_law_with_speedups_asks_for_them() -> None:
    model = FineTuningEnergy().fit(TABLE, TABLE.energy_j)
    with pytest.raises(PredictionError, match="add a column speedup"):
        model.predict(TABLE.drop(columns="speedup"))


@pytest.mark.parametrize("kind", ["few", "alike"])
def test_too_little_to_fit_on_falls_back(kind: str) -> None:
    table = TABLE.iloc[:5] if kind == "few" else pd.concat([TABLE.iloc[[0]]] * 20)
    with pytest.warns(FallbackWarning, match="J per FLOP"):
        model = FineTuningEnergy().fit(table, table.energy_j)
    assert model.fallback_ in model.summary()
    assert (model.predict(table) > 0.0).all()
    if kind == "alike":
        assert model.predict(table) == pytest.approx(table.energy_j)
    with pytest.raises(PredictionError, match="no intervals"):
        model.predict_interval(table)


def test_constant_columns_do_no_harm() -> None:
    table = TABLE[TABLE.strategy == "single"].assign(sequence_length=128, ffn_size=1024)
    with pytest.warns(PredictionWarning, match="runs differ by"):
        model = FineTuningEnergy().fit(table, table.energy_j)
    assert model.laws_["any"].regression.names == ("intercept", "ln R")
    assert np.isfinite(model.predict(table)).all()


@pytest.mark.parametrize(("factor", "guess"), [(1.0 / 3.6e6, "kWh"), (1e9, "mJ")])
def test_suspicious_magnitudes_are_flagged(factor: float, guess: str) -> None:
    with pytest.warns(UnitWarning, match=guess):
        FineTuningEnergy().fit(TABLE, TABLE.energy_j * factor)


def test_proxies_of_a_config_by_hand() -> None:
    config = {
        "model_type": "bert",
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "vocab_size": 100,
    }
    proxies = Proxies.from_config(config, sequence_length=4, batch_size=3, tokens=10)
    assert proxies == Proxies(2 * (12 * 64 + 2 * 8 * 32), 2 * 12 * 64 + 3 * 2 * 4 * 8, 10 * (1536 + 192), 3 * 4 * 8 * 2)
    assert sizes_of_config(config) == {"num_layers": 2, "hidden_size": 8, "ffn_size": 32}


def test_emulated_sweep_is_labelled_and_predictable() -> None:
    table = pd.DataFrame(emulated_sweep(random_runs(90, seed=1), GPU.load("rtx2080ti")))
    assert table.emulated.all()
    assert (table.speedup[table.strategy == "single"] == 1.0).all()
    assert random_runs(30, seed=4) == random_runs(30, seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        model = FineTuningEnergy().fit(table.iloc[:60], table.energy_j[:60])
        assert mape_pct(table.energy_j[60:], model.predict(table.iloc[60:])) < 12.0
    assert model.laws_["rtx2080ti"].regression.adjusted_r2 > 0.95


def test_emulated_energy_grows_with_tokens_alone() -> None:
    run = FineTuningRun(
        num_layers=2, hidden_size=128, num_heads=4, ffn_size=512, sequence_length=64, batch_size=8, tokens=1e5
    )
    twice = FineTuningRun(**{n: getattr(run, n) for n in FineTuningRun.__dataclass_fields__} | {"tokens": 2e5})
    gpu = GPU.load("rtx2080ti")
    assert emulate_run(twice, gpu) == pytest.approx([2.0 * value for value in emulate_run(run, gpu)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "ddp"}, "unknown strategy 'ddp'"),
        ({"num_gpus": 2}, "does not go with 2 GPUs"),
        ({"strategy": "fsdp", "num_gpus": 3}, "cannot be shared by 3 GPUs"),
    ],
)
def test_bad_runs_are_refused(change: dict[str, object], message: str) -> None:
    sizes = {"num_layers": 2, "hidden_size": 128, "num_heads": 4, "ffn_size": 512, "sequence_length": 64}
    with pytest.raises(PredictionError, match=message):
        FineTuningRun(**sizes | {"batch_size": 8, "tokens": 1e5} | change)
