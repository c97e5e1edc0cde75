"""Closed forms of inference energy: terms, gradients, bounds and priors. Fit: `fitting`; estimator: `lens`.

Additive form as published (12 parameters; 16 with model sizes):

    E = alpha_p * input_tokens  / (B^beta_p + eps_p) * TP^gamma1_p * PP^gamma2_p        prefill, compute-bound
      + alpha_d * output_tokens / (B^beta_d + eps_d) * TP^gamma1_d * PP^gamma2_d        decode, memory-bound
      + delta1 * TP + delta2 * PP                                                       overhead

With model sizes, prefill and decode are also multiplied by activated_params_b^activated * total_params_b^total. Two
terms are ours. Where a batch keeps a GPU's arithmetic busy, a token's energy no longer falls with the batch; where
requests wait for memory and for each other, their energy rises again:

      + alpha_s * output_tokens * TP^gamma1_s * PP^gamma2_s (* model sizes as above)     decode, compute-bound
      + alpha_c * B^beta_c * TP^gamma1_c * PP^gamma2_c (* model sizes as above)          crowding, with several models

Logarithmic form, for image and video workloads (6 parameters; 8 with model sizes):

    E = alpha / (B^beta) * TP^gamma1 * PP^gamma2 * ln(c2 + output_tokens / (c1 * input_tokens * TP * PP))

Symbols and shapes are those of `form`; alpha, eps, delta, c1 and c2 - 1 must be > 0.

Source: EnergyLens, arXiv 2605.10556. Bounds of beta, gamma and eps as published. Priors, the model-size exponents and
the exponents of the logarithmic form are ours: weak normal priors, wide against what measured tables show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from energy_lightning.predict.columns import Floats
from energy_lightning.predict.form import MODEL_COLUMNS, Form, LogColumns, Parameter

_ZERO_LOG = -40.0  # a term that is switched off


def _workload_parameters(phase: str, level: float, beta: float, with_models: bool) -> list[Parameter]:
    exponents = [
        Parameter(name=f"gamma1_{phase}", low=-2.0, high=2.0, mean=0.0 if phase == "p" else 0.3, deviation=0.5),
        Parameter(name=f"gamma2_{phase}", low=-2.0, high=2.0, mean=0.0 if phase == "p" else 0.3, deviation=0.5),
    ]
    if with_models:  # compute follows the activated parameters, reading weights all of them
        activated, total = (0.5, 0.2) if phase == "p" else (0.2, 0.5)
        exponents += [
            Parameter(name=f"activated_{phase}", low=-2.0, high=2.0, mean=activated, deviation=0.5),
            Parameter(name=f"total_{phase}", low=-2.0, high=2.0, mean=total, deviation=0.5),
        ]
    return [
        Parameter(name=f"alpha_{phase}", low=-12.0, high=20.0, mean=level, deviation=3.0, logged=True),
        Parameter(name=f"beta_{phase}", low=0.0, high=2.0, mean=beta, deviation=0.3),
        Parameter(name=f"eps_{phase}", low=np.log(1e-3), high=0.0, mean=-3.0, deviation=2.0, logged=True),
        *exponents,
    ]


def _further_exponents(phase: str, activated: float, total: float, with_models: bool) -> list[Parameter]:
    names = [("gamma1", 0.3), ("gamma2", 0.3), *([("activated", activated), ("total", total)] if with_models else [])]
    return [Parameter(name=f"{name}_{phase}", low=-2.0, high=2.0, mean=mean, deviation=0.5) for name, mean in names]


def _saturation_parameters(with_models: bool) -> list[Parameter]:
    """About 3% of the energy at a typical batch size, until the table says otherwise."""
    return [
        Parameter(name="alpha_s", low=-20.0, high=20.0, mean=np.log(0.03), deviation=3.0, logged=True),
        *_further_exponents("s", 0.5, 0.2, with_models),
    ]


def _crowding_parameters(mean_log_batch: float, with_models: bool) -> list[Parameter]:
    """About 2% of the energy at a typical batch size, until the table says otherwise."""
    return [
        Parameter(name="alpha_c", low=-20.0, high=20.0, mean=-4.0 - 0.5 * mean_log_batch, deviation=2.0, logged=True),
        Parameter(name="beta_c", low=0.0, high=2.0, mean=0.5, deviation=0.3),
        *_further_exponents("c", 0.5, 0.2, with_models),
    ]


class AdditiveForm:
    """Prefill + decode + overhead. Energies are relative to the table's geometric mean.

    Args:
        mean_log_batch: mean of ln(batch size), which centres the prior of alpha.
        with_models: whether the table has both columns of model sizes.
        saturation: whether decode has a part that does not fall with the batch.
        crowding: whether there is the term that grows with the batch.
    """

    def __init__(
        self, mean_log_batch: float, with_models: bool, *, saturation: bool = False, crowding: bool = False
    ) -> None:
        self.with_models, self.saturation, self.crowding = with_models, saturation, crowding
        prefill = _workload_parameters("p", np.log(0.3) + 0.4 * mean_log_batch, 0.4, with_models)
        decode = _workload_parameters("d", np.log(0.6) + 0.8 * mean_log_batch, 0.8, with_models)
        self._size = len(prefill)
        overhead = [
            Parameter(name=name, low=-14.0, high=5.0, mean=np.log(0.1), deviation=3.0, logged=True)
            for name in ("delta1", "delta2")
        ]
        saturated = _saturation_parameters(with_models) if saturation else []
        rising = _crowding_parameters(mean_log_batch, with_models) if crowding else []
        self._saturated = 2 * self._size + 2
        self._rising = self._saturated + len(saturated)
        self.parameters = (*prefill, *decode, *overhead, *saturated, *rising)
        self.term_names = (
            *("prefill_j", "decode_j", "overhead_j", "overhead_j"),
            *(("decode_j",) if saturation else ()),
            *(("crowding_j",) if crowding else ()),
        )

    def _exponents(self, logs: LogColumns) -> Floats:
        names = ("tensor_parallel", "pipeline_parallel", *(MODEL_COLUMNS if self.with_models else ()))
        return np.stack([logs[name] for name in names])  # in the order of the parameters

    def log_terms(self, theta: Floats, logs: LogColumns) -> Floats:
        """(t, n): prefill, decode, overhead of TP, overhead of PP, saturated decode, crowding."""
        powers, batch, terms, end = self._exponents(logs), logs["batch_size"], [], 2 * self._size
        for start, tokens in ((0, "input_tokens"), (self._size, "output_tokens")):
            alpha, beta, eps, *exponents = theta[start : start + self._size]
            terms.append(alpha + logs[tokens] + np.asarray(exponents) @ powers - np.logaddexp(beta * batch, eps))
        terms += [theta[end] + logs["tensor_parallel"], theta[end + 1] + logs["pipeline_parallel"]]
        if self.saturation:
            alpha, *exponents = theta[self._saturated : self._rising]
            terms.append(alpha + logs["output_tokens"] + np.asarray(exponents) @ powers)
        if self.crowding:
            alpha, beta, *exponents = theta[self._rising :]
            terms.append(alpha + beta * batch + np.asarray(exponents) @ powers)
        return np.stack(terms)

    def gradient(self, theta: Floats, logs: LogColumns) -> Floats:
        """(n, p): derivative of ln E by theta."""
        terms = self.log_terms(theta, logs)
        shares = np.exp(terms - terms.max(axis=0))
        shares /= shares.sum(axis=0)
        powers, batch = self._exponents(logs), logs["batch_size"]
        result = np.empty((len(batch), len(theta)))
        for share, start in ((shares[0], 0), (shares[1], self._size)):
            beta, eps = theta[start + 1], theta[start + 2]
            denominator = np.logaddexp(beta * batch, eps)
            result[:, start] = share
            result[:, start + 1] = -share * np.exp(beta * batch - denominator) * batch
            result[:, start + 2] = -share * np.exp(eps - denominator)
            result[:, start + 3 : start + self._size] = (share * powers).T
        result[:, self._saturated - 2 : self._saturated] = shares[2:4].T
        if self.saturation:
            result[:, self._saturated] = shares[4]
            result[:, self._saturated + 1 : self._rising] = (shares[4] * powers).T
        if self.crowding:
            result[:, self._rising] = shares[-1]
            result[:, self._rising + 1] = shares[-1] * batch
            result[:, self._rising + 2 :] = (shares[-1] * powers).T
        return result

    def inert(self, varies: Mapping[str, bool]) -> dict[str, float]:
        """Exponents of columns that do not vary; one overhead where neither parallelism varies; see `Form.inert`."""
        fixed: dict[str, float] = {}
        phases = [phase for phase in "pdsc" if any(p.name == f"alpha_{phase}" for p in self.parameters)]
        for column, name in (
            ("tensor_parallel", "gamma1"),
            ("pipeline_parallel", "gamma2"),
            ("activated_params_b", "activated"),
            ("total_params_b", "total"),
        ):
            if not varies.get(column, False) and (self.with_models or column not in MODEL_COLUMNS):
                fixed |= {f"{name}_{phase}": 0.0 for phase in phases}
        if not varies["batch_size"]:
            fixed |= {"beta_p": 0.0, "beta_d": 0.0, "eps_p": np.log(1e-3), "eps_d": np.log(1e-3)}
            fixed |= {"alpha_c": _ZERO_LOG, "beta_c": 0.0} if self.crowding else {}
        if self.saturation and not (varies["batch_size"] and varies["output_tokens"]):
            fixed["alpha_s"] = _ZERO_LOG  # decode or the overhead already holds it
        if not (varies["tensor_parallel"] or varies["pipeline_parallel"]):
            fixed["delta2"] = _ZERO_LOG
        if not (varies["batch_size"] or varies["input_tokens"]):
            fixed["alpha_p"] = _ZERO_LOG  # a constant: the overhead already holds one
        return fixed


class LogarithmicForm:
    """One term that grows with the logarithm of output per input token and GPU. Energies relative to their mean."""

    term_names = ("total_j",)

    def __init__(self, mean_log_batch: float, with_models: bool) -> None:
        self.with_models = with_models
        names = ("gamma1", "gamma2", *(("activated", "total") if with_models else ()))
        self.parameters = (
            Parameter(name="alpha", low=-12.0, high=20.0, mean=0.5 * mean_log_batch, deviation=3.0, logged=True),
            Parameter(name="beta", low=0.0, high=2.0, mean=0.5, deviation=0.5),
            *(Parameter(name=name, low=-2.0, high=3.0, mean=0.5, deviation=0.7) for name in names),
            Parameter(name="c1", low=-12.0, high=12.0, mean=0.0, deviation=3.0, logged=True),
            Parameter(name="c2_minus_1", low=-9.0, high=5.0, mean=0.0, deviation=2.0, logged=True),
        )

    def _exponents(self, logs: LogColumns) -> Floats:
        names = ("tensor_parallel", "pipeline_parallel", *(MODEL_COLUMNS if self.with_models else ()))
        return np.stack([-logs["batch_size"], *(logs[name] for name in names)])

    def _inside(self, theta: Floats, logs: LogColumns) -> tuple[Floats, Floats]:
        """Output per c1, input token and GPU, and the argument of the logarithm less 1."""
        log_ratio = logs["output_tokens"] - logs["input_tokens"] - logs["tensor_parallel"] - logs["pipeline_parallel"]
        ratio = np.exp(np.clip(log_ratio - theta[-2], -60.0, 60.0))
        return ratio, ratio + np.exp(theta[-1])

    def log_terms(self, theta: Floats, logs: LogColumns) -> Floats:
        """(1, n)."""
        _, inside = self._inside(theta, logs)
        return np.asarray(theta[0] + theta[1:-2] @ self._exponents(logs) + np.log(np.log1p(inside)))[None, :]

    def gradient(self, theta: Floats, logs: LogColumns) -> Floats:
        """(n, p): derivative of ln E by theta."""
        ratio, inside = self._inside(theta, logs)
        outer = 1.0 / ((1.0 + inside) * np.log1p(inside))
        ones = np.ones((len(ratio), 1))
        last = np.stack([-ratio * outer, np.exp(theta[-1]) * outer], axis=1)
        return np.hstack([ones, self._exponents(logs).T, last])

    def inert(self, varies: Mapping[str, bool]) -> dict[str, float]:
        """Exponents of columns that do not vary; c2 where nothing inside the logarithm varies."""
        columns = {
            "beta": "batch_size",
            "gamma1": "tensor_parallel",
            "gamma2": "pipeline_parallel",
            "activated": "activated_params_b",
            "total": "total_params_b",
        }
        known = {parameter.name for parameter in self.parameters}
        fixed = {name: 0.0 for name, column in columns.items() if name in known and not varies.get(column, False)}
        inside = ("input_tokens", "output_tokens", "tensor_parallel", "pipeline_parallel")
        return fixed if any(varies[name] for name in inside) else fixed | {"c1": 0.0, "c2_minus_1": 0.0}


FORMS: dict[str, Callable[[float, bool], Form]] = {
    "additive": AdditiveForm,
    "saturating": partial(AdditiveForm, saturation=True),
    "crowded": partial(AdditiveForm, saturation=True, crowding=True),
    "logarithmic": LogarithmicForm,
}
