"""The emulated A100 against published measurements of real ones; skipped where the figures are not there.

Folder: $ENERGY_LIGHTNING_DATA, else ../shared/data beside the checkout. Thresholds are promises, not the fit itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from energy_lightning.emulation import GPU
from energy_lightning.emulation.published import (
    OVERLAP_FILE,
    PLANS_FILE,
    Comparison,
    FrontierRows,
    best_sm_counts,
    compare_frontier,
    compare_iterations,
    compare_overlap,
    load_frontiers,
    load_overlap,
)

FOLDER = Path(os.environ.get("ENERGY_LIGHTNING_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
A100 = GPU.load("a100-sxm4-40gb")
ROWS = load_frontiers(FOLDER / PLANS_FILE) if (FOLDER / PLANS_FILE).is_file() else []
pytestmark = pytest.mark.skipif(
    not (FOLDER / PLANS_FILE).is_file(), reason=f"no published measurements in {FOLDER}; set ENERGY_LIGHTNING_DATA"
)


def joined(comparisons: list[Comparison]) -> tuple[float, float]:
    return tuple(  # type: ignore[return-value]
        float(np.abs(np.concatenate([getattr(c, name) for c in comparisons])).mean())
        for name in ("time_error", "energy_error")
    )


@pytest.mark.parametrize(
    ("method", "time_limit", "energy_limit"), [("perseus", 0.04, 0.03), ("nanobatch_perseus", 0.06, 0.04)]
)
def test_frequency_plans(method: str, time_limit: float, energy_limit: float) -> None:
    comparisons = [compare_frontier(A100, rows) for rows in load_frontiers(FOLDER / PLANS_FILE, (method,))]
    assert sum(len(c.time_s) for c in comparisons) == 44
    time_mape, energy_mape = joined(comparisons)
    assert time_mape <= time_limit
    assert energy_mape <= energy_limit


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: rows.name.replace(" ", "_"))
def test_every_job_by_itself_and_through_whole_iterations(rows: FrontierRows) -> None:
    """An iteration adds transfers, gradients and optimizer, which the rows lack: little beside the rest."""
    plans, iterations = compare_frontier(A100, rows), compare_iterations(A100, rows)
    for found in (plans, iterations):
        time_mape, energy_mape = found.mape()
        assert time_mape <= (0.06 if rows.nanobatched else 0.04)
        assert energy_mape <= (0.04 if rows.nanobatched else 0.03)
    assert (iterations.predicted_time_s > plans.predicted_time_s).all()


def test_overlap_microbenchmark() -> None:
    comparisons = [compare_overlap(A100, window) for window in load_overlap(FOLDER / OVERLAP_FILE)]
    assert sum(len(c.time_s) for c in comparisons) == 520
    time_mape, energy_mape = joined(comparisons)
    assert time_mape <= 0.04
    assert energy_mape <= 0.05


def test_best_sm_count_is_within_two_in_most_windows() -> None:
    close = []
    for window in load_overlap(FOLDER / OVERLAP_FILE):
        measured = best_sm_counts(window, window.time_s)
        predicted = best_sm_counts(window, compare_overlap(A100, window).predicted_time_s)
        close += [abs(measured[key] - predicted[key]) <= 2 for key in measured]
    assert np.mean(close) >= 0.85


def test_a_wrong_constant_is_noticed() -> None:
    slower = A100.with_constants(compute__linear_efficiency=A100.compute.linear_efficiency * 0.85)
    comparisons = [compare_frontier(slower, rows) for rows in load_frontiers(FOLDER / PLANS_FILE, ("perseus",))]
    assert joined(comparisons)[0] > 0.04
