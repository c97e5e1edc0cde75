"""What the roofline law leaves, by ridge regression on logarithms of a run's sizes.

Each strategy and each GPU model has slopes of its own beside those of all. Products of the sizes are used where they
lower the leave-one-out error clearly. Beyond the range fitted the correction stays what it was at its edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from energy_lightning.predict.columns import Floats
from energy_lightning.predict.linear import Shrunk, bounded, shrunk, with_products
from energy_lightning.predict.proxies import Runs

CorrectionKind = Literal["auto", "none", "linear", "quadratic"]
CORRECTIONS = ("auto", "none", "linear", "quadratic")
FEWEST_FOR_LINEAR, FEWEST_FOR_QUADRATIC = 30, 60
_CLEARLY_LOWER = 0.95  # of the leave-one-out error: what products must reach to be used


def _features(runs: Runs) -> Floats:
    """(n, f): logarithms of sizes and efficiency, and each strategy's own slopes."""
    tp, fsdp = runs.tensor_parallel, runs.fully_sharded
    logs = {name: np.log(values) for name, values in runs.sizes.items()}
    log_memory = np.log(runs.proxies.memory)
    common = [np.log(runs.flops), log_memory, *(logs[name] for name in logs if name != "num_gpus")]
    by_strategy = [logs["num_gpus"], logs["hidden_size"], logs["num_layers"], log_memory]
    if runs.efficiency is not None:
        by_strategy.append(np.log(runs.efficiency))
        common.append(np.log(runs.efficiency))
    slopes = [strategy * values for strategy in (tp, fsdp) for values in by_strategy]
    return np.stack([tp, fsdp, *common, *slopes], axis=1)


@dataclass(frozen=True, slots=True)
class Standardised:
    """Features to mean 0 and deviation 1, and never beyond the range fitted."""

    means: Floats
    deviations: Floats
    lowest: Floats
    highest: Floats

    @classmethod
    def fit(cls, features: Floats) -> Standardised:
        """Of features (n, f)."""
        deviations = features.std(axis=0)
        deviations = np.where(deviations > 1e-9, deviations, 1.0)
        return cls(features.mean(axis=0), deviations, features.min(axis=0), features.max(axis=0))

    def of(self, features: Floats) -> Floats:
        """(n, f)."""
        return np.asarray((np.clip(features, self.lowest, self.highest) - self.means) / self.deviations)


@dataclass(frozen=True, slots=True)
class Correction:
    """A fitted correction of ln E; `quadratic`: with products of the sizes. `num_groups`: GPU models fitted on."""

    ridge: Shrunk
    quadratic: bool
    standardised: Standardised
    num_groups: int

    @classmethod
    def fit(cls, runs: Runs, left: Floats, group: np.ndarray, kind: CorrectionKind) -> Correction | None:
        """To residuals (n,) of ln E of runs of GPU models 0 to G - 1, (n,); None where "auto" finds too few runs."""
        n, num_groups = len(left), int(group.max()) + 1
        if kind == "none" or (kind == "auto" and n < FEWEST_FOR_LINEAR):
            return None
        standardised, left = Standardised.fit(_features(runs)), bounded(left)
        found = None
        for quadratic in (False, True):
            if (kind == "linear" and quadratic) or (kind == "auto" and quadratic and n < FEWEST_FOR_QUADRATIC):
                continue
            ridge = shrunk(_expanded(standardised.of(_features(runs)), group, num_groups, quadratic), left)
            if found is None or kind == "quadratic" or ridge.loo_error < _CLEARLY_LOWER * found.ridge.loo_error:
                found = cls(ridge, quadratic, standardised, num_groups)
        return found

    def predict(self, runs: Runs, group: int) -> Floats:
        """Of ln E, (n,), of runs on one GPU model."""
        return self.ridge.predict(self._features(runs, group))

    def leverage(self, runs: Runs, group: int) -> Floats:
        """(n,): how far the runs lie from those fitted."""
        return self.ridge.leverage(self._features(runs, group))

    def _features(self, runs: Runs, group: int) -> Floats:
        z = self.standardised.of(_features(runs))
        return _expanded(z, np.full(len(runs), group), self.num_groups, self.quadratic)


def _expanded(z: Floats, group: np.ndarray, num_groups: int, quadratic: bool) -> Floats:
    """(n, f'): the standardised features or their products, and once more for each GPU model."""
    common = with_products(z) if quadratic else z
    if num_groups == 1:
        return common
    return np.hstack([common, *(z * (group == g)[:, None] for g in range(num_groups))])
