"""Rank 0's side of a sweep over power limits: what every rank is to do next, and what was found.

Why PowerLimitOptimizer is not Zeus's GlobalPowerLimitOptimizer (zeus 0.16, read for this): it restores the highest
limit, not the earlier one, from an exit handler only; ends the training where limits cannot be set or a window shows no
energy; takes the limit it asked for as the one in force; counts a GPU twice that two processes share; begins a window
anew at each epoch's end, so that epochs shorter than a window never finish one; looks neither at throttling nor at
temperature, and repeats nothing; loads a profile whatever job and GPU it is of; its slow-down rule takes the lowest
limit, not the least energy. Its cost and the shape of its sweep are kept; limits are set by the device's own means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from energy_lightning.callbacks.job import FAILURES
from energy_lightning.callbacks.power_profile import PowerProfile, describe_device
from energy_lightning.callbacks.power_setting import Outcome
from energy_lightning.callbacks.power_window import WindowRow, reduce_rows
from energy_lightning.recurring import (
    PowerLimitSample,
    PowerObjective,
    PowerSweep,
    RecurringError,
    choose_power_limit,
    power_limit_steps,
)
from energy_lightning.recurring.errors import positive, whole
from energy_lightning.recurring.wording import more_or_less

LONGEST_WINDOW = 50  # windows' worth of steps that a slow counter may ask for
WARMING_C = 1.5  # a rise within the first window that tells of a GPU that has just begun to work


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """See PowerLimitOptimizer."""

    objective: PowerObjective
    limits_w: tuple[float, ...] | None
    step_w: float
    warmup_steps: int
    profile_steps: int
    max_tries: int
    noise: float

    def __post_init__(self) -> None:
        for name, least in (("warmup_steps", 0), ("profile_steps", 1), ("max_tries", 1)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))
        if positive("step_w", self.step_w, "25.0 (W)") < 1.0:
            raise RecurringError(f"step_w must be 1 W or more, as GPUs set no finer limits, got {self.step_w}")
        choose_power_limit([(1.0, 1.0, 1.0)], noise=self.noise)  # refuses what it cannot use

    def within(self, least_w: float, most_w: float, found_w: float) -> tuple[float, ...]:
        """The limits to try on GPUs that take `least_w` to `most_w` and had `found_w` before, which only `limits_w` may
        exceed. RecurringError for one that they do not take.
        """
        if self.limits_w is None:
            return power_limit_steps((least_w, min(most_w, found_w)), self.step_w)
        outside = [f"{limit_w:g}" for limit_w in self.limits_w if not least_w <= limit_w <= most_w]
        if outside:
            raise RecurringError(
                f"PowerLimitOptimizer: limits_w={list(self.limits_w)}: {', '.join(outside)} W is outside what the GPUs "
                f"take, {least_w:g} to {most_w:g} W; give limits within that range, or leave limits_w out"
            )
        return self.limits_w


def parse_limits(limits_w: Any) -> tuple[float, ...] | None:
    """What PowerLimitOptimizer's `limits_w` means, in W; None: the device's own."""
    if limits_w is None:
        return None
    if isinstance(limits_w, (str, bytes)) or not isinstance(limits_w, Iterable) or not (given := list(limits_w)):
        raise RecurringError(f"limits_w must be a list of limits in W, e.g. [250, 200, 150], or None, got {limits_w!r}")
    return tuple(positive("every limit in limits_w", one, "250.0 (W)") for one in given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What rank 0 must know of another rank's GPU before a sweep."""

    gpu: float
    device: dict[str, Any]
    virtual: bool
    range_w: tuple[float, float] | None
    limit_w: float
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What rank 0 has every rank do next.

    `action`: "measure" `limit_w` after warm-up; "extend" the open window by `num_steps`; "settle" at `limit_w`; or
    "stop" and go back to the earlier limit. `line` is for the user.
    """

    action: Literal["measure", "extend", "settle", "stop"]
    limit_w: float = math.nan
    num_steps: int = 0
    line: str = ""
    profile: tuple[PowerLimitSample, ...] = ()


def gather_facts(device: Any, gpu: float) -> Facts:
    """This rank's. Never raises: a rank that did would leave the others waiting."""
    try:
        able = bool(getattr(device, "can_set_power_limit", False))
        why = None if able else str(getattr(device, "mode_reason", f"{device.name} has no power limit to set"))
        if able and device.energy_source == "none":
            why = f"{device.name} has no energy reading"
        return Facts(
            gpu=gpu,
            device=describe_device(device),
            virtual=bool(device.virtual_clock),
            range_w=device.power_limit_range_w if able else None,
            limit_w=float(device.power_limit_w) if able else math.nan,
            why_not=why,
        )
    except FAILURES as error:
        why = f"{type(error).__name__}: {error}"
        return Facts(gpu=gpu, device={"gpu": "unknown"}, virtual=False, range_w=None, limit_w=math.nan, why_not=why)


def why_no_sweep(facts: Sequence[Facts], *, named: bool) -> str | None:
    """Why limits cannot be tried, or None. `named`: the user says which, so the limits found do not cap them."""
    for rank, one in enumerate(facts):
        if one.why_not is not None or one.range_w is None:
            return f"rank {rank}: {one.why_not or 'the GPU does not tell its limits'}"
    least_w, most_w, found_w = _in_common(facts)
    if least_w > most_w:
        each = "; ".join(
            f"rank {i} {one.range_w[0]:g} to {one.range_w[1]:g} W" for i, one in enumerate(facts) if one.range_w
        )
        return f"the GPUs take no limit in common ({each})"
    if not named and found_w < least_w:
        return f"{found_w:g} W is in force and {least_w:g} W the least that can be set; to go above give limits_w=[...]"
    return None


def _in_common(facts: Sequence[Facts]) -> tuple[float, float, float]:
    """(least, most) limit in W that every GPU takes, and the least that was found in force on one."""
    ranges = [one.range_w for one in facts if one.range_w is not None]
    return max(low for low, _ in ranges), min(high for _, high in ranges), min(one.limit_w for one in facts)


def power_objective(goal: Any, max_slowdown: float | None, eta: float) -> PowerObjective:
    """What PowerLimitOptimizer's arguments mean: "cost" where neither a goal nor a slow-down is given."""
    if max_slowdown is not None and goal not in (None, "max_slowdown"):
        raise RecurringError(f"max_slowdown={max_slowdown} goes with objective='max_slowdown', not {goal!r}; leave one")
    if goal == "max_slowdown" and max_slowdown is None:
        raise RecurringError("objective='max_slowdown' needs max_slowdown, e.g. 0.05 for 5%")
    chosen: Any = goal or ("cost" if max_slowdown is None else "max_slowdown")
    return PowerObjective(goal=chosen, eta=eta, max_slowdown=0.0 if max_slowdown is None else max_slowdown)


class PowerPlanner:
    """Decides from the ranks' facts and windows. Raises RecurringError for limits that the GPUs do not take."""

    def __init__(self, settings: SweepSettings, facts: Sequence[Facts], profile: PowerProfile) -> None:
        least_w, most_w, found_w = _in_common(facts)
        limits_w = settings.within(least_w, most_w, found_w)
        num_gpus = len({one.gpu for one in facts})
        self._settings, self.profile, self._before_w = settings, profile, facts[0].limit_w
        self._objective = replace(settings.objective, max_power_w=max(limits_w) * num_gpus)
        self.sweep = PowerSweep(limits_w, profile.known, max_tries=settings.max_tries)
        self._span = f"{self.sweep.num_limits} power limits, {max(limits_w):g} to {min(limits_w):g} W"
        if self.sweep.num_limits == 1:
            self._span = f"one power limit, {max(limits_w):g} W"
        if settings.limits_w is None and found_w < most_w:
            self._span += (
                f" (none above the {found_w:g} W that were in force; limits_w=[...] may go up to {most_w:g} W)"
            )
        if self.profile.run["emulated"] and not all(one.virtual for one in facts):
            self._span += (
                " (the NVML is emulated and training runs on the CPU, which feels no limit: times say nothing)"
            )

    def begin(self) -> Order:
        """The first order."""
        sweep = self.sweep
        if sweep.current_w is None:
            return self._next(f"{self.profile.path} knows this job: no power limit is tried again")
        known = f", {sweep.num_known} of them known already" if sweep.num_known else ""
        each = self._settings.warmup_steps + self._settings.profile_steps
        num_steps = (sweep.num_limits - sweep.num_known) * each
        return self._next(f"trying {self._span}{known}, about {num_steps} steps{_emulated(self.profile.run)}")

    def judge(self, rows: Sequence[WindowRow]) -> Order:
        """What the window that has ended was worth, and what comes next."""
        asked_w = self.sweep.current_w
        assert asked_w is not None
        lost = next((rank for rank, row in enumerate(rows) if not row.can_set), None)
        if lost is not None:
            line = f"rank {lost} may not set power limits any more: the earlier limit comes back, training goes on"
            return Order(action="stop", line=line, profile=tuple(self.sweep.profile))
        window = reduce_rows(rows, asked_w=asked_w)
        fault, num_steps = window.fault, rows[0].num_steps
        if fault is None and window.steps_missing:
            if num_steps + window.steps_missing <= LONGEST_WINDOW * self._settings.profile_steps:
                return Order(action="extend", num_steps=window.steps_missing)
            fault = f"{num_steps} steps are too short for the energy counter; raise profile_steps"
        if fault is None and window.warmed_c > WARMING_C and self.sweep.num_measured == 0 and self.sweep.tries_left > 1:
            fault = f"the GPU is still warming up ({window.warmed_c:+.1f} C within the window)"  # leaks less while cool
        if fault is not None:
            gone = self.sweep.reject(fault)
            silent = next((rank for rank, row in enumerate(rows) if math.isnan(row.limit_w)), None)
            if gone and silent is not None:
                line = f"rank {silent} does not tell its power limit any more, none is tried, training goes on: {fault}"
                return Order(action="stop", line=line, profile=tuple(self.sweep.profile))
            return self._next(f"{asked_w:g} W {'is left out' if gone else 'is measured again'}: {fault}")
        return self._accept(asked_w, window.sample(), window.temperature_c, num_steps=num_steps)

    def rounded(self, outcomes: Sequence[Outcome]) -> Order | None:
        """What comes next where the GPUs have made of the limit in hand one that is known already; else None.

        `outcomes`: each rank's `LimitSetting.outcome`. Steps under that limit would be spent twice.
        """
        asked_w = self.sweep.current_w
        assert asked_w is not None
        applied_w = {set_w for set_w, _ in outcomes if set_w is not None}
        known = next((one for one in self.sweep.profile if applied_w == {one.power_limit_w}), None)
        if known is None or any(fault is not None for _, fault in outcomes):
            return None
        return self._accept(asked_w, known, None, num_steps=0)

    def unfinished(self) -> str:
        """One line for a training that ended before the sweep."""
        done = self.sweep.num_known + self.sweep.num_measured + len(self.sweep.given_up)
        if not done:
            return "training ended before a power limit was measured: the next run begins anew"
        return (
            f"training ended after {done} of {self.sweep.num_limits} power limits; they are kept in "
            f"{self.profile.path}, and the next run goes on from there"
        )

    def _accept(
        self, asked_w: float, sample: PowerLimitSample, temperature_c: float | None, *, num_steps: int
    ) -> Order:
        line = ""
        try:
            self.profile.add(asked_w, sample, temperature_c, num_steps=num_steps)
        except OSError as error:
            line = f"cannot write {self.profile.path} ({error.strerror}): the next run sweeps again"
        self.sweep.accept(sample)
        return self._next(line)

    def _next(self, line: str) -> Order:
        sweep = self.sweep
        if sweep.current_w is not None:
            return Order(action="measure", limit_w=sweep.current_w, line=line)
        profile = tuple(sweep.profile)
        if not profile:
            reasons = "; ".join(f"{limit_w:g} W: {why}" for limit_w, why in sweep.given_up.items())
            return Order(action="stop", line=f"no power limit could be measured, training goes on: {reasons}")
        best = choose_power_limit(profile, self._objective, noise=self._settings.noise)
        line = "; ".join(filter(None, [line, self._verdict(best)]))
        return Order(action="settle", limit_w=sweep.asked_for(best.power_limit_w), line=line, profile=profile)

    def _verdict(self, best: PowerLimitSample) -> str:
        """One line: the limit, and what it changes against the highest one."""
        highest = max(self.sweep.profile, key=lambda sample: sample.power_limit_w)
        line = f"power limit {best.power_limit_w:g} W (was {self._before_w:g} W)"
        if len(self.sweep.profile) == 1:
            line += ", the only one measured"
        elif best.power_limit_w == highest.power_limit_w:
            line += f", the highest tried: no lower one {self._better()}"
        else:
            energy = more_or_less("energy", best.energy_j, highest.energy_j)
            time = more_or_less("time", best.time_s, highest.time_s)
            line += f": {energy} and {time} a step against {highest.power_limit_w:g} W"
        if self.sweep.given_up:
            line += f"; not measured: {', '.join(f'{limit_w:g} W' for limit_w in self.sweep.given_up)}"
        return line + _emulated(self.profile.run)

    def _better(self) -> str:
        if self._objective.goal != "max_slowdown":
            return "is better by more than the noise"
        return f"saves more than the noise in at most {100.0 * self._objective.max_slowdown:.3g}% more time"


def _emulated(run: Mapping[str, Any]) -> str:
    return " (EMULATED)" if run["emulated"] else ""
