"""How well energy is predicted: EnergyLens on measured serving, the fine-tuning law on an emulated sweep, and peers.

    python benchmarks/predict.py [single] [pooled] [extrapolation] [discovery] [finetuning] [time] [--data DIR]
                                 [--samples 20]

Measured: DIR/mlenergy_inference.csv, energy of a request over all GPUs; columns output_tokens, batch_size,
tensor_parallel (GPUs / pipeline stages, as experts are split too), pipeline_parallel; prompt lengths are not recorded.
Emulated: 400 fine-tuning runs on a GPU model. Every method sees the same columns and rows, on one thread. Numbers are
medians over the samples of means over the groups; (range over samples). Peers "log" learn ln E, the others E.
single: one model, task and GPU kind, >= 12 rows, 8 to learn from. pooled: models of one task and GPU kind with their
sizes, 50 rows to learn from, ranking within a model. extrapolation: the smallest 40% of batch sizes to learn from.
discovery: as pooled, by formulas that symbolic regression finds (needs pyoperon).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from predict_methods import Ours, formula_methods, inference_methods, trees

from energy_lightning.emulation import GPU
from energy_lightning.predict import EnergyLens, FineTuningEnergy, PredictionWarning, mape_pct, pairwise_pct, scores
from energy_lightning.predict.sweep import emulated_sweep, random_runs

FILE = "mlenergy_inference.csv"
COLUMNS = ["output_tokens", "batch_size", "tensor_parallel", "pipeline_parallel"]
POOLED = [*COLUMNS, "activated_params_b", "total_params_b"]
RUN_COLUMNS = ["num_layers", "hidden_size", "ffn_size", "sequence_length", "batch_size", "tokens", "num_gpus"]
GROUP = ["task", "gpu_model"]


def load(path: Path) -> pd.DataFrame:
    """Rows with our column names. Dense models name no activated parameters: all of them are."""
    rows = pd.read_csv(path).rename(columns={"avg_output_tokens": "output_tokens", "max_batch_size": "batch_size"})
    rows["tensor_parallel"] = rows.num_gpus / rows.pipeline_parallel
    rows["activated_params_b"] = rows.activated_params_b.fillna(rows.total_params_b)
    rows["latency_s"] = rows.output_tokens * (rows.median_itl_ms / 1e3).fillna(rows.avg_tpot_s)
    return rows


def single_groups(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for _, group in rows.groupby([*GROUP, "model_id"]):
        if len(group) >= 12:
            yield group


def split(group: pd.DataFrame, count: int, sample: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    order = np.random.default_rng(sample).permutation(len(group))
    return group.iloc[order[:count]], group.iloc[order[count:]]


def single(rows: pd.DataFrame, samples: int) -> None:
    print("\n### One model at a time (measured): 8 rows to learn from\n")
    results: dict[str, list[list[list[float]]]] = {}
    for sample in range(samples):
        for group in single_groups(rows):
            learn, rest = split(group, 8, sample)
            _score_group(results, learn, rest, sample)
    _print(results, ["MAPE", "pairwise", "top-1", "regret"], f"{len(list(single_groups(rows)))} groups")
    print("EnergyLens by group: means over the samples (top-1: share of samples), median regret last\n")
    print("| group | rows | MAPE, % | pairwise, % | top-1, % | regret, % | median regret, % |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for number, group in enumerate(single_groups(rows)):
        found = np.array([sample[number] for sample in results["EnergyLens"]])
        first = group.iloc[0]
        cells = " | ".join(f"{value:.1f}" for value in (*found.mean(axis=0), np.median(found[:, 3])))
        print(f"| {first.task}, {first.model_id}, {first.gpu_model} | {len(group)} | {cells} |")
    print()


def extrapolation(rows: pd.DataFrame, samples: int) -> None:
    print("\n### Extrapolation (measured): the smallest 40% of batch sizes to learn from\n")
    results: dict[str, list[list[list[float]]]] = {}
    for group in single_groups(rows):
        sizes = np.sort(group.batch_size.unique())
        small = group.batch_size <= sizes[int(np.ceil(0.4 * len(sizes))) - 1]
        _score_group(results, group[small], group[~small], 0)
    _print(results, ["MAPE", "pairwise", "top-1", "regret"], "no samples: one split a group")


def _score_group(results: dict[str, Any], learn: pd.DataFrame, rest: pd.DataFrame, sample: int) -> None:
    for name, make in inference_methods(COLUMNS).items():
        predicted = make().fit(learn, learn.energy_per_request_j).predict(rest)
        s = scores(rest.energy_per_request_j, predicted)
        runs = results.setdefault(name, [])
        if len(runs) <= sample:
            runs.append([])
        runs[sample].append([s.mape_pct, s.pairwise_pct, 100.0 * s.top1, s.regret_pct])


def pooled(rows: pd.DataFrame, samples: int) -> None:
    print("\n### Models pooled (measured): 50 rows to learn from, ranking within a model\n")
    _pooled(rows, samples, inference_methods(POOLED))


def discovery(rows: pd.DataFrame, samples: int) -> None:
    print("\n### Formulas found (measured): models pooled, 50 rows to search on, the rest held out\n")
    for group, fitted in _pooled(rows, samples, formula_methods(POOLED)).items():
        print(f"{group}, last sample:\n\n    {fitted['found formula'].model.formula()}\n".replace("\n  +", "\n      +"))


def _pooled(rows: pd.DataFrame, samples: int, methods: dict[str, Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """Print a table a group; the methods as fitted to the last sample, by group."""
    last: dict[str, dict[str, Any]] = {}
    for key, group in rows.dropna(subset=["total_params_b"]).groupby(GROUP):
        if len(group) < 66:
            continue
        name = f"{key[0]}, {key[1]}"
        results: dict[str, list[list[list[float]]]] = {}
        for sample in range(samples):
            learn, rest = split(group, 50, sample)
            last[name] = {method: make().fit(learn, learn.energy_per_request_j) for method, make in methods.items()}
            for method, fitted in last[name].items():
                predicted = fitted.predict(rest)
                errors = [mape_pct(rest.energy_per_request_j, predicted), _within_models(rest, predicted)]
                results.setdefault(method, []).append([errors])
        _print(results, ["MAPE", "pairwise"], f"{name}, {len(group)} rows, {group.model_id.nunique()} models")
    return last


def _within_models(rest: pd.DataFrame, predicted: np.ndarray) -> float:
    shares = []
    for model in rest.model_id.unique():
        member = (rest.model_id == model).to_numpy()
        if member.sum() > 1:
            shares.append(pairwise_pct(rest.energy_per_request_j[member], predicted[member]))
    return float(np.mean(shares))


def finetuning(samples: int) -> None:
    print("\n### Fine-tuning (emulated): 400 runs, 70% to learn from\n")
    columns = [*RUN_COLUMNS, "strategy"]
    for gpu_model in ("rtx2080ti", "a100-sxm4-40gb"):
        table = pd.DataFrame(emulated_sweep(random_runs(400), GPU.load(gpu_model)))
        for law in ("roofline", "published", "mechanistic"):
            fitted = FineTuningEnergy(law=law).fit(table[[*columns, "speedup"]], table.energy_j).laws_["any"]
            without = fitted.without_efficiency
            assert without is not None
            print(
                f"{law:12} adjusted R2 {fitted.regression.adjusted_r2:.4f} with efficiency, "
                f"{without.adjusted_r2:.4f} without; RMSE {fitted.regression.rmse:.3f}, {without.rmse:.3f} (all rows)"
            )
        methods = {
            "roofline": lambda: Ours(FineTuningEnergy(), [*columns, "speedup"]),
            "roofline, no speed-ups": lambda: Ours(FineTuningEnergy(), columns),
            "published": lambda: Ours(FineTuningEnergy(law="published"), [*columns, "speedup"]),
            **trees(RUN_COLUMNS),
        }
        results: dict[str, list[list[list[float]]]] = {}
        for sample in range(samples):
            learn, rest = split(table, 280, sample)
            for name, make in methods.items():
                predicted = make().fit(learn, learn.energy_j).predict(rest)
                left = ((rest.energy_j - predicted) ** 2).sum() / ((rest.energy_j - rest.energy_j.mean()) ** 2).sum()
                results.setdefault(name, []).append([[mape_pct(rest.energy_j, predicted), 100.0 * (1.0 - left)]])
        _print(results, ["MAPE", "R2 x 100"], f"{gpu_model}, emulated")


def fit_time(rows: pd.DataFrame) -> None:
    table = rows[rows.task == "lm-arena-chat"].sample(50, random_state=0)
    print("\n### Time of one fit to 50 rows, median of 7 (processor seconds, one thread)\n")
    for name, columns in (("one model's columns", COLUMNS), ("with model sizes", POOLED)):
        for method in ("robust", "published"):
            spent = []
            for _ in range(7):
                start = time.process_time()
                EnergyLens(method=method).fit(table[columns], table.energy_per_request_j)
                spent.append(time.process_time() - start)
            print(f"{name:20} {method:10} {np.median(spent):.3f} s ({max(spent) - min(spent):.3f})")


def _print(results: dict[str, Any], names: list[str], title: str) -> None:
    print(f"| {title} | " + " | ".join(f"{name}, %" for name in names) + " |")
    print("| --- |" + " ---: |" * len(names))
    for method, runs in results.items():
        means = np.array([np.mean(groups, axis=0) for groups in runs])
        low, middle, high = means.min(axis=0), np.median(means, axis=0), means.max(axis=0)
        cells = [f"{m:.1f} ({a:.1f} to {b:.1f})" for a, m, b in zip(low, middle, high, strict=True)]
        if len(means) == 1:
            cells = [f"{m:.1f}" for m in middle]
        print(f"| {method} | " + " | ".join(cells) + " |")
    print()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["single", "pooled", "extrapolation", "discovery", "finetuning", "time"]
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)}; none: all")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--samples", type=int, default=20)
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.parts) - set(parts)):
        parser.error(f"unknown part {unknown[0]}; choose of {', '.join(parts)}")
    chosen = given.parts or parts
    warnings.simplefilter("ignore", PredictionWarning)  # extrapolating is what is tested here
    if "finetuning" in chosen:
        finetuning(given.samples)
    if chosen == ["finetuning"]:
        return 0
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = given.data or Path(os.environ.get("ENERGY_LIGHTNING_DATA", beside))
    if not (folder / FILE).is_file():
        print(f"no {FILE} in {folder}: give --data DIR or set ENERGY_LIGHTNING_DATA", file=sys.stderr)
        return 1
    rows = load(folder / FILE)
    for name, run in (
        ("single", single),
        ("pooled", pooled),
        ("extrapolation", extrapolation),
        ("discovery", discovery),
    ):
        if name in chosen:
            run(rows, given.samples)
    if "time" in chosen:
        fit_time(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
