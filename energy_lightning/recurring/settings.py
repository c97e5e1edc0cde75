"""The settings of a recurring job, checked (floor 1)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from energy_lightning.recurring import learned, published
from energy_lightning.recurring.errors import RecurringError, StoreError, number, positive, truth, whole
from energy_lightning.recurring.rows import read_settings
from energy_lightning.recurring.runs import MOST_WHOLE, CostRule, Outcome, Run, View
from energy_lightning.recurring.store import RunStore

POLICIES = {"learned": learned, "published": published}


def seed_and_clock(seed: Any, clock: Any) -> tuple[int, Callable[[], float]]:
    """What an optimizer needs besides the settings that a store keeps, checked."""
    if not callable(clock):
        raise RecurringError(f"clock must be a function that tells the time in s, e.g. time.time, got {clock!r}")
    return whole("seed", seed, least=0), partial(_checked_time_s, clock)


def _checked_time_s(clock: Callable[[], Any]) -> float:
    given_s = number("the clock's time", clock(), "that of time.time()")
    if not 0.0 <= given_s < math.inf:  # a store with it could not be read again
        raise RecurringError(f"the clock says {given_s} s: it must be finite and >= 0, as that of time.time()")
    return given_s


def checked_limit(power_limit_w: Any) -> float | None:
    """A power limit in W, or None for none. RecurringError for what cannot be."""
    return None if power_limit_w is None else positive("power_limit_w", power_limit_w, "250.0 (W)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """See BatchSizeOptimizer. `batch_sizes` ascending. Raises RecurringError for what cannot be."""

    batch_sizes: tuple[int, ...]
    default: int
    max_power_w: float
    eta: float = 0.5
    beta: float = 2.0
    policy: str = "learned"
    window: int | None = None
    lease_s: float = 6 * 3600.0

    def __post_init__(self) -> None:
        rule = CostRule(eta=self.eta, max_power_w=self.max_power_w)
        self._set(eta=rule.eta, max_power_w=rule.max_power_w)
        self._set(default=whole("default", self.default, least=1))
        self._set(beta=number("beta", self.beta, "2.0"), lease_s=number("lease_s", self.lease_s, "21600.0 (s)"))
        if self.default not in self.batch_sizes:
            raise RecurringError(
                f"default {self.default} is none of the batch sizes {list(self.batch_sizes)}: add it, or choose one"
            )
        if not 1.0 < self.beta < math.inf:
            raise RecurringError(
                f"beta must be more than 1 and finite, got {self.beta}: 2.0 stops at twice the least cost"
            )
        if self.policy not in list(POLICIES):
            raise RecurringError(f"unknown policy {self.policy!r}; known: {', '.join(POLICIES)}")
        if not 0.0 < self.lease_s < math.inf:
            raise RecurringError(
                f"lease_s must be positive and finite, got {self.lease_s}: how long a job may be silent"
            )
        if self.window is not None:
            what = f"window (runs that count; it must hold one of each of the {len(self.batch_sizes)} batch sizes)"
            self._set(window=whole(what, self.window, least=len(self.batch_sizes)))

    def _set(self, **values: Any) -> None:
        """Plain values in place of numpy's, which would not go into the store."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, batch_sizes: Iterable[int], **values: Any) -> JobSettings:
        """Sizes in any order, two or more different ones."""
        if isinstance(batch_sizes, (str, bytes)) or not isinstance(batch_sizes, Iterable):
            raise RecurringError(f"batch_sizes must be a list of sizes, e.g. [8, 16, 32], got {batch_sizes!r}")
        given = list(batch_sizes)
        sizes = sorted({whole("every batch size", one, least=1, most=MOST_WHOLE) for one in given})
        if len(sizes) < 2 or len(sizes) != len(given):
            raise RecurringError(f"need two or more batch sizes, all different, to choose from, got {given}")
        return cls(batch_sizes=tuple(sizes), **values)

    def with_max_power(self, max_power_w: float) -> JobSettings:
        """The same with another power limit."""
        return replace(self, max_power_w=max_power_w)

    @property
    def cost(self) -> CostRule:
        """What a run costs."""
        return CostRule(eta=self.eta, max_power_w=self.max_power_w)

    def checked_size(self, batch_size: Any) -> int:
        """One of the batch sizes; RecurringError for what is none."""
        plain = whole("batch_size", batch_size, least=1)
        if plain not in self.batch_sizes:
            raise RecurringError(f"batch size {plain} is none of {list(self.batch_sizes)}: report what was suggested")
        return plain

    def checked_report(
        self,
        *,
        batch_size: Any,
        energy_j: Any,
        time_s: Any,
        reached_target: Any,
        power_limit_w: Any,
        num_evaluations: Any,
    ) -> Run:
        """A finished run, still without a number in the store. RecurringError for what cannot be."""
        reached = truth("reached_target", reached_target)
        if num_evaluations is not None:
            least = 1 if reached else 0  # a run that broke off before the first tells nothing of them
            num_evaluations = whole("num_evaluations", num_evaluations, least=least, most=MOST_WHOLE) or None
        needed = self.eta > 0.0 and reached
        self.cost(0.0 if energy_j is None and not needed else energy_j, time_s)
        return Run(
            run_id=0,
            batch_size=self.checked_size(batch_size),
            state="done",
            reached_target=reached,
            energy_j=energy_j,
            time_s=time_s,
            power_limit_w=checked_limit(power_limit_w),
            num_evaluations=num_evaluations,
        )

    def view(self, runs: Iterable[Run], power_limit_w: float | None) -> View:
        """What a policy may look at of `runs` (finished ones first, in order), for a run under `power_limit_w`.

        Runs of sizes that are no longer offered are left out.
        """
        arms, rule = {size: arm for arm, size in enumerate(self.batch_sizes)}, self.cost
        known = [run for run in runs if run.batch_size in arms]
        resting = frozenset(arms[size] for size in _resting(known))
        outcomes = [
            Outcome(
                arm=arms[run.batch_size],
                cost=cost,
                reached=run.reached_target,
                power_limit_w=run.power_limit_w,
                num_evaluations=run.num_evaluations,
            )
            for run in known
            if (cost := rule.of(run)) is not None
        ]
        return View(
            batch_sizes=self.batch_sizes,
            default=arms[self.default],
            outcomes=outcomes,
            window=self.window,
            running=resting.union(arms[run.batch_size] for run in known if run.state == "running"),
            resting=resting,
            power_limit_w=power_limit_w,
        )

    def choose(self, view: View, rng: np.random.Generator) -> int:
        """Index of the arm to run next: the policy's, and where that rests, its choice among the others."""
        suggest, awake = POLICIES[self.policy].suggest, view.awake()
        arm: int = suggest(view, rng)
        return suggest(awake, rng) if arm in view.resting and awake.outcomes else arm


def _resting(runs: Iterable[Run]) -> list[int]:
    """Batch sizes of which more runs in a row died than had ever reported: a rest as long as that row (in suggestions).

    Whoever ended them (an error, the system for want of memory, Ctrl-C), a size that cannot run shall not be all that a
    job tries; one that often could is not given up for a few bad nights. Each row that goes on doubles its rest.
    """
    reported, died = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    newest = 0
    for run in runs:
        newest = max(newest, run.run_id)
        if run.state in ("done", "dead"):
            (reported if run.state == "done" else died)[run.batch_size].append(run.run_id)

    def rests(size: int) -> bool:
        row = [number for number in died[size] if number > max(reported[size], default=0)]
        return len(row) > len(reported[size]) and newest - max(row) <= max(row) - min(row)

    return [size for size in list(died) if rests(size)]


def stored_settings(store: RunStore) -> JobSettings:
    """The settings that the store's latest optimizer was made with. StoreError where it holds none, or damaged ones."""
    with store.reading() as connection:
        kept = read_settings(connection)
    kept.pop("emulated", None)
    if not kept:
        raise StoreError(
            f"{store.path} holds no settings yet: open it once with BatchSizeOptimizer(..., store=...), or train with "
            "RecurringJob(..., store=...)"
        )
    try:
        return JobSettings.parse(**kept)
    except (TypeError, RecurringError) as error:  # TypeError: a name is missing, or one too many
        raise StoreError(f"the settings in {store.path} are damaged ({error}): repair or move the file") from error
