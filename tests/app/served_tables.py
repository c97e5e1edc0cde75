"""Measured configurations with a known law, and commands run in this process, for the tests of `fit` and `predict`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from energy_lightning.app import main


def served(num_rows: int = 40, seed: int = 0) -> pd.DataFrame:
    """Configurations and their energy by a law written down here, exact."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "batch_size": rng.choice([1, 4, 16, 64], num_rows),
            "input_tokens": rng.choice([100, 1000, 4000], num_rows),
            "output_tokens": rng.choice([50, 200, 800], num_rows),
            "tensor_parallel": rng.choice([1, 2, 4], num_rows),
        }
    )
    batch, tp = table.batch_size, table.tensor_parallel
    table["energy_j"] = (
        0.05 * table.input_tokens / batch**0.2 + 2.0 * table.output_tokens / batch**0.8 * tp**0.3 + 3 * tp
    )
    table["latency_s"] = (0.01 * table.output_tokens + 0.02 * batch) / tp
    return table


def command(*arguments: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what a predictor warns of is printed, nothing else is there
        return main(list(arguments))


def summary_of(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "summary.json").read_text()))
