"""A fitted closed form in words and natural units: parameters, formula, named terms, notes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from energy_lightning.predict.columns import Floats
from energy_lightning.predict.form import MODEL_COLUMNS, Form


def natural_parameters(form: Form, theta: Floats, level: float, shifts: Mapping[str, float]) -> dict[str, float]:
    """Name -> value in joules and the columns' own units; what centring moved into alpha, delta and c1 moves back."""
    values = dict(zip((parameter.name for parameter in form.parameters), theta.tolist(), strict=True))
    logged = {parameter.name for parameter in form.parameters if parameter.logged}
    for phase, tokens in (
        ("_p", "input_tokens"),
        ("_d", "output_tokens"),
        ("_s", "output_tokens"),
        ("_c", None),
        ("", None),
    ):
        if f"alpha{phase}" in values:
            moved = level - (shifts.get(tokens, 0.0) if tokens else 0.0)
            for name, column in (("activated", MODEL_COLUMNS[0]), ("total", MODEL_COLUMNS[1])):
                moved -= values.get(f"{name}{phase}", 0.0) * shifts.get(column, 0.0)
            values[f"alpha{phase}"] += moved
    for name in ("delta1", "delta2"):
        if name in values:
            values[name] += level
    if "c1" in values:  # the ratio of tokens inside the logarithm was centred
        values["c1"] += shifts.get("output_tokens", 0.0) - shifts.get("input_tokens", 0.0)
    natural = {name: float(np.exp(value)) if name in logged else value for name, value in values.items()}
    if "c2_minus_1" in natural:
        natural["c2"] = 1.0 + natural.pop("c2_minus_1")
    return natural


def named_terms(form: Form, terms: Floats) -> dict[str, Floats]:
    """Joules (n,) of each name; terms of one name are added."""
    named: dict[str, Floats] = {}
    for name, term in zip(form.term_names, terms, strict=True):
        named[name] = named[name] + term if name in named else term
    return named


def notes(varies: Mapping[str, bool]) -> list[str]:
    """What a table cannot tell, where only some columns vary."""
    constant = [name for name, does in varies.items() if not does]
    found = [f"constant columns, whose effect is not known: {', '.join(constant)}"] if constant else []
    if not (varies["input_tokens"] or varies["output_tokens"]):
        found.append(
            "no token column varies: the split between prefill and decode rests on the priors, their sum on the data"
        )
    return found


def _factor(column: str, exponent: float, digits: int) -> str:
    return f" * {column}^{_rounded(exponent, digits)}"


def _rounded(exponent: float, digits: int) -> str:
    """Exponents at their lowest bound are 0 but for rounding."""
    return "0" if abs(exponent) < 1e-9 else f"{exponent:.{digits}g}"


def _powers(values: Mapping[str, float], left_out: set[str], suffix: str, digits: int) -> str:
    columns = {
        "gamma1": "tensor_parallel",
        "gamma2": "pipeline_parallel",
        "activated": MODEL_COLUMNS[0],
        "total": MODEL_COLUMNS[1],
    }
    return "".join(
        _factor(column, values[name + suffix], digits)
        for name, column in columns.items()
        if name + suffix in values and name + suffix not in left_out
    )


def _workload_term(values: Mapping[str, float], left_out: set[str], phase: str, digits: int) -> str:
    tokens = {"p": "input_tokens", "d": "output_tokens"}[phase]
    text = f"{values[f'alpha_{phase}']:.{digits}g} * {tokens}"
    if f"beta_{phase}" not in left_out:
        text += f" / (batch_size^{_rounded(values[f'beta_{phase}'], digits)} + {values[f'eps_{phase}']:.{digits}g})"
    return text + _powers(values, left_out, f"_{phase}", digits)


def formula(values: Mapping[str, float], left_out: set[str], digits: int, with_effects: bool) -> str:
    """The formula of `values` (natural units); parameters in `left_out` are not printed."""
    if "c1" in values:
        batch = "" if "beta" in left_out else _factor("batch_size", -values["beta"], digits)
        inside = f"output_tokens / ({values['c1']:.{digits}g} * input_tokens * tensor_parallel * pipeline_parallel)"
        text = (
            f"E = {values['alpha']:.{digits}g}{batch}{_powers(values, left_out, '', digits)}"
            f" * ln({values['c2']:.{digits}g} + {inside})"
        )
    else:
        terms = [_workload_term(values, left_out, phase, digits) for phase in "pd" if f"alpha_{phase}" not in left_out]
        overheads = (("delta1", "tensor_parallel"), ("delta2", "pipeline_parallel"))
        terms += [f"{values[name]:.{digits}g} * {column}" for name, column in overheads if name not in left_out]
        if "alpha_s" in values and "alpha_s" not in left_out:
            terms.append(f"{values['alpha_s']:.{digits}g} * output_tokens{_powers(values, left_out, '_s', digits)}")
        if "alpha_c" in values and "alpha_c" not in left_out:
            rising = _factor("batch_size", values["beta_c"], digits) + _powers(values, left_out, "_c", digits)
            terms.append(f"{values['alpha_c']:.{digits}g}{rising}")
        text = "E = " + "\n  + ".join(terms)
    return text + ("\n  all times the model's factor" if with_effects else "")
