"""SpeedupLaw: normalised, recovered from its own points, and its published constants."""

from __future__ import annotations

import math

import numpy as np
import pytest

from energy_lightning.predict import PredictionError, SpeedupLaw
from energy_lightning.types import DeviceError

LAWS = [("tp", (5.0, 0.4)), ("tp", (0.6, 0.9)), ("fsdp", (0.005, 1.266)), ("fsdp", (0.3, 1.1))]


@pytest.mark.parametrize(("strategy", "parameters"), LAWS)
def test_one_gpu_is_no_faster_than_itself(strategy: str, parameters: tuple[float, float]) -> None:
    law = SpeedupLaw(strategy, parameters)
    assert law.speedup(1) == 1.0
    assert law.efficiency(1.0) == 1.0


@pytest.mark.parametrize(("strategy", "parameters"), LAWS)
def test_a_law_is_found_from_its_points(strategy: str, parameters: tuple[float, float]) -> None:
    counts = np.array([1, 2, 4, 8, 16])
    if strategy == "tp":
        points = [1.0 + (parameters[0] - 1.0) * (1.0 - math.exp(-parameters[1] * (n - 1))) for n in counts]
    else:
        points = [n * (1.0 + parameters[0]) / (1.0 + parameters[0] * n ** parameters[1]) for n in counts]
    fitted = SpeedupLaw.fit(strategy, counts, points)
    assert fitted.parameters == pytest.approx(parameters, rel=0.02)
    assert fitted.speedup([3, 12]) == pytest.approx(SpeedupLaw(strategy, parameters).speedup([3, 12]), rel=1e-3)
    text = fitted.formula(digits=12).removeprefix("S(n) = ").replace("^", "**")
    assert eval(text, {"exp": math.exp, "n": 3.0}) == pytest.approx(float(fitted.speedup(3)))


def test_published_tensor_parallel_curve_is_only_rescaled() -> None:
    law = SpeedupLaw.preset("rtx2080ti", "tp")
    published = [9.8 * (1.0 - math.exp(-0.76 * n)) for n in (1, 2, 4, 8)]
    assert law.speedup([1, 2, 4, 8]) == pytest.approx(np.array(published) / published[0])
    assert law.source == "published"


def test_presets_of_other_gpus_are_emulated_and_say_so() -> None:
    law = SpeedupLaw.preset("a100-sxm4-40gb", "fsdp")
    assert law.source == "emulated"
    assert law.speedup(1) == 1.0
    assert 1.0 < law.speedup(8) < 8.0
    with pytest.raises(DeviceError, match="unknown GPU 'gtx1'"):
        SpeedupLaw.preset("gtx1", "tp")


@pytest.mark.parametrize(
    ("strategy", "counts", "values", "message"),
    [
        ("ddp", [2, 4], [1.5, 2.0], "no speed-up law for strategy 'ddp'; choose one of tp, fsdp"),
        ("tp", [1, 2], [1.0, 1.5], "two different numbers of GPUs"),
        ("tp", [2, 4, 0], [1.5, 2.0, 1.0], "num_gpus must be finite and > 0: row 2 has 0"),
        ("tp", [2, 4], [1.5, math.nan], "speedup must be finite and > 0: row 1 has nan"),
        ("fsdp", [2, 4, 8], [1.5, 2.0], "got 2 and 3"),
    ],
)
def test_bad_points_are_refused(strategy: str, counts: list[int], values: list[float], message: str) -> None:
    with pytest.raises(PredictionError, match=message):
        SpeedupLaw.fit(strategy, counts, values)


def test_bad_parameters_and_counts_are_refused() -> None:
    with pytest.raises(PredictionError, match="s_max must be in"):
        SpeedupLaw("tp", (math.nan, 1.0))
    with pytest.raises(PredictionError, match="num_gpus must be >= 1"):
        SpeedupLaw("tp", (4.0, 1.0)).speedup([2, 0])
