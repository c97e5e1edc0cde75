"""The power limit to run at, from a measured sweep (floor 1).

Goals as in Zeus (You et al., NSDI 2023), plus least energy within a slow-down. Times and energies of a profile are for
the same work at each limit, energy and limit per GPU or summed over GPUs, but both alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from energy_lightning.recurring.errors import RecurringError, number
from energy_lightning.recurring.runs import CostRule

Goal = Literal["energy", "time", "cost", "max_slowdown"]
_MOST_LIMITS = 1000  # of a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimitSample:
    """The same work under one power limit. Repeats of a limit are averaged."""

    power_limit_w: float
    time_s: float
    energy_j: float

    def __post_init__(self) -> None:
        for name, example in (("power_limit_w", "250.0 (W)"), ("time_s", "0.5 (s)"), ("energy_j", "100.0 (J)")):
            object.__setattr__(self, name, number(name, getattr(self, name), example))
        if not all(0.0 < value < math.inf for value in (self.power_limit_w, self.time_s, self.energy_j)):
            raise RecurringError(f"limit, time and energy must be positive and finite, got {self}: drop failed windows")

    @classmethod
    def parse(cls, row: PowerLimitSample | Sequence[float]) -> PowerLimitSample:
        """A sample, or (power_limit_w, time_s, energy_j). RecurringError for another shape."""
        if isinstance(row, cls):
            return row
        if isinstance(row, (str, bytes)) or not isinstance(row, Iterable) or len(values := list(row)) != 3:
            raise RecurringError(f"a row of a profile is (power_limit_w, time_s, energy_j), got {row!r}")
        return cls(power_limit_w=values[0], time_s=values[1], energy_j=values[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerObjective:
    """What is minimised over the limits.

    goal "energy": energy; "time": time; "cost": eta x energy + (1 - eta) x max_power_w x time, max_power_w by default
    the highest limit of the profile; "max_slowdown": energy among limits at most (1 + max_slowdown) x slower than the
    highest limit, the one an untuned job runs at.
    """

    goal: Goal = "energy"
    eta: float = 0.5
    max_power_w: float | None = None
    max_slowdown: float = 0.0

    def __post_init__(self) -> None:
        if self.goal not in get_args(Goal):
            raise RecurringError(f"unknown goal {self.goal!r}; known: {', '.join(get_args(Goal))}")
        slowdown = number("max_slowdown", self.max_slowdown, "0.05 (5%)")
        if not 0.0 <= slowdown < math.inf:
            raise RecurringError(f"max_slowdown must be 0 or more (0.05 is 5%), got {slowdown}")
        object.__setattr__(self, "max_slowdown", slowdown)
        CostRule(eta=self.eta, max_power_w=1.0 if self.max_power_w is None else self.max_power_w)


def power_limit_steps(range_w: tuple[float, float], step_w: float) -> tuple[float, ...]:
    """Limits in W to try: from the highest of a device's `range_w` (least, most) down by `step_w`, within the range.

    (100, 260) by 25 -> 260, 235, 210, 185, 160, 135, 110. Raises RecurringError on a range or step that cannot be.
    """
    least_w, most_w = range_w
    step_w = number("step_w", step_w, "25.0 (W)")
    if not (0.0 < least_w <= most_w < math.inf and 0.0 < step_w < math.inf):
        raise RecurringError(f"need 0 < least <= most and step_w > 0, all finite, got {range_w} by {step_w}")
    if (most_w - least_w) / step_w >= _MOST_LIMITS:
        raise RecurringError(
            f"step_w={step_w:g} makes more than {_MOST_LIMITS} limits of {range_w}: give e.g. 25.0 (W)"
        )
    count = math.floor((most_w - least_w) / step_w + 1e-9) + 1
    return tuple(most_w - index * step_w for index in range(count))


def choose_power_limit(
    profile: Iterable[PowerLimitSample | tuple[float, float, float]],
    objective: PowerObjective | Goal | None = None,
    *,
    noise: float = 0.01,
) -> PowerLimitSample:
    """The limit that is best for the objective or goal (default: "energy"); values within `noise` of the best are ties.

    `profile`: samples or (power_limit_w, time_s, energy_j), any order. Of ties the highest limit is kept: no saving is
    claimed that the measurement does not show. Raises RecurringError on an empty profile or impossible values.
    """
    if not 0.0 <= number("noise", noise, "0.01 (1%)") < 1.0:
        raise RecurringError(f"noise is a share of the value, in [0, 1), got {noise}")
    samples = merged_profile(profile)
    goal = objective if isinstance(objective, PowerObjective) else PowerObjective(goal=objective or "energy")
    highest = samples[-1]
    if goal.goal == "max_slowdown":
        samples = [one for one in samples if one.time_s <= (1.0 + goal.max_slowdown) * highest.time_s]
    rule = CostRule(eta=goal.eta, max_power_w=goal.max_power_w or highest.power_limit_w)

    def value(sample: PowerLimitSample) -> float:
        if goal.goal == "time":
            return sample.time_s
        return rule(sample.energy_j, sample.time_s) if goal.goal == "cost" else sample.energy_j

    least = min(value(sample) for sample in samples)
    return next(sample for sample in reversed(samples) if value(sample) <= (1.0 + noise) * least)


def merged_profile(profile: Iterable[PowerLimitSample | tuple[float, float, float]]) -> list[PowerLimitSample]:
    """One sample a limit, the mean of its repeats, lowest limit first. RecurringError where nothing was measured."""
    if not isinstance(profile, Iterable):
        raise RecurringError(f"a profile is a list of (power_limit_w, time_s, energy_j), got {profile!r}")
    by_limit: dict[float, list[PowerLimitSample]] = {}
    for row in profile:
        sample = PowerLimitSample.parse(row)
        by_limit.setdefault(sample.power_limit_w, []).append(sample)
    if not by_limit:
        raise RecurringError("the profile is empty: measure at least one power limit")
    return [_mean(same) for _, same in sorted(by_limit.items())]


def _mean(same: Sequence[PowerLimitSample]) -> PowerLimitSample:
    return PowerLimitSample(
        power_limit_w=same[0].power_limit_w,
        time_s=sum(one.time_s for one in same) / len(same),
        energy_j=sum(one.energy_j for one in same) / len(same),
    )
