"""Which factor of a sweep drives energy: main effects on ln(joules), each with the others held.

    ln E = k + sum_f a_f ln x_f + constants of tp and fsdp,  ordinary least squares, HC3 errors

a_f is an elasticity: 1% more of the factor is a_f % more energy. A factor's effect is (highest / lowest)^a_f.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from energy_lightning.predict.linear import ordinary
from energy_lightning.predict.proxies import STRATEGIES
from energy_lightning.report.prediction_tables import Effect

_MOST_COLUMNS = 12  # of the regression, intercept included


def effects_of(table: Any, energy_j: Any, factors: Sequence[str]) -> tuple[list[Effect], float]:
    """Effects of those factors that vary, the strongest first, and the R2 of the main effects; none with few rows."""
    numbers = [name for name in factors if name != "strategy" and _several(table, name).nunique() > 1]
    base, *others = [name for name in STRATEGIES if name in set(table["strategy"])]
    if len(table) < 2 * _MOST_COLUMNS or not (numbers or others):
        return [], float("nan")
    design = {"intercept": np.ones(len(table))}
    for name in numbers:  # one GPU counts as the fewest of several: what several add first is the strategy's constant
        design[name] = np.log(table[name].clip(lower=_several(table, name).min()).to_numpy(dtype=float))
    fewest = int(_several(table, "num_gpus").min())
    labels = {
        name: f"{name} on {fewest} instead of {base}" if base == "single" else f"{name} instead of {base}"
        for name in others
    }
    design |= {labels[name]: (table["strategy"] == name).to_numpy(dtype=float) for name in others}
    regression = ordinary(tuple(design), np.stack(list(design.values()), axis=1), np.log(np.asarray(energy_j)))
    effects = []
    for name, slope, error in zip(regression.names, regression.coefficients, regression.hc3_errors, strict=True):
        if name in numbers:
            low, high = float(_several(table, name).min()), float(table[name].max())
            effects.append(Effect(name, slope, error, f"{low:g}", f"{high:g}", float((high / low) ** slope)))
        elif name != "intercept":
            effects.append(Effect(name, slope, error, "", "", float(np.exp(slope))))
    return sorted(effects, key=lambda effect: -abs(np.log(effect.times))), regression.r2


def _several(table: Any, name: str) -> Any:
    """The factor's values; of num_gpus those of runs on several GPUs, where there are such runs."""
    values = table[name]
    several = values[values > 1] if name == "num_gpus" else values
    return several if len(several) else values
