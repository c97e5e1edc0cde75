"""Tables with a known law, written down apart from the code under test."""

from __future__ import annotations

import numpy as np
import pandas as pd


def published_law(table: pd.DataFrame) -> np.ndarray:
    """Joules of the additive law with constants chosen here."""
    batch, tp, pp = table.batch_size, table.tensor_parallel, table.pipeline_parallel
    prefill = 0.08 * table.input_tokens / (batch**0.2 + 0.1) * tp**0.25 * pp**0.1
    decode = 3.0 * table.output_tokens / (batch**0.75 + 0.3) * tp**0.35 * pp**0.6
    return np.asarray(prefill + decode + 4.0 * tp + 6.0 * pp)


def configurations(num_rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "input_tokens": rng.choice([128, 512, 2048, 8192], num_rows) * rng.uniform(0.8, 1.2, num_rows),
            "output_tokens": rng.choice([64, 256, 1024], num_rows) * rng.uniform(0.8, 1.2, num_rows),
            "batch_size": rng.choice([1, 2, 4, 8, 16, 32, 64, 128], num_rows),
            "tensor_parallel": rng.choice([1, 2, 4, 8], num_rows),
            "pipeline_parallel": rng.choice([1, 2], num_rows),
        }
    )


def measured(num_rows: int = 50, seed: int = 0, noise: float = 0.0) -> tuple[pd.DataFrame, np.ndarray]:
    """A table and its energies, J."""
    table = configurations(num_rows, seed)
    return table, published_law(table) * np.exp(noise * np.random.default_rng(seed + 99).normal(size=num_rows))
