"""The batch size of a job that runs again and again: suggest, watch, observe (floor 1)."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Self

import numpy as np

from energy_lightning.recurring import kind, rows
from energy_lightning.recurring.errors import (
    RecurringError,
    TargetNeverReachedError,
    TargetNeverReachedWarning,
    truth,
)
from energy_lightning.recurring.open_runs import OpenRuns
from energy_lightning.recurring.runs import Belief, CostRule, Run, View
from energy_lightning.recurring.settings import POLICIES, JobSettings, checked_limit, seed_and_clock, stored_settings
from energy_lightning.recurring.store import RunStore


class BatchSizeOptimizer:
    """Chooses the batch size of each recurrence from what earlier ones cost.

        optimizer = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=250, store="job.sqlite")
        batch_size = optimizer.suggest()
        ...  # train; now and then: if optimizer.should_stop(energy_j=..., time_s=...): stop, target not reached
        optimizer.observe(batch_size, energy_j=..., time_s=..., reached_target=True, num_evaluations=...)

    Energy is over all GPUs of the job, in J, and `max_power_w` their power limits together; cost = eta x energy +
    (1 - eta) x max_power_w x time. A run is to stop past `beta` x the least cost so far. `window`: only the last so
    many finished runs count, for a job that drifts; better five times as many as there are sizes, or what exploring
    teaches is soon forgotten. `lease_s`: a suggestion counts as running until it is observed, abandoned or withdrawn;
    one that nothing was heard of for longer (no should_stop), as of a script that ended early, is taken for dead.
    `policy`: "learned", or "published" as in You et al., NSDI 2023. Any number of processes may share `store`; one
    optimizer serves one process and its threads. It pickles, with its suggestions: report each of them once. Raises
    RecurringError on wrong settings, StoreError on a foreign or damaged store.
    """

    def __init__(
        self,
        batch_sizes: Sequence[int],
        *,
        default: int,
        max_power_w: float,
        store: str | Path | RunStore,
        eta: float = 0.5,
        beta: float = 2.0,
        seed: int = 0,
        policy: str = "learned",
        window: int | None = None,
        lease_s: float = 6 * 3600.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = JobSettings.parse(
            batch_sizes,
            default=default,
            max_power_w=max_power_w,
            eta=eta,
            beta=beta,
            policy=policy,
            window=window,
            lease_s=lease_s,
        )
        self._seed, self._clock = seed_and_clock(seed, clock)
        self._open = OpenRuns()
        self._store = store if isinstance(store, RunStore) else RunStore(store)
        self._keep_settings()

    @classmethod
    def of_store(cls, store: str | Path, **options: Any) -> Self:
        """The optimizer of a store that is there, as it was last set; nothing is written before the first change.

        `options`: seed and clock, which no store keeps. StoreError where it holds no settings, or damaged ones.
        """
        if other := sorted(set(options) - {"seed", "clock"}):
            raise RecurringError(
                f"of_store takes {other[0]} from the store: to change it give it to {cls.__name__}(..., store=...), "
                "and to of_store only seed and clock"
            )
        kept = RunStore(store, create=False)
        return cls(**asdict(stored_settings(kept)), store=kept, **options)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The arms, ascending."""
        return self.settings.batch_sizes

    @property
    def default(self) -> int:
        """The batch size that the job has run with so far."""
        return self.settings.default

    @property
    def _policy(self) -> Any:
        return POLICIES[self.settings.policy]

    @property
    def cost(self) -> CostRule:
        """What a run costs."""
        return self.settings.cost

    def use_max_power(self, max_power_w: float) -> None:
        """Weigh time with this power limit (of all GPUs together) from now on, also in costs of earlier runs."""
        self.settings = self.settings.with_max_power(max_power_w)
        self._keep_settings()

    def _keep_settings(self) -> None:
        settings = {**asdict(self.settings), "batch_sizes": list(self.batch_sizes)}
        with self._store.reading() as connection:
            known = rows.read_settings(connection)
        if any(name not in known or known[name] != value for name, value in settings.items()):
            with self._store.changing() as connection:
                rows.write_settings(connection, settings)

    def suggest(self, *, power_limit_w: float | None = None) -> int:
        """The batch size of the next run, which holds a lease from now on.

        Runs under other power limits than `power_limit_w` count as a prior. Where every size was tried and none reached
        the target, warns TargetNeverReachedWarning and keeps the default.
        """
        power_limit_w = checked_limit(power_limit_w)
        with self._store.changing() as connection:
            view, num_runs = self._view(connection, power_limit_w), rows.count(connection)
            lost = view.never_reached()
            rng = np.random.default_rng([self._seed, num_runs])
            arm = view.default if lost else self.settings.choose(view, rng)
            batch_size = self.batch_sizes[arm]
            run_id = rows.start(connection, batch_size, self._lease_end_s(), power_limit_w)
        self._open.add(run_id, batch_size)
        if lost:
            warnings.warn(self._never_reached(), TargetNeverReachedWarning, stacklevel=2)
        return batch_size

    def should_stop(self, *, energy_j: float | None, time_s: float) -> bool:
        """Whether a run that has spent this much is past beta x the least cost of a run that reached the target.

        Also renews the leases of this process's runs. Never True while no run has reached the target. `energy_j` may be
        None (not measured) where eta is 0.
        """
        spent = self.cost(0.0 if energy_j is None and self.cost.eta == 0.0 else energy_j, time_s)  # type: ignore[arg-type]
        with self._open.held, self._store.changing() as connection:
            for run_id in self._open:
                rows.renew(connection, run_id, self._lease_end_s())
            least = self._least_cost(connection)
        return least is not None and spent > self.settings.beta * least

    def observe(
        self,
        batch_size: int,
        *,
        energy_j: float | None,
        time_s: float,
        reached_target: bool,
        power_limit_w: float | None = None,
        num_evaluations: int | None = None,
        emulated: bool = False,
    ) -> None:
        """Report a run: energy in J over all GPUs and time in s, whether it ended or was stopped.

        `energy_j` may be None, not measured, where eta is 0, and of a run that missed the target (out of memory, say).
        `num_evaluations`: how often the target was looked at during the run (validations, or epochs where there are
        none; those completed, where it was stopped). It tells the policy how finely a run's length is known; without it
        costs are compared as they are.
        Completes this process's oldest open suggestion of that size; without one, adds a run that nobody suggested.
        Raises RecurringError where the size is no arm, the figures cannot be, or the store's are of the other kind
        (measured or `emulated`).
        """
        report = self.settings.checked_report(
            batch_size=batch_size,
            energy_j=energy_j,
            time_s=time_s,
            reached_target=reached_target,
            power_limit_w=power_limit_w,
            num_evaluations=num_evaluations,
        )
        emulated = truth("emulated", emulated)
        with self._open.held:
            run_id = self.open_run(report.batch_size)
            with self._store.changing() as connection:
                kind.keep(connection, emulated, self._store.path)
                if run_id is None:
                    run_id = rows.start(connection, report.batch_size, 0.0, report.power_limit_w)
                rows.finish(connection, replace(report, run_id=run_id))
            self._open.remove(run_id)

    @property
    def emulated(self) -> bool:
        """Whether the store's runs are emulated ones."""
        with self._store.reading() as connection:
            return bool(rows.read_settings(connection).get("emulated", False))

    def check_kind(self, emulated: bool) -> None:
        """Raise RecurringError where a report of that kind would be refused."""
        with self._store.reading() as connection:
            kind.check(connection, emulated, self._store.path)

    def abandon(self, batch_size: int) -> None:
        """This process's oldest open suggestion of that size will not report: it says nothing of the size."""
        self._end(batch_size, rows.close)

    def withdraw(self, batch_size: int) -> None:
        """This process's oldest open suggestion of that size was not followed: the store forgets it."""
        self._end(batch_size, rows.forget)

    def _end(self, batch_size: int, how: Callable[[Connection, int], None]) -> None:
        with self._open.held:
            run_id = self.open_run(self.settings.checked_size(batch_size))
            if run_id is not None:
                with self._store.changing() as connection:
                    how(connection, run_id)
                self._open.remove(run_id)

    def adopt(self, run_id: int | None, batch_size: int) -> None:
        """Go on with a run that was suggested earlier, e.g. to a process that was stopped and resumes.

        A report that it ended without its target is taken back, with its evaluations: the next one counts all of them.
        Where the store does not hold it any more, or it has reached its target, a new run of that size is open instead.
        """
        batch_size, lease_end_s = self.settings.checked_size(batch_size), self._lease_end_s()
        with self._open.held, self._store.changing() as connection:
            known = [run for run in self._runs(connection) if (run.run_id, run.batch_size) == (run_id, batch_size)]
            if known and not known[0].reached_target:
                rows.reopen(connection, known[0].run_id, lease_end_s)
                self._open.add(known[0].run_id, batch_size)
            else:
                self._open.add(rows.start(connection, batch_size, lease_end_s, None), batch_size)

    def open_run(self, batch_size: int) -> int | None:
        """Number in the store of this process's oldest open suggestion of that size; None: there is none."""
        return self._open.oldest(batch_size)

    def best(self, *, power_limit_w: float | None = None) -> int:
        """The cheapest, as believed, that reached the target; the default before. TargetNeverReachedError if none.

        Where runs had several power limits, give the one that is meant: which size is cheapest may depend on it.
        Without, it is concluded from what sizes cost against each other under each limit, for one that no run had.
        """
        with self._store.reading() as connection:
            view = self._view(connection, checked_limit(power_limit_w))
        if view.never_reached():
            raise TargetNeverReachedError(self._never_reached())
        reached = {outcome.arm for outcome in view.recent().outcomes if outcome.reached}
        mean, _ = self._policy.means(view)
        return self.batch_sizes[min(sorted(reached), key=lambda arm: mean[arm], default=view.default)]

    def beliefs(self, *, power_limit_w: float | None = None) -> list[Belief]:
        """One row a batch size, smallest first; costs from the window, counts from all runs."""
        with self._store.reading() as connection:
            runs = self._comparable(connection)
        view = self.settings.view(runs, checked_limit(power_limit_w))
        mean, error = self._policy.means(view)
        running = Counter(run.batch_size for run in runs if run.state == "running")
        return [
            Belief(
                batch_size=size,
                cost_j=float(mean[arm]),
                cost_sd_j=float(error[arm]),
                num_runs=len(view.of(arm)),
                num_reached=sum(outcome.reached for outcome in view.of(arm)),
                num_running=running[size],
            )
            for arm, size in enumerate(self.batch_sizes)
        ]

    def runs(self) -> list[Run]:
        """Every run in the store, finished ones first, in the order they reported."""
        with self._store.reading() as connection:
            return self._runs(connection)

    def _runs(self, connection: Connection) -> list[Run]:
        return rows.read(connection, self._clock(), self.settings.lease_s)

    def _lease_end_s(self) -> float:
        return self._clock() + self.settings.lease_s

    def _comparable(self, connection: Connection) -> list[Run]:
        """The runs as the policy is to compare them."""
        return self._runs(connection)

    def _least_cost(self, connection: Connection) -> float | None:
        """As View.least_cost, without reading all runs: jobs ask every few seconds."""
        return rows.least_cost(connection, self.batch_sizes, *self.cost.weights, window=self.settings.window)

    def _view(self, connection: Connection, power_limit_w: float | None) -> View:
        return self.settings.view(self._comparable(connection), power_limit_w)

    def _never_reached(self) -> str:
        return (
            f"none of the batch sizes {list(self.batch_sizes)} has reached the target in {self._store.path}; the "
            f"default {self.default} is kept. Ease the target, train longer, or offer other sizes"
        )
