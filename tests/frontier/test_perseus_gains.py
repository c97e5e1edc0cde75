"""The savings of our plans, computed from measured instructions, against those Perseus's authors measured.

Folder: $ENERGY_LIGHTNING_DATA, else ../shared/data beside the checkout.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("ENERGY_LIGHTNING_DATA", ROOT.parent / "shared" / "data"))
STAGES = FOLDER / "perseus_measured_stages.csv"
measured = pytest.mark.skipif(not STAGES.is_file(), reason=f"no measured stages in {FOLDER}; set ENERGY_LIGHTNING_DATA")


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("perseus_gains", ROOT / "benchmarks" / "perseus_gains.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@measured
@pytest.mark.parametrize(("model", "published"), [("gpt3-xl", 0.132), ("bert-huge-uncased", 0.129)])
def test_savings_are_within_two_points_of_the_measured_ones(model: str, published: float) -> None:
    found = benchmark().gain(STAGES, model)
    assert 0.0 <= found.slowdown <= 0.01
    assert found.measured == pytest.approx(published, abs=0.005)
    assert found.computed == pytest.approx(found.measured, abs=0.02)
    assert found.computed == pytest.approx(published, abs=0.02)
    assert found.power_error < 0.01
