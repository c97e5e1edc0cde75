"""FrontierSearch: which configurations to measure next over all partitions of a job, and what they add up to."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from energy_lightning.callbacks.composition import IterationCosts, Outcome, compose_outcome
from energy_lightning.callbacks.priors import prior_of
from energy_lightning.callbacks.spaces import PartitionTask
from energy_lightning.emulation import GPU
from energy_lightning.measure import MeasurementStore, PartitionConfig, Request
from energy_lightning.search import BatchSizes, Finding, MultiPassOptimizer
from energy_lightning.types import Budget, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How each partition is searched; see MultiPassOptimizer for the meaning of each.

    Attributes:
        passes: "default", "published" or "random".
        seed: equal seeds give equal searches; every partition gets a stream of its own.
        sizes: batch sizes and early stop; None takes those of the passes.
        prior_gpu: model of the real GPU that is measured, whose expectations the search starts from, or None.
    """

    passes: str = "default"
    seed: int = 0
    sizes: BatchSizes | None = None
    prior_gpu: GPU | None = None


# Root mean square deviation of measurements from the surrogates, relative. Exact measurements are met to some 0.05%,
# windows with 1.5% of noise to about as much: what lies between is called noise from here on.
_LEAST_NOISE = 0.005


def _noisy(measured: Sequence[float], expected: NDArray[np.float64]) -> bool:
    """Whether measurements scatter about what is `expected` of them, (n,) each, beyond the surrogates' own error."""
    return bool(np.sqrt(np.mean(np.log(np.asarray(measured) / expected) ** 2)) >= _LEAST_NOISE)


class FrontierSearch:
    """Ask/tell over all partitions at once.

        while requests := search.ask(limit):
            for partition, config in requests:
                search.tell(config, measure(partition, config))
        search.outcome(budget)

    Order: the highest frequency of every partition, so that plain execution is known first; all other fixed
    configurations; then one batch of each search in turn; last, one measurement of each searched partition at every
    frequency that its search left out (an iteration needs all its partitions at one frequency).
    What the store knows is never asked for.

    Args:
        tasks: see `partition_tasks`.
        store: receives every measurement, and says what is known.
        costs: what turns partitions into iterations.
        settings: how to search.
    """

    def __init__(
        self,
        tasks: Sequence[PartitionTask],
        store: MeasurementStore,
        costs: IterationCosts,
        settings: SearchSettings | None = None,
    ) -> None:
        self._tasks = {task.name: task for task in tasks}
        self.store, self._costs, self._settings = store, costs, settings or SearchSettings()
        self._optimizers = {
            task.name: self._optimizer(task, number) for number, task in enumerate(tasks) if task.space is not None
        }
        ordered = sorted((c for task in tasks for c in task.fixed), key=lambda config: -config.frequency_mhz)
        self._queue = deque(config for config in ordered if store.known(config) is None)
        self._turns = deque(self._optimizers)
        self._completed = False
        self.num_measured = 0
        self._temperatures_c: list[float] = []
        self.history: list[dict[str, Any]] = []

    def ask(self, limit: int) -> list[Request]:
        """Up to `limit` configurations nobody has measured yet; [] when the search is over."""
        while not self._queue and not self._completed:
            self._queue.extend(self._next_batch())
        count = min(limit, len(self._queue))
        configs = [self._queue.popleft() for _ in range(count)]
        return [(self._tasks[config.partition].partition, config) for config in configs]

    def tell(self, config: PartitionConfig, measurement: Measurement) -> None:
        """Keep a measurement on disk and let the search learn from it. OSError when it cannot be written."""
        self.num_measured += 1
        if measurement.temperature_c is not None:
            self._temperatures_c.append(measurement.temperature_c)
        self._learn(config, measurement)
        self.store.add(config, measurement)

    @property
    def done(self) -> bool:
        """Whether nothing is left to ask for."""
        return self._completed and not self._queue

    @property
    def num_remaining(self) -> int:
        """At most this many measurements are still to come (for progress bars)."""
        searches = sum(0 if o.done else max(0, o.most - o.num_told) for o in self._optimizers.values())
        queued = sum(config.partition not in self._optimizers for config in self._queue)
        return max(searches + queued, len(self._queue))

    def findings(self) -> dict[str, list[Finding]]:
        """Partition -> what its search measured and which pass proposed it, in the order of measuring."""
        return {name: optimizer.history() for name, optimizer in self._optimizers.items() if optimizer.num_told}

    def conditions(self) -> str:
        """How warm the GPU was and how far repeats of a configuration lie apart, for people; "" where nothing is known.

        The spread is the median over repeated configurations of the standard deviation relative to the mean.
        """
        texts = []
        if self._temperatures_c:
            texts.append(f"at {min(self._temperatures_c):.0f} to {max(self._temperatures_c):.0f} C")
        repeated = [known for known in self.store.measurements().values() if known.valid and known.num_repeats > 1]
        if repeated:
            time = statistics.median(known.time_std_s / known.time_s for known in repeated)
            text = f"repeats (of {len(repeated)}) spread by {time:.1%} in time"
            energies = [known.energy_std_j / known.energy_j for known in repeated if known.energy_j]
            texts.append(text + (f", {statistics.median(energies):.1%} in energy" if energies else ""))
        return ", ".join(texts)

    def outcome(self, budget: Budget) -> Outcome:
        """Frontiers and choice from all measurements so far; errors as in `compose_outcome`.

        With the default passes, searched partitions whose windows are noisy enter by their smoothed values (what the
        surrogates say of the configurations measured): among hundreds of such windows the best looking ones were mostly
        lucky.
        """
        tasks = list(self._tasks.values())
        return compose_outcome(tasks, {**self.store.measurements(), **self._smoothed()}, self._costs, budget)

    def _smoothed(self) -> dict[PartitionConfig, Measurement]:
        """Valid measurements that the default passes learnt from, with the surrogates' time and energy."""
        smoothed: dict[PartitionConfig, Measurement] = {}
        if self._settings.passes != "default":
            return smoothed
        for name, optimizer in self._optimizers.items():
            if optimizer.num_told == 0:
                continue
            task, predicted, measured = self._tasks[name], optimizer.predict(), optimizer.measured()
            candidates = [cast(dict[str, Any], point.choice) for point in measured]
            rows = [optimizer.space.index(candidate) for candidate in candidates]
            time_s, energy_j = predicted.time_s[rows], predicted.energy_j[rows]
            if not _noisy([p.time_s for p in measured], time_s) and not _noisy(
                [p.energy_j for p in measured], energy_j
            ):
                continue
            for candidate, t, e in zip(candidates, time_s.tolist(), energy_j.tolist(), strict=True):
                config = task.config(candidate)
                known = self.store.known(config)
                if known is not None and known.valid:
                    smoothed[config] = replace(known, time_s=t, energy_j=e)
        return smoothed

    def _optimizer(self, task: PartitionTask, number: int) -> MultiPassOptimizer:
        assert task.space is not None
        settings = self._settings
        sizes = settings.sizes
        if sizes is None and settings.passes == "published":
            sizes = BatchSizes.published(len(task.partition.operators))
        optimizer = MultiPassOptimizer(
            task.space,
            static_power_w=self._costs.static_power_w,
            seed=settings.seed + number,
            passes=settings.passes,
            prior=prior_of(task, settings.prior_gpu),
            sizes=sizes,
        )
        members = {tuple(task.space[i].items()) for i in range(len(task.space))}
        for config, known in self.store.measurements(task.name).items():
            if tuple(task.candidate(config).items()) in members:
                _tell(optimizer, task.candidate(config), known)
        return optimizer

    def _next_batch(self) -> list[PartitionConfig]:
        """What the next partition in turn wants measured, [] when it is satisfied by what is known."""
        while self._turns:
            name = self._turns.popleft()
            task, optimizer = self._tasks[name], self._optimizers[name]
            candidates = optimizer.ask()
            if not candidates:
                continue
            self._turns.append(name)
            self._note(name, optimizer, len(candidates))
            return [task.config(candidate) for candidate in candidates]
        self._completed = True
        return [config for name in self._optimizers for config in self._left_out(name)]

    def _left_out(self, name: str) -> list[PartitionConfig]:
        """The candidate of least predicted energy at each frequency where the search measured nothing usable."""
        task, optimizer = self._tasks[name], self._optimizers[name]
        if task.space is None or optimizer.num_told == 0:
            return []
        clocks_mhz = np.array(task.space.column("frequency_mhz"))
        known = self.store.measurements(name)
        missing = set(clocks_mhz.tolist()) - {config.frequency_mhz for config in known}
        if not missing:
            return []
        energy_j = np.asarray(optimizer.predict().energy_j)
        best = [min(np.flatnonzero(clocks_mhz == f), key=lambda i: float(energy_j[i])) for f in sorted(missing)]
        return [task.config(task.space[int(i)]) for i in best]

    def _learn(self, config: PartitionConfig, measurement: Measurement) -> None:
        task, optimizer = self._tasks[config.partition], self._optimizers.get(config.partition)
        if optimizer is not None and config.schedule != task.default.schedule:
            _tell(optimizer, task.candidate(config), measurement)

    def _note(self, name: str, optimizer: MultiPassOptimizer, num_asked: int) -> None:
        measured = optimizer.measured()
        self.history.append(
            {
                "partition": name,
                "num_measured": len(measured),
                "num_asked": num_asked,
                "least_time_s": min((point.time_s for point in measured), default=None),
                "least_energy_j": min((point.energy_j for point in measured), default=None),
            }
        )


def _tell(optimizer: MultiPassOptimizer, candidate: Mapping[str, Any], known: Measurement) -> None:
    reason = known.invalid_reason or (None if known.energy_j is not None else "no energy reading")
    if reason is not None or known.energy_j is None:
        optimizer.tell(candidate, invalid_reason=reason)
    else:
        optimizer.tell(candidate, time_s=known.time_s, energy_j=known.energy_j, num_repeats=known.num_repeats)
