"""The fine-tuning law of one GPU model, fitted to n runs.

    roofline     ln E = k + a_R ln R + a_eta ln eta + constants of tp and fsdp (+ correction),  R = sum_k price_k work_k
    published    ln E = k + a_C ln C + a_M ln M + a_eta ln eta + constants of tp and fsdp
    mechanistic  E = (e_c C + e_m M steps + E_0) / eta

eta = speed-up / GPUs. R is what one GPU alone would spend, in joules: prices >= 0 for FLOPs, values moved, weights
updated, layers launched, steps and the run itself, so small models rest on their overheads and large ones on their
FLOPs (a soft roofline). Prices and coefficients are fitted in turn. Without speed-ups R also prices communication.

The correction is a ridge regression of what is left on logarithms of sizes, with the strategy's own slopes, and on
their products where that lowers the leave-one-out error clearly; what the law explains leaves it nothing to correct.

Source of the published law and of eta: arXiv 2606.23546. Roofline prices and correction are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.stats import t as student_t

from energy_lightning.predict.columns import Columns, FittedRange, Floats
from energy_lightning.predict.linear import Regression, Shrunk, non_negative, ordinary, r2_of, shrunk, with_products
from energy_lightning.predict.proxies import Runs

Kind = Literal["roofline", "published", "mechanistic"]
Correction = Literal["auto", "none", "linear", "quadratic"]
KINDS = ("roofline", "published", "mechanistic")
CORRECTIONS = ("auto", "none", "linear", "quadratic")
_ROUNDS = 8
_FEWEST_FOR_LINEAR, _FEWEST_FOR_QUADRATIC = 30, 60
_CLEARLY_LOWER = 0.95  # of the leave-one-out error: what products must reach to be used
_LEAST_J = 1e-9
_MOST_OFFSET = 6.0  # of ln E, of strategies and efficiency: a factor of 400


def _terms(runs: Runs, kind: Kind) -> Columns:
    if kind == "mechanistic":
        proxies = runs.proxies
        terms = {
            "J per FLOP": proxies.compute_flops,
            "J per value": proxies.memory * runs.steps,
            "J per run": np.ones(len(runs)),
        }
        return terms if runs.efficiency is None else {name: term / runs.efficiency for name, term in terms.items()}
    return runs.work() if runs.efficiency is not None else runs.work() | runs.communication()


def _design(runs: Runs, kind: Kind, log_work: Floats) -> Columns:
    """Columns of the log-linear law, the intercept first."""
    design = {"intercept": np.ones(len(runs))}
    if kind == "published":
        design |= {"ln C": np.log(runs.proxies.compute_flops), "ln M": np.log(runs.proxies.memory)}
    else:
        design |= {"ln R": log_work}
    tp, fsdp = runs.tensor_parallel, runs.fully_sharded
    design |= {"tp": tp, "fsdp": fsdp}
    if runs.efficiency is not None:
        log_efficiency = np.log(runs.efficiency)
        design["ln eta"] = log_efficiency
        if kind == "roofline":
            design["tp ln eta"] = tp * log_efficiency
    return design


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
    """Features to mean 0 and deviation 1, and never beyond the range fitted: there the correction stays what it was."""

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


@dataclass(frozen=True)
class FittedLaw:
    """A law with its constants; predicts ln E of runs.

    Attributes:
        kind: which law.
        prices: joules per unit of work.
        regression: of ln E, with efficiency where it is known. without_efficiency: the same law fitted without it.
        correction, quadratic, features: the ridge on what is left, whether on products too, and what it is given.
        range: of the sizes fitted on. spread: of a new ln E, from leave-one-out residuals. degrees: of freedom.
    """

    kind: Kind
    prices: Mapping[str, float]
    regression: Regression
    without_efficiency: Regression | None
    correction: Shrunk | None
    quadratic: bool
    features: Standardised | None
    range: FittedRange
    spread: float
    degrees: int
    notes: tuple[str, ...] = field(default=())

    def log_work(self, runs: Runs) -> Floats:
        """ln R, (n,)."""
        terms = _terms(runs, self.kind)
        return np.log(np.maximum(sum(self.prices[name] * terms[name] for name in self.prices), _LEAST_J))

    def log_energy(self, runs: Runs) -> Floats:
        """ln E, (n,)."""
        if self.kind == "mechanistic":
            return self.log_work(runs)
        design = _design(runs, self.kind, self.log_work(runs) if self.prices else np.zeros(len(runs)))
        law = sum(c * design[name] for name, c in zip(self.regression.names, self.regression.coefficients, strict=True))
        if self.correction is None:
            return np.asarray(law)
        return np.asarray(law + self.correction.predict(self._expanded(runs)))

    def _expanded(self, runs: Runs) -> Floats:
        assert self.features is not None
        z = self.features.of(_features(runs))
        return with_products(z) if self.quadratic else z

    def half_width(self, runs: Runs, level: float) -> Floats:
        """(n,): half the width in ln E of the interval that holds a new run with probability `level`."""
        leverage = np.full(len(runs), self.regression.num_parameters / self.regression.num_rows)
        if self.correction is not None:
            leverage = leverage + self.correction.leverage(self._expanded(runs))
        return np.asarray(student_t.ppf((1.0 + level) / 2.0, self.degrees) * self.spread * np.sqrt(1.0 + leverage))

    def times(self, log_factor: float) -> FittedLaw:
        """This law for energies exp(log_factor) times as large."""
        factor, coefficients = float(np.exp(log_factor)), self.regression.coefficients.copy()
        if self.kind == "mechanistic":
            prices = {name: price * factor for name, price in self.prices.items()}
            return replace(self, prices=prices, regression=replace(self.regression, coefficients=coefficients * factor))
        coefficients[self.regression.names.index("intercept")] += log_factor
        return replace(self, regression=replace(self.regression, coefficients=coefficients))

    def shares(self, runs: Runs) -> Columns:
        """Share of each kind of work in R, (n,) each, adding up to 1."""
        terms = _terms(runs, self.kind)
        parts = {name: price * terms[name] for name, price in self.prices.items() if price > 0.0}
        total = sum(parts.values())
        return {name: part / total for name, part in parts.items()}


def fit_shared_law(
    runs: Runs, energy_j: Floats, groups: Mapping[str, np.ndarray], kind: Kind, correction: Correction
) -> dict[str, FittedLaw]:
    """One law for several GPU models together, each with a factor of its own: name -> law. `groups`: its rows.

    Law and factors are fitted in turn. For few runs: what one GPU model's runs cannot tell the others' do.
    """
    offset = np.zeros(len(runs))
    for rows in groups.values():
        offset[rows] = np.log(energy_j[rows] / runs.flops[rows]).mean()
    offset -= offset.mean()
    law = fit_law(runs, energy_j * np.exp(-offset), kind, "none")
    for _ in range(_ROUNDS):
        left = np.log(energy_j) - law.log_energy(runs)
        for rows in groups.values():
            offset[rows] = np.median(left[rows])
        law = fit_law(runs, energy_j * np.exp(-offset), kind, "none")
    law = fit_law(runs, energy_j * np.exp(-offset), kind, correction)
    return {name: law.times(float(offset[rows[0]])) for name, rows in groups.items()}


def fit_law(runs: Runs, energy_j: Floats, kind: Kind, correction: Correction) -> FittedLaw:
    """Fit to n runs and their energies (n,)."""
    y = np.log(energy_j)
    prices, regression = _fit_core(runs, energy_j, kind)
    without = None
    if runs.efficiency is not None:
        _, without = _fit_core(_without_efficiency(runs), energy_j, kind, with_communication=False)
    law = FittedLaw(
        kind=kind,
        prices=prices,
        regression=regression,
        without_efficiency=without,
        correction=None,
        quadratic=False,
        features=None,
        range=FittedRange.of(dict(runs.sizes)),
        spread=regression.rmse * float(np.sqrt(len(y) / max(len(y) - regression.num_parameters, 1))),
        degrees=max(len(y) - regression.num_parameters, 1),
    )
    if kind != "roofline" or correction == "none":
        return law
    return _corrected(law, runs, y, correction)


def _without_efficiency(runs: Runs) -> Runs:
    return replace(runs, efficiency=None)


def _fit_core(
    runs: Runs, energy_j: Floats, kind: Kind, *, with_communication: bool = True
) -> tuple[dict[str, float], Regression]:
    """Prices and log-linear coefficients, fitted in turn: each to what the other leaves."""
    y = np.log(energy_j)
    if kind == "published":
        return {}, _regress(_design(runs, kind, np.zeros(len(y))), y)
    terms = _terms(runs, kind) if with_communication or kind == "mechanistic" else runs.work()
    names, matrix = tuple(terms), np.stack(list(terms.values()), axis=1)
    if kind == "mechanistic":
        return _fit_mechanistic(names, matrix, energy_j)
    offset = np.zeros(len(y)) if runs.efficiency is None else -np.log(runs.efficiency)
    for _ in range(_ROUNDS):
        constants = non_negative(matrix, np.exp(y - offset))
        log_work = np.log(np.maximum(matrix @ constants, _LEAST_J))
        design = _design(runs, kind, log_work)
        regression = _regress(design, y, spent=int((constants > 0.0).sum()) - 1)
        effects = [n for n in regression.names if n not in ("intercept", "ln R")]
        coefficient = dict(zip(regression.names, regression.coefficients, strict=True))
        offset = sum((coefficient[name] * design[name] for name in effects), np.zeros(len(y)))
        offset = np.clip(offset, -_MOST_OFFSET, _MOST_OFFSET)  # rows that work does not explain would drive it off
    return dict(zip(names, constants.tolist(), strict=True)), regression


def _regress(design: Columns, y: Floats, *, spent: int = 0) -> Regression:
    """Columns that do not vary are left out: their coefficients could not be told from the intercept."""
    varying = [name for name, column in design.items() if name == "intercept" or np.ptp(column) > 1e-9]
    return ordinary(tuple(varying), np.stack([design[name] for name in varying], axis=1), y, spent=spent)


def _fit_mechanistic(names: tuple[str, ...], matrix: Floats, energy_j: Floats) -> tuple[dict[str, float], Regression]:
    constants = non_negative(matrix, energy_j)
    active = constants > 0.0
    relative = ordinary(
        tuple(n for n, a in zip(names, active, strict=True) if a),
        matrix[:, active] / energy_j[:, None],
        np.ones(len(energy_j)),
    )
    y, residual = np.log(energy_j), np.log(energy_j) - np.log(np.maximum(matrix @ constants, _LEAST_J))
    r2, adjusted = r2_of(y, residual, int(active.sum()))
    rmse = float(np.sqrt((residual**2).mean()))
    found = replace(relative, coefficients=constants[active], r2=r2, adjusted_r2=adjusted, rmse=rmse)
    return dict(zip(names, constants.tolist(), strict=True)), found


def _corrected(law: FittedLaw, runs: Runs, y: Floats, correction: Correction) -> FittedLaw:
    n, spent = len(y), law.regression.num_parameters
    if correction == "auto" and n < _FEWEST_FOR_LINEAR:
        return replace(law, notes=(f"no correction: {n} runs, it needs {_FEWEST_FOR_LINEAR}",))
    left, features = y - law.log_energy(runs), _features(runs)
    standardised = Standardised.fit(features)
    z = standardised.of(features)
    fitted, quadratic = shrunk(z, left), False
    if correction == "quadratic" or (correction == "auto" and n >= _FEWEST_FOR_QUADRATIC):
        richer = shrunk(with_products(z), left)
        if correction == "quadratic" or richer.loo_error < _CLEARLY_LOWER * fitted.loo_error:
            fitted, quadratic = richer, True
    return replace(
        law,
        correction=fitted,
        quadratic=quadratic,
        features=standardised,
        spread=fitted.loo_error * float(np.sqrt(n / max(n - spent, 1))),
    )
