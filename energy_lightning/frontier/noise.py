"""Repeats of one configuration become one candidate, and differences under the noise are ties."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from energy_lightning.frontier.pareto import FrontierError


@dataclass(frozen=True, slots=True)
class NoisyValue:
    """Mean of `num_repeats` measurements and the standard deviation between them (same unit as the mean)."""

    mean: float
    std: float = 0.0
    num_repeats: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0.0 and self.num_repeats >= 1):
            raise FrontierError(f"need a finite mean, std >= 0 and num_repeats >= 1, got {self}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration with its valid repeats merged: energy per GPU in J, static power included."""

    config: Any
    time_s: NoisyValue
    energy_j: NoisyValue


@dataclass(frozen=True, slots=True)
class MergedRepeats:
    """Merged candidates in the order first seen, and how many trials were left out, by reason."""

    candidates: tuple[Candidate, ...]
    excluded: Mapping[str, int]


def invalid_reason(time_s: float, energy_j: float) -> str | None:
    """Why no measurement can have these values ("time is nan", "energy is negative", ...), or None if one can."""
    for name, value in (("time", time_s), ("energy", energy_j)):
        if math.isnan(value):
            return f"{name} is nan"
        if math.isinf(value):
            return f"{name} is infinite"
        if value <= 0.0:
            return f"{name} is zero" if value == 0.0 else f"{name} is negative"
    return None


def merge_repeats(trials: Iterable[tuple[Any, float, float]]) -> MergedRepeats:
    """Merge trials (config, time_s, energy_j) of equal configurations into their means.

    `config` is hashable or a mapping of plain values. Impossible values (NaN, infinite, negative, zero) are left out
    and counted by reason. Raises FrontierError when nothing is left, naming the reasons.
    """
    groups: dict[Hashable, tuple[Any, list[tuple[float, float]]]] = {}
    excluded: Counter[str] = Counter()
    for config, time_s, energy_j in trials:
        reason = invalid_reason(time_s, energy_j)
        if reason is not None:
            excluded[reason] += 1
            continue
        key = tuple(sorted(config.items())) if isinstance(config, Mapping) else config
        groups.setdefault(key, (config, []))[1].append((time_s, energy_j))
    if not groups:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in excluded.items()) or "there were no trials"
        raise FrontierError(f"no valid measurement is left ({reasons}); measure again before composing a frontier")
    candidates = (Candidate(config, *map(_summary, np.array(values).T)) for config, values in groups.values())
    return MergedRepeats(tuple(candidates), dict(excluded))


def is_tie(a: NoisyValue, b: NoisyValue, *, confidence: float = 0.95, relative_noise: float = 0.0) -> bool:
    """Whether the two means cannot be told apart (Welch's t-test, two-sided, at `confidence`).

    `relative_noise` is the known noise of one measurement as a fraction of its value: a floor under both standard
    deviations, needed for single measurements, whose own spread is unknown. With no noise at all only equal means tie.
    """
    if not 0.0 < confidence < 1.0:
        raise FrontierError(f"confidence must lie between 0 and 1, got {confidence}")
    if not 0.0 <= relative_noise < math.inf:
        raise FrontierError(f"relative_noise must be finite and >= 0 (a fraction of the value), got {relative_noise}")
    from scipy.special import stdtrit  # here: few who read frontiers compare means

    difference = abs(a.mean - b.mean)
    variances, freedoms = zip(*(_error_of_mean(value, relative_noise) for value in (a, b)), strict=True)
    variance = sum(variances)
    if difference == 0.0 or variance == 0.0:
        return difference == 0.0
    # Welch-Satterthwaite; a variance taken from the known noise has infinitely many degrees of freedom.
    spread = sum(v * v / f for v, f in zip(variances, freedoms, strict=True) if math.isfinite(f))
    freedom = variance * variance / spread if spread > 0.0 else math.inf
    limit = float(stdtrit(freedom, 0.5 + confidence / 2.0))
    return difference <= limit * math.sqrt(variance)


def saving(baseline: NoisyValue, candidate: NoisyValue, **tie_options: float) -> float:
    """Fraction saved against the baseline (negative: a loss); 0.0 when both are tied. Options as for `is_tie`."""
    if is_tie(baseline, candidate, **tie_options):
        return 0.0
    return 1.0 - candidate.mean / baseline.mean


def _summary(values: np.ndarray) -> NoisyValue:
    std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return NoisyValue(float(values.mean()), std, len(values))


def _error_of_mean(value: NoisyValue, relative_noise: float) -> tuple[float, float]:
    """Variance of the mean and its degrees of freedom."""
    floor = abs(value.mean) * relative_noise
    if value.num_repeats == 1 or floor >= value.std:
        return max(value.std, floor) ** 2 / value.num_repeats, math.inf
    return value.std**2 / value.num_repeats, value.num_repeats - 1.0
