"""The fine-tuning law on tables of two emulated GPU models: how few runs are enough, and what a missing column costs.

    python benchmarks/predict_two_gpus.py [--splits 20] [--noise 0.05]

Emulated: BERT-like runs (single, tp, fsdp; 1 to 8 GPUs), half on each GPU model of a pair. "random": sizes drawn at
random. "grid": one factor varied at a time and a small factorial design. Energies have the relative noise given,
speed-ups 3%. Each split draws the runs, the noise and the 70% to learn from; medians over pairs and splits.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings

import numpy as np
import pandas as pd

from energy_lightning.emulation import GPU
from energy_lightning.predict import FineTuningEnergy, PredictionWarning, mape_pct
from energy_lightning.predict.sweep import FineTuningRun, emulated_sweep, random_runs

PAIRS = [("rtx2080ti", "a100-sxm4-40gb"), ("v100", "a40")]
RUN_COLUMNS = [
    "num_layers",
    "hidden_size",
    "ffn_size",
    "sequence_length",
    "batch_size",
    "tokens",
    "num_gpus",
    "strategy",
]
FACTORS = {
    "num_layers": [2, 4, 6, 8, 10, 12],
    "hidden_size": [128, 256, 384, 512, 768, 1024, 1280],
    "ffn_size": [512, 1024, 2048, 3072, 4096],
    "sequence_length": [64, 128, 256, 512],
    "batch_size": [8, 16, 32, 64],
}
STRATEGIES = [("single", 1), *((name, count) for name in ("tp", "fsdp") for count in (2, 4, 8))]
SPEEDUP_NOISE = 0.03


def grid_runs() -> list[FineTuningRun]:
    base = {"num_layers": 6, "hidden_size": 512, "ffn_size": 2048, "sequence_length": 128, "batch_size": 32}
    sizes = [{**base, name: value} for name, values in FACTORS.items() for value in values]
    sizes += [
        {**base, "num_layers": layers, "hidden_size": hidden, "ffn_size": ffn}
        for layers, hidden, ffn in itertools.product([2, 4, 8, 12], [128, 256, 512, 768], [512, 2048])
    ]
    runs = [
        FineTuningRun(
            **s,
            num_heads=8,
            tokens=1000.0 * s["batch_size"] * s["sequence_length"],
            strategy=name,
            num_gpus=count,
        )
        for s in sizes
        for name, count in STRATEGIES
    ]
    return list(dict.fromkeys(runs))


def tables() -> dict[str, dict[str, pd.DataFrame]]:
    """Design -> GPU model -> every run of the design, without noise."""
    designs = {"random": random_runs(600, seed=11), "grid": grid_runs()}
    names = sorted({name for pair in PAIRS for name in pair})
    return {
        design: {name: pd.DataFrame(emulated_sweep(runs, GPU.load(name))) for name in names}
        for design, runs in designs.items()
    }


def drawn(parts: list[pd.DataFrame], count: int, noise: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs to learn from and the rest: `count` in all, as many of each part."""
    rng = np.random.default_rng([seed, count])
    chosen = [part.iloc[rng.permutation(len(part))[: count // 2]] for part in parts]
    table = pd.concat(chosen, ignore_index=True)
    table["energy_j"] *= np.exp(noise * rng.normal(size=len(table)))
    table["speedup"] *= np.where(table.num_gpus > 1, np.exp(SPEEDUP_NOISE * rng.normal(size=len(table))), 1.0)
    order, learn = rng.permutation(len(table)), round(0.7 * len(table))
    return table.iloc[order[:learn]], table.iloc[order[learn:]]


def errors(learn: pd.DataFrame, rest: pd.DataFrame, columns: list[str]) -> tuple[float, float]:
    """R2 of joules and MAPE in percent."""
    predicted = FineTuningEnergy().fit(learn[columns], learn.energy_j).predict(rest[columns])
    left = ((rest.energy_j - predicted) ** 2).sum() / ((rest.energy_j - rest.energy_j.mean()) ** 2).sum()
    return 1.0 - left, mape_pct(rest.energy_j, predicted)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.05)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", PredictionWarning)  # extrapolating, and mixing GPU models, is what is tested here
    by_design = tables()
    print(
        "| design | runs | columns | R2 of joules (10% of splits below) | MAPE, % (10% above) | 0.95 and 15% reached |"
    )
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    kinds = {
        "gpu_model, speedup": [*RUN_COLUMNS, "gpu_model", "speedup"],
        "gpu_model": [*RUN_COLUMNS, "gpu_model"],
        "speedup": [*RUN_COLUMNS, "speedup"],
        "neither": RUN_COLUMNS,
    }
    for (design, parts), count, (kind, columns) in itertools.product(
        by_design.items(), (60, 100, 160, 300), kinds.items()
    ):
        found = np.array(
            [
                errors(*drawn([parts[name] for name in pair], count, given.noise, seed), columns)
                for pair in PAIRS
                for seed in range(given.splits)
            ]
        )
        r2, mape = found.T
        both = 100.0 * ((r2 >= 0.95) & (mape <= 15.0)).mean()
        print(
            f"| {design} | {count} | {kind} | {np.median(r2):.3f} ({np.quantile(r2, 0.1):.3f}) | "
            f"{np.median(mape):.1f} ({np.quantile(mape, 0.9):.1f}) | {both:.0f}% |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
