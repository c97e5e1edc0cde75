"""EnergyLens on tables that differ from those it was made on: prompt lengths, several tasks, models never seen.

    python benchmarks/predict_apart.py [--data DIR] [--samples 20]

Measured serving runs (see predict.py), models pooled with their sizes, 50 rows to learn from; ranking within a model.
prompts: an input_tokens of 128 to 16384 is drawn for each run, and the energy that prefill (2e-12 J a FLOP) and
reading the longer context (4e-6 J an input and output token, 30 billion parameters) would take is added: MADE UP.
tasks: all tasks of the H100 in one table, with a typical prompt length of each task (assumed). unseen: one model
is left out and predicted by the others.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from predict import FILE, POOLED, load, split
from predict_methods import Ours, trees

from energy_lightning.predict import EnergyLens, PredictionWarning, mape_pct, pairwise_pct

PROMPTED = ["input_tokens", *POOLED]
GROUPS = [("lm-arena-chat", "H100"), ("gpqa", "H100"), ("sharegpt-chat", "A100-SXM4-40GB")]
TYPICAL_PROMPT = {
    "gpqa": 250.0,
    "lm-arena-chat": 120.0,
    "image-chat": 1200.0,
    "video-chat": 6000.0,
    "sourcegraph-fim": 1800.0,
}
Split = tuple[pd.DataFrame, pd.DataFrame]


def with_prompts(group: pd.DataFrame, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    lengths = [128.0, 512.0, 2048.0, 4096.0, 8192.0, 16384.0]
    prompt = rng.choice(lengths, len(group)) * rng.uniform(0.9, 1.1, len(group))
    prefill_j = 2e9 * group.activated_params_b * prompt * 2e-12
    context_j = 4e-6 * group.output_tokens * prompt * (group.total_params_b / 30.0) ** 0.4
    return group.assign(input_tokens=prompt, energy_per_request_j=group.energy_per_request_j + prefill_j + context_j)


def unseen(group: pd.DataFrame) -> Iterator[Split]:
    for model in group.model_id.unique():
        member = group.model_id == model
        if member.sum() >= 5:
            yield group[~member], group[member]


def within_models_pct(rest: pd.DataFrame, predicted: np.ndarray) -> float:
    shares = []
    for _, rows in rest.reset_index(drop=True).groupby(["task", "model_id"]):
        if rows.energy_per_request_j.nunique() > 1:
            shares.append(pairwise_pct(rows.energy_per_request_j, predicted[rows.index]))
    return float(np.mean(shares))


def report(title: str, columns: list[str], splits: list[Split]) -> None:
    methods = {"EnergyLens": lambda: Ours(EnergyLens(), columns), **trees(columns)}
    print(f"| {title} | MAPE, % | pairwise, % |\n| --- | ---: | ---: |")
    for name, make in methods.items():
        found = []
        for learn, rest in splits:
            predicted = make().fit(learn, learn.energy_per_request_j).predict(rest)
            found.append([mape_pct(rest.energy_per_request_j, predicted), within_models_pct(rest, predicted)])
        (low, low_pairs), (high, high_pairs) = np.min(found, axis=0), np.max(found, axis=0)
        mape, pairs = np.median(found, axis=0)
        print(f"| {name} | {mape:.1f} ({low:.1f} to {high:.1f}) | {pairs:.1f} ({low_pairs:.1f} to {high_pairs:.1f}) |")
    print(flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--samples", type=int, default=20)
    given = parser.parse_args(arguments)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = given.data or Path(os.environ.get("ENERGY_LIGHTNING_DATA", beside))
    if not (folder / FILE).is_file():
        print(f"no {FILE} in {folder}: give --data DIR or set ENERGY_LIGHTNING_DATA", file=sys.stderr)
        return 1
    warnings.simplefilter("ignore", PredictionWarning)  # models and sizes apart are what is tested here
    rows = load(folder / FILE).dropna(subset=["total_params_b"])
    for task, gpu in GROUPS:
        group = rows[(rows.task == task) & (rows.gpu_model == gpu)]
        prompted = [split(with_prompts(group, sample), 50, sample) for sample in range(given.samples)]
        report(f"prompts made up: {task}, {gpu}", PROMPTED, prompted)
        report(f"unseen model: {task}, {gpu}", POOLED, list(unseen(group)))
    tasks = rows[(rows.gpu_model == "H100") & rows.task.isin(TYPICAL_PROMPT)]
    tasks = tasks.assign(input_tokens=tasks.task.map(TYPICAL_PROMPT))
    report("tasks, H100", PROMPTED, [split(tasks, 50, sample) for sample in range(given.samples)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
