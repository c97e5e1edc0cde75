"""SpeedupLaw: how much faster n GPUs are than one, normalised so that S(1) = 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from energy_lightning.predict.columns import Floats, PredictionError, checked_positive

# Fitted constants of arXiv 2606.23546 (8x RTX 2080 Ti, BERT). Its tensor-parallel curve S_max (1 - exp(-k t)), with
# S_max 9.8 and k 0.76, gives 5.2 on one GPU; divided by that it is this law with S_max = 1 + 1 / (e^k - 1).
_PUBLISHED = {
    ("rtx2080ti", "tp"): (1.0 + 1.0 / (math.exp(0.76) - 1.0), 0.76),
    ("rtx2080ti", "fsdp"): (0.005, 1.266),
}
_SAME_AS_ONE = 0.1  # in ln S(1)
_BOUNDS = {"tp": ((0.02, 1e-3), (1e3, 20.0)), "fsdp": ((1e-9, 0.0), (1e6, 6.0))}
_NAMES = {"tp": ("s_max", "k"), "fsdp": ("a", "b")}
_STARTS = {"tp": ((4.0, 0.3), (0.7, 1.0), (30.0, 0.03)), "fsdp": ((0.01, 1.2), (1.0, 1.0), (0.1, 2.0))}


@dataclass(frozen=True, slots=True)
class SpeedupLaw:
    """Speed-up of one strategy over the number of GPUs.

        tp      S(n) = 1 + (s_max - 1) (1 - exp(-k (n - 1)))      saturates at s_max, which may be under 1
        fsdp    S(n) = n (1 + a) / (1 + a n^b)

    Attributes:
        strategy: "tp" or "fsdp".
        parameters: (s_max, k) or (a, b).
        largest: most GPUs that it was fitted on.
        source: "measured", "published" or "emulated".
    """

    strategy: Literal["tp", "fsdp"]
    parameters: tuple[float, float]
    largest: float = 8.0
    source: str = "measured"

    def __post_init__(self) -> None:
        _check_strategy(self.strategy)
        low, high = _BOUNDS[self.strategy]
        if len(self.parameters) != len(low):
            names = ", ".join(_NAMES[self.strategy])
            raise PredictionError(f"{self.strategy}: parameters must be ({names}), got {self.parameters!r}")
        for name, value, a, b in zip(_NAMES[self.strategy], self.parameters, low, high, strict=True):
            if not a <= value <= b:  # NaN fails too
                raise PredictionError(f"{self.strategy}: {name} must be in [{a:g}, {b:g}], got {value!r}")

    @classmethod
    def fit(cls, strategy: Literal["tp", "fsdp"], num_gpus: ArrayLike, speedup: ArrayLike) -> SpeedupLaw:
        """From measured speed-ups over one GPU, (n,) each; least squares in logarithms, outliers count less.

        Raises:
            PredictionError: an unknown strategy, unusable values, S(1) that is not about 1, or fewer than two different
                numbers of GPUs above 1.
        """
        _check_strategy(strategy)
        counts, values = checked_positive(num_gpus, "num_gpus"), checked_positive(speedup, "speedup")
        if counts.shape != values.shape:
            raise PredictionError(f"need as many speed-ups as GPU counts, got {len(values)} and {len(counts)}")
        if (counts < 1.0).any():
            raise PredictionError(f"num_gpus must be >= 1, got {counts.min():g}")
        alone = values[counts == 1.0]
        if len(alone) and abs(np.log(np.median(alone))) > _SAME_AS_ONE:
            raise PredictionError(
                f"speed-ups are over one GPU, where they are 1, got {np.median(alone):g} there: divide them all by it"
            )
        if len(np.unique(counts[counts > 1.0])) < 2:
            raise PredictionError(
                f"two parameters need speed-ups on two different numbers of GPUs above 1, got {np.unique(counts)}"
            )

        def residuals(parameters: Floats) -> Floats:
            return np.log(_speedup(strategy, parameters, counts)) - np.log(values)

        low, high = _BOUNDS[strategy]
        fits = [
            least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, x_scale=start)
            for start in _STARTS[strategy]
        ]
        first, second = min(fits, key=lambda fit: fit.cost).x
        return cls(strategy, (float(first), float(second)), float(counts.max()))

    @classmethod
    def preset(cls, gpu_model: str, strategy: Literal["tp", "fsdp"]) -> SpeedupLaw:
        """Of a GPU model: published where there is a publication (rtx2080ti), else fitted to a BERT-base run on the
        emulated GPU. DeviceError for an unknown GPU model."""
        _check_strategy(strategy)
        if (gpu_model, strategy) in _PUBLISHED:
            return cls(strategy, _PUBLISHED[gpu_model, strategy], 8.0, "published")
        from energy_lightning.predict.sweep import emulated_speedups

        counts, values = emulated_speedups(gpu_model, strategy)
        fitted = cls.fit(strategy, counts, values)
        return cls(strategy, fitted.parameters, fitted.largest, "emulated")

    def speedup(self, num_gpus: ArrayLike) -> Floats:
        """S(n), same shape as `num_gpus`; PredictionError for less than one GPU."""
        counts = np.asarray(num_gpus, dtype=np.float64)
        if not (counts >= 1.0).all():  # NaN fails too
            raise PredictionError(f"num_gpus must be >= 1, got {num_gpus!r}")
        return _speedup(self.strategy, self.parameters, counts)

    def efficiency(self, num_gpus: ArrayLike) -> Floats:
        """S(n) / n."""
        return self.speedup(num_gpus) / np.asarray(num_gpus, dtype=np.float64)

    def formula(self, *, digits: int = 3) -> str:
        """The law with its constants."""
        first, second = (f"{value:.{digits}g}" for value in self.parameters)
        if self.strategy == "tp":
            return f"S(n) = 1 + ({first} - 1) * (1 - exp(-{second} * (n - 1)))"
        return f"S(n) = n * (1 + {first}) / (1 + {first} * n^{second})"


def _speedup(strategy: str, parameters: Any, counts: Floats) -> Floats:
    first, second = parameters
    if strategy == "tp":
        return np.asarray(1.0 - (first - 1.0) * np.expm1(-second * (counts - 1.0)))
    return np.asarray(counts * (1.0 + first) / (1.0 + first * counts**second))


def _check_strategy(strategy: str) -> None:
    if strategy not in _BOUNDS:
        raise PredictionError(f"no speed-up law for strategy {strategy!r}; choose one of {', '.join(_BOUNDS)}")
