"""Genetic programming (pyoperon) for sums of products of powers: trees over logarithms of columns with + and exp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from energy_lightning.predict.columns import Columns, Floats
from energy_lightning.predict.power_sums import PowerSum, Structure, power_sum

_DIGITS = 12


def searched(
    logs: Columns, target: Floats, seeds: Sequence[int], *, max_length: int, num_evaluations: int
) -> list[PowerSum]:
    """Different structures on the fronts of error and length of one search a seed (> 0), with their constants.

    Args:
        logs: logarithm of each column, (n,). target: ln E, (n,).
        max_length: most symbols of a tree. num_evaluations: trees of one search.

    Raises:
        ImportError: pyoperon is not there.
    """
    try:
        from pyoperon.sklearn import SymbolicRegressor
    except ImportError as error:
        raise ImportError("FormulaSearch needs pyoperon: pip install 'energy_lightning[discovery]'") from error
    names, level, found = list(logs), float(target.mean()), dict[Structure, PowerSum]()
    for seed in seeds:
        search = SymbolicRegressor(
            allowed_symbols="add,exp,constant,variable",
            objectives=["mse", "length"],
            max_length=max_length,
            max_evaluations=num_evaluations,
            generations=num_evaluations,  # the evaluations are the limit
            population_size=500,
            optimizer_iterations=5,
            n_threads=1,
            random_state=seed,
        )
        search.fit(np.stack([logs[name] for name in names], axis=1), np.exp(target - level))
        for model in search.pareto_front_:
            formula = power_sum(search.get_model_string(model["tree"], _DIGITS, names))
            if formula is not None:
                found.setdefault(formula.structure, formula.scaled(level))
    return list(found.values())
