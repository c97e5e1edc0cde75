"""The closed forms: gradients against finite differences, and what a table cannot tell."""

from __future__ import annotations

import numpy as np
import pytest
from lens_tables import configurations
from scipy.optimize import check_grad

from energy_lightning.predict.form import log_columns, log_energy
from energy_lightning.predict.forms import FORMS


@pytest.mark.parametrize("with_models", [False, True], ids=["one model", "pooled"])
@pytest.mark.parametrize("name", FORMS)
def test_gradient_equals_finite_differences(name: str, with_models: bool) -> None:
    rng = np.random.default_rng(3)
    columns = {column: values.to_numpy(float) for column, values in configurations(12, 1).items()}
    if with_models:
        columns |= {column: rng.uniform(1.0, 80.0, 12) for column in ("activated_params_b", "total_params_b")}
    form, logs = FORMS[name](1.5, with_models), log_columns(columns)
    weights = rng.normal(size=12)
    for _ in range(5):
        theta = np.array([p.mean + 0.5 * p.deviation * rng.normal() for p in form.parameters])
        error = check_grad(
            lambda t: float(weights @ log_energy(form, t, logs)), lambda t: weights @ form.gradient(t, logs), theta
        )
        assert error < 1e-5 * np.abs(weights @ form.gradient(theta, logs)).max() + 1e-6


def test_additive_form_has_the_published_number_of_parameters() -> None:
    assert len(FORMS["additive"](0.0, False).parameters) == 12


def test_bounds_are_the_published_ones() -> None:
    bounds = {p.name: (p.low, p.high) for p in FORMS["additive"](0.0, False).parameters}
    for phase in "pd":
        assert bounds[f"beta_{phase}"] == (0.0, 2.0)
        assert bounds[f"gamma1_{phase}"] == bounds[f"gamma2_{phase}"] == (-2.0, 2.0)
        assert np.exp(bounds[f"eps_{phase}"]) == pytest.approx([1e-3, 1.0])
