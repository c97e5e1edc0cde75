"""The fine-tuning law of each GPU model, fitted to n runs.

    roofline     ln E = k + a_R ln R + a_eta ln eta + constants of tp and fsdp (+ correction),  R = sum_k price_k work_k
    published    ln E = k + a_C ln C + a_M ln M + a_eta ln eta + constants of tp and fsdp
    mechanistic  E = (e_c C + e_m M steps + E_0) / eta

eta = speed-up / GPUs. R is the work in joules: prices > 0 for FLOPs, values moved, weights updated, layers launched,
steps and the run itself, so small models rest on their overheads and large ones on their FLOPs (a soft roofline), and
for what several GPUs send each other. Where speed-ups are known, launches, during which GPUs wait, cost 1 / eta times
as much, and other work as its static share does; a_eta is what that leaves. Prices are fitted to all GPU models at once
(see `prices`), the coefficients of a GPU model are then drawn to those of all.

The correction is a ridge regression of what is left on logarithms of sizes, with the strategy's and the GPU model's own
slopes, and on products of the sizes where that lowers the leave-one-out error clearly; what the law explains leaves it
nothing to correct.

Source of the published law and of eta: arXiv 2606.23546. Roofline prices and correction are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.stats import t as student_t

from energy_lightning.predict.columns import Columns, FittedRange, Floats
from energy_lightning.predict.correction import FEWEST_FOR_LINEAR, Correction, CorrectionKind
from energy_lightning.predict.linear import Regression, drawn, non_negative, ordinary, r2_of
from energy_lightning.predict.prices import Prices, fit_prices
from energy_lightning.predict.proxies import LAUNCHES, Runs

Kind = Literal["roofline", "published", "mechanistic"]
KINDS = ("roofline", "published", "mechanistic")
_ROUNDS = 8
_LEAST_J = 1e-9
_VARIES = 1e-9  # how far a column must spread for its coefficient to be told from the intercept
_STATIC_SHARE = 0.4  # of a busy GPU's power, 60 to 90 W of 150 to 400 W and what follows from waiting for memory
_OWN_DEVIATION = 0.05  # of a GPU model's coefficients from those of all


def _terms(runs: Runs, kind: Kind) -> Columns:
    if kind == "roofline":
        return _stretched(runs) | runs.communication()
    proxies = runs.proxies
    terms = {
        "J per FLOP": proxies.compute_flops,
        "J per value": proxies.memory * runs.steps,
        "J per run": np.ones(len(runs)),
    }
    return terms if runs.efficiency is None else {name: term / runs.efficiency for name, term in terms.items()}


def _stretched(runs: Runs) -> Columns:
    """Work by one GPU alone; on several, what static power adds while they take longer together than it."""
    if runs.efficiency is None:
        return runs.work()
    longer = 1.0 / runs.efficiency - 1.0
    return {
        name: term * (1.0 + (1.0 if name in LAUNCHES else _STATIC_SHARE) * longer) for name, term in runs.work().items()
    }


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


@dataclass(frozen=True)
class FittedLaw:
    """A law with its constants; predicts ln E of runs on one GPU model.

    Attributes:
        kind: which law.
        prices: joules per unit of work. mean_shares: of that work in the energy of the runs fitted on, mean.
        regression: of ln E, with efficiency where it is known. without_efficiency: the same law fitted without it.
        correction: of what is left. group: this GPU model in it.
        range: of the sizes fitted on. spread: of a new ln E, from leave-one-out residuals. degrees: of freedom.
    """

    kind: Kind
    prices: Mapping[str, float]
    mean_shares: Mapping[str, float]
    regression: Regression
    without_efficiency: Regression | None
    correction: Correction | None
    group: int
    range: FittedRange
    spread: float
    degrees: float
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
        return np.asarray(law if self.correction is None else law + self.correction.predict(runs, self.group))

    def half_width(self, runs: Runs, level: float) -> Floats:
        """(n,): half the width in ln E of the interval that holds a new run with probability `level`."""
        leverage = np.full(len(runs), self.regression.num_parameters / self.regression.num_rows)
        if self.correction is not None:
            leverage = leverage + self.correction.leverage(runs, self.group)
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


def fit_roofline_laws(
    runs: Runs, energy_j: Floats, groups: Mapping[str, np.ndarray], correction: CorrectionKind
) -> dict[str, FittedLaw]:
    """The roofline law of each GPU model: name -> law. `groups`: its rows. Each leans on the others' runs."""
    group = np.empty(len(runs), dtype=np.intp)
    for index, rows in enumerate(groups.values()):
        group[rows] = index
    y = np.log(energy_j)
    with_efficiency = _roofline_regressions(runs, y, group)
    without = None
    if runs.efficiency is not None:
        without = _roofline_regressions(_without_efficiency(runs), y, group, with_communication=False)
    laws = {}
    for index, (name, rows) in enumerate(groups.items()):
        prices, regression, noise = with_efficiency[index]
        chosen = runs.subset(rows)
        law = _law("roofline", chosen, prices, regression, without[index][1] if without else None)
        laws[name] = replace(law, group=index, spread=noise)
    left = np.empty(len(y))
    for name, rows in groups.items():
        left[rows] = y[rows] - laws[name].log_energy(runs.subset(rows))
    found = Correction.fit(runs, left, group, correction)
    if found is None:
        notes = (f"no correction: {len(y)} runs, it needs {FEWEST_FOR_LINEAR}",) if correction == "auto" else ()
        return {name: replace(law, notes=notes) for name, law in laws.items()}
    spent = sum(law.regression.num_parameters for law in laws.values())
    spread = found.ridge.loo_error * float(np.sqrt(len(y) / max(len(y) - spent, 1)))
    return {name: replace(law, correction=found, spread=spread) for name, law in laws.items()}


def _roofline_regressions(
    runs: Runs, y: Floats, group: np.ndarray, *, with_communication: bool = True
) -> list[tuple[dict[str, float], Regression, float]]:
    """Of each GPU model: prices, coefficients drawn to those of all GPU models, and the relative error of a run."""
    work = _terms(runs, "roofline") if with_communication else runs.work()
    effects = {name: c for name, c in _design(runs, "roofline", y).items() if name not in ("intercept", "ln R")}
    effects = {name: column for name, column in effects.items() if np.ptp(column) > _VARIES}
    common = fit_prices(work, effects, y, group)
    return [_own_regression(common, work, effects, y, group, index) for index in range(len(common.by_group))]


def _own_regression(
    common: Prices, work: Columns, effects: Columns, y: Floats, group: np.ndarray, index: int
) -> tuple[dict[str, float], Regression, float]:
    rows = group == index
    prices = dict(zip(work, common.by_group[index].tolist(), strict=True))
    log_work = np.log(sum(price * work[name][rows] for name, price in prices.items()))
    design = np.stack([np.ones(int(rows.sum())), log_work, *(column[rows] for column in effects.values())], axis=1)
    expected = np.array([common.intercept, common.slope, *common.effects])
    regression = drawn(
        ("intercept", "ln R", *effects),
        design,
        y[rows],
        expected,
        penalty=(common.noise / _OWN_DEVIATION) ** 2,
        num_parameters=float(common.leverages[rows].sum()),
    )
    return prices, regression, common.noise


def fit_shared_law(runs: Runs, energy_j: Floats, groups: Mapping[str, np.ndarray], kind: Kind) -> dict[str, FittedLaw]:
    """A published or mechanistic law for several GPU models, each with a factor of its own: name -> law.

    Law and factors are fitted in turn. For few runs: what one GPU model's runs cannot tell the others' do.
    """
    offset = np.zeros(len(runs))
    for rows in groups.values():
        offset[rows] = np.log(energy_j[rows] / runs.flops[rows]).mean()
    offset -= offset.mean()
    law = fit_law(runs, energy_j * np.exp(-offset), kind)
    for _ in range(_ROUNDS):
        left = np.log(energy_j) - law.log_energy(runs)
        for rows in groups.values():
            offset[rows] = np.median(left[rows])
        law = fit_law(runs, energy_j * np.exp(-offset), kind)
    return {name: law.times(float(offset[rows[0]])) for name, rows in groups.items()}


def fit_law(runs: Runs, energy_j: Floats, kind: Kind) -> FittedLaw:
    """Fit the published or the mechanistic law to n runs of one GPU model and their energies (n,)."""
    prices, regression = _fit_core(runs, energy_j, kind)
    without = None
    if runs.efficiency is not None:
        _, without = _fit_core(_without_efficiency(runs), energy_j, kind)
    return _law(kind, runs, prices, regression, without)


def _law(
    kind: Kind, runs: Runs, prices: dict[str, float], regression: Regression, without: Regression | None
) -> FittedLaw:
    degrees = max(regression.num_rows - regression.num_parameters, 1.0)
    law = FittedLaw(
        kind=kind,
        prices=prices,
        mean_shares={},
        regression=regression,
        without_efficiency=without,
        correction=None,
        group=0,
        range=FittedRange.of(dict(runs.sizes)),
        spread=regression.rmse * float(np.sqrt(regression.num_rows / degrees)),
        degrees=degrees,
    )
    return replace(law, mean_shares={name: float(share.mean()) for name, share in law.shares(runs).items()})


def _without_efficiency(runs: Runs) -> Runs:
    return replace(runs, efficiency=None)


def _fit_core(runs: Runs, energy_j: Floats, kind: Kind) -> tuple[dict[str, float], Regression]:
    if kind == "published":
        return {}, _regress(_design(runs, kind, np.zeros(len(runs))), np.log(energy_j))
    terms = _terms(runs, kind)
    return _fit_mechanistic(tuple(terms), np.stack(list(terms.values()), axis=1), energy_j)


def _regress(design: Columns, y: Floats) -> Regression:
    """Columns that do not vary are left out: their coefficients could not be told from the intercept."""
    varying = [name for name, column in design.items() if name == "intercept" or np.ptp(column) > _VARIES]
    return ordinary(tuple(varying), np.stack([design[name] for name in varying], axis=1), y)


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
