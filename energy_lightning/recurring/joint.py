"""Batch size and power limit of a recurring job, chosen together (floor 1).

As in Zeus (You et al., NSDI 2023): the limit that costs least per unit of work does not depend on how much work a run
needs, so each batch size has a best limit of its own, found by one sweep during its first run, and an arm costs what a
run costs under it. Runs that were made under another limit of the profile are converted to the best one with the
profile's ratios, so a first run that swept, or ran at the default limit, counts as well. Not modelled: a limit that
changes how many epochs are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from sqlite3 import Connection

from energy_lightning.recurring import rows
from energy_lightning.recurring.optimizer import BatchSizeOptimizer
from energy_lightning.recurring.power import PowerLimitSample, PowerObjective, choose_power_limit, merged_profile
from energy_lightning.recurring.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the next run takes. `power_limit_w` of one GPU; None: not known for this size yet, sweep during the run."""

    batch_size: int
    power_limit_w: float | None


class JointOptimizer(BatchSizeOptimizer):
    """BatchSizeOptimizer whose batch sizes each run under their own best power limit.

        choice = optimizer.suggest_both()
        ...  # train with choice.batch_size; with choice.power_limit_w None sweep limits meanwhile, then
        optimizer.profile(choice.batch_size, [(limit_w, time_s, energy_j), ...])
        optimizer.observe(choice.batch_size, energy_j=..., time_s=..., reached_target=True, power_limit_w=...)

    A profile's rows are the same work under each limit, energy over all GPUs. `power_limit_w` of `observe` is the limit
    that most of the run had; leave it out where that is the best one. Runs under limits that the profile does not tell
    are compared as they are.
    """

    def suggest_both(self) -> Choice:
        """Batch size and limit of the next run, which holds a lease from now on."""
        batch_size = self.suggest()
        return Choice(batch_size=batch_size, power_limit_w=self.limit_of(batch_size))

    def profile(self, batch_size: int, samples: Iterable[PowerLimitSample | tuple[float, float, float]]) -> float:
        """Keep a sweep of one batch size, in place of an earlier one; its best limit in W.

        Raises RecurringError on an empty sweep, impossible values, or a size that is no arm.
        """
        batch_size, kept = self.settings.checked_size(batch_size), merged_profile(samples)
        best = self._best(kept)
        with self._store.changing() as connection:
            rows.write_profile(connection, batch_size, [(s.power_limit_w, s.time_s, s.energy_j) for s in kept])
        return best.power_limit_w

    def profiles(self) -> dict[int, list[PowerLimitSample]]:
        """Batch size -> its sweep, lowest limit first; sizes without one are left out."""
        with self._store.reading() as connection:
            return self._profiles(connection)

    def limit_of(self, batch_size: int) -> float | None:
        """The best limit in W of a batch size; None before it was swept."""
        sweep = self.profiles().get(batch_size)
        return None if sweep is None else self._best(sweep).power_limit_w

    def _best(self, sweep: list[PowerLimitSample]) -> PowerLimitSample:
        # the cost of a run is the objective: ties need no higher limit, a run costs the same
        goal = PowerObjective(goal="cost", eta=self.cost.eta, max_power_w=self.cost.max_power_w)
        return choose_power_limit(sweep, goal, noise=0.0)

    def _profiles(self, connection: Connection) -> dict[int, list[PowerLimitSample]]:
        read = {size: rows.read_profile(connection, size) for size in self.batch_sizes}
        return {size: merged_profile(sweep) for size, sweep in read.items() if sweep}

    def _least_cost(self, connection: Connection) -> float | None:
        converted = bool(self._profiles(connection))
        return self._view(connection, None).least_cost() if converted else super()._least_cost(connection)

    def _comparable(self, connection: Connection) -> list[Run]:
        """Every run as if it had been made under its batch size's best limit, where the profile tells."""
        profiles = self._profiles(connection)

        def converted(run: Run) -> Run:
            sweep = profiles.get(run.batch_size, [])
            made = next((one for one in sweep if one.power_limit_w == run.power_limit_w), None)
            if made is None:
                return replace(run, power_limit_w=None)
            best = self._best(sweep)
            energy_j = None if run.energy_j is None else run.energy_j * best.energy_j / made.energy_j
            time_s = None if run.time_s is None else run.time_s * best.time_s / made.time_s
            return replace(run, energy_j=energy_j, time_s=time_s, power_limit_w=None)

        return [converted(run) for run in self._runs(connection)]
