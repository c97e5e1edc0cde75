"""FrontierOptimizer: decides what is measured, composes the frontier, chooses the plan, writes plan.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from energy_lightning.callbacks.composition import (
    KAREUS,
    MAX_FREQUENCY,
    IterationCosts,
    Outcome,
    outcome_from_dict,
    outcome_to_dict,
    plan_of,
)
from energy_lightning.callbacks.frontier_search import FrontierSearch, SearchSettings
from energy_lightning.callbacks.job import JobStrategy, clock_is_controlled, job_of, on_rank_zero, say
from energy_lightning.callbacks.priors import namesake
from energy_lightning.callbacks.spaces import partition_tasks
from energy_lightning.device import Device, device_facts, has_emulated_figures, measure_switch_time_s
from energy_lightning.frontier import FrontierPoint
from energy_lightning.measure import AppendLog, MeasurementStore, Request, run_hash, save_plan
from energy_lightning.search import BatchSizes, Finding
from energy_lightning.types import Budget, BudgetError, Measurement, Plan, StrategyError

MEASUREMENTS_FILE = "measurements.jsonl"
PLAN_FILE = "plan.yaml"


class FrontierOptimizerMixin:
    """Searches every partition of the job, composes iterations, and chooses the plan that serves the budget.

    PartitionProfiler asks it what to measure and reports the results; FrequencyController applies `plan`. Rank 0
    decides, all ranks get the decision. Measurements and the plan lie in the strategy's output_dir.

    Args:
        budget: as `Budget.parse` takes it; None: the strategy's.
        passes: how to search: "default", "published" or "random".
        seed: equal seeds give equal searches.
        frequencies_mhz: clocks to measure; None: about 18 in the useful range of the GPU.
        sizes: batch sizes and early stop (BatchSizes or its arguments); None: those of the passes.
        switch_time_s: time of one change of the clock, charged to plans that change it; None: measured when profiling
            begins, on a real GPU whose clock may be set; else the device's.

    Raises (during training, on all ranks):
        BudgetError: the search is over and no plan meets the budget; names what is reachable.
        MeasurementError: measurements.jsonl is not ours.
    """

    def __init__(
        self,
        *,
        budget: Budget | str | Mapping[str, Any] | None = None,
        passes: str = "default",
        seed: int = 0,
        frequencies_mhz: Sequence[int] | None = None,
        sizes: BatchSizes | Mapping[str, Any] | None = None,
        switch_time_s: float | None = None,
    ) -> None:
        super().__init__()
        self._budget = None if budget is None else Budget.parse(budget)
        sizes = BatchSizes(**sizes) if isinstance(sizes, Mapping) else sizes
        self._settings = SearchSettings(passes=passes, seed=seed, sizes=sizes)
        self._frequencies_mhz, self._switch_time_s = frequencies_mhz, switch_time_s
        self._search: FrontierSearch | None = None  # on rank 0, while profiling
        self._restored: Mapping[str, Any] | None = None
        self.clock_controlled = True
        """Whether the clock of every rank's GPU may be set; else all is measured, and runs, at the running clock."""
        self._made_for: dict[str, Any] | None = None  # what `outcome` holds for, None while it may still get better
        self.outcome: Outcome | None = None
        self.history: list[dict[str, Any]] = []
        self.findings: dict[str, list[Finding]] = {}  # on rank 0: partition -> what its search measured, in order

    @property
    def plan(self) -> Plan | None:
        """The chosen plan, None before the decision."""
        return None if self.outcome is None else self.outcome.plan

    @property
    def frontier(self) -> list[FrontierPoint]:
        """Non-dominated iterations by rising time (per GPU; each choice is a Plan), [] before the decision."""
        return [] if self.outcome is None else list(self.outcome.frontiers[KAREUS])

    @property
    def references(self) -> dict[str, FrontierPoint]:
        """Label -> plan to compare with: "max frequency", "frequency only", "nanobatching only", "kareus"."""
        return {} if self.outcome is None else dict(self.outcome.references)

    @property
    def num_remaining(self) -> int:
        """On rank 0: at most this many measurements are still to come."""
        return 0 if self._search is None else self._search.num_remaining

    @property
    def conditions(self) -> str:
        """On rank 0, while profiling: how warm the GPU was and how far repeats lie apart, "" where not known."""
        return "" if self._search is None else self._search.conditions()

    # Lightning's hooks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse a foreign measurements file before any work is lost."""
        job = job_of(trainer)
        if job is None:
            raise StrategyError(
                f"FrontierOptimizer needs the strategy 'kareus', got {type(trainer.strategy).__name__}; "
                "remove it from the callbacks, or use Trainer(strategy='kareus')"
            )
        self._restored, self.outcome = self.state_dict() or None, None  # a fit with another model may follow
        log = AppendLog(job.output_dir / MEASUREMENTS_FILE, what="the measurements in it")
        on_rank_zero(trainer, lambda: len(log.read()))

    def state_dict(self) -> dict[str, Any]:
        """The decision and the search's history as plain values; nothing of a decision made early."""
        if self.outcome is None or self._made_for is None:
            return dict(self._restored or {})
        return {"made_for": self._made_for, "outcome": outcome_to_dict(self.outcome), "history": self.history}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Kept until the job's shape is known: a decision for another GPU, shape, version or budget is not reused."""
        self._restored = dict(state_dict) or None

    # PartitionProfiler's side; each of these is called on every rank

    def recall(self, trainer: Any, job: JobStrategy) -> bool:
        """The job's shape is known: take up an earlier decision if it was made for this job, GPU and budget."""
        self.clock_controlled = clock_is_controlled(trainer, job)
        restored, self._restored = self._restored, None
        if restored is None or on_rank_zero(trainer, lambda: self._wanted(job)) != restored.get("made_for"):
            return False
        self.outcome, self.history = outcome_from_dict(restored["outcome"]), list(restored["history"])
        self._made_for = restored["made_for"]
        return True

    def begin(self, trainer: Any, job: JobStrategy) -> None:
        """Open the store and prepare the search; again where the permission to set clocks was lost meanwhile."""
        self.clock_controlled = clock_is_controlled(trainer, job)
        note = on_rank_zero(trainer, lambda: self._open_search(job))
        if note:
            say(trainer, note)

    def requests(self, trainer: Any, limit: Callable[[int], int]) -> list[Request] | None:
        """What all ranks are to measure now; [] when the search is over, None when it is enough for this step.

        `limit` is asked on rank 0: from the measurements still to come to how many of them to make now.
        """
        return on_rank_zero(trainer, lambda: self._ask(limit))

    def report(self, trainer: Any, requests: Sequence[Request], measurements: Sequence[Measurement]) -> None:
        """The results of `requests`, merged over ranks."""
        note = on_rank_zero(trainer, lambda: self._tell(requests, measurements))
        if note:
            say(trainer, note)

    def decide(self, trainer: Any, job: JobStrategy, *, early: bool = False) -> None:
        """Choose from all measurements so far and write plan.yaml.

        `early`: the search is not over; a budget that nothing known meets yet then takes the fastest plan known.
        """
        budget = self._budget or job.budget
        self.outcome, self.history, notes = on_rank_zero(trainer, lambda: self._decide(job, budget, early))
        self._search, self._made_for = None, None if early else on_rank_zero(trainer, lambda: self._wanted(job))
        for note in notes:
            say(trainer, note)

    def _wanted(self, job: JobStrategy) -> dict[str, Any]:
        return {"run": run_hash(self._run_key(job)), "budget": str(self._budget or job.budget)}

    def _run_key(self, job: JobStrategy) -> dict[str, Any]:
        """The job's, less clocks where another rank's cannot be set."""
        return {**job.run_key(), **({} if self.clock_controlled else {"clock": "running"})}

    # on rank 0

    def _open_search(self, job: JobStrategy) -> str:
        """Returns a line for the user, or ""."""
        device, workload = job.device, job.workload
        assert device is not None  # the profiler has checked both
        assert workload is not None
        path = job.output_dir / MEASUREMENTS_FILE
        store = MeasurementStore(path, self._run_key(job), source=device.energy_source, mode=lambda: device.mode)
        note = self._measure_switch(device)
        costs = IterationCosts(
            num_microbatches=workload.num_microbatches,
            static_power_w=device.static_power_w,
            switch_time_s=device.switch_time_s if self._switch_time_s is None else self._switch_time_s,
            emulated=has_emulated_figures(device),
            clock_locked=self.clock_controlled,
        )
        tasks = partition_tasks(workload, device, frequencies_mhz=self._frequencies_mhz, locked=self.clock_controlled)
        settings = replace(self._settings, prior_gpu=namesake(device))
        self._search = FrontierSearch(tasks, store, costs, settings)
        num_known = len(store.measurements())
        known = f"{num_known} configurations were measured before, they are taken from {path}" if num_known else ""
        return "; ".join(filter(None, (known, note)))

    def _measure_switch(self, device: Device) -> str:
        """Have the device know how long a change of its clock takes; the GPU is warm now. Returns a line, or ""."""
        if self._switch_time_s is not None or not self.clock_controlled:
            return ""
        measured_s = measure_switch_time_s(device)
        if measured_s is None:
            return ""
        device.switch_time_s = measured_s
        return f"a change of the clock takes {1e3 * measured_s:.1f} ms on {device.name}"

    def _ask(self, limit: Callable[[int], int]) -> list[Request] | None:
        if self._search is None:
            return []
        count = limit(self._search.num_remaining)
        if count > 0:
            return self._search.ask(count)
        return [] if self._search.done else None

    def _tell(self, requests: Sequence[Request], measurements: Sequence[Measurement]) -> str:
        """Returns a line for the user, or ""."""
        assert self._search is not None
        note = ""
        for (_, config), measurement in zip(requests, measurements, strict=True):
            try:
                self._search.tell(config, measurement)
            except OSError as error:
                note = f"measurements cannot be written any more ({error}); they are kept in memory only"
                self._search.store.writable = False
        return note

    def _decide(self, job: JobStrategy, budget: Budget, early: bool) -> tuple[Outcome, list[dict[str, Any]], list[str]]:
        assert self._search is not None
        notes: list[str] = []
        try:
            outcome = self._search.outcome(budget)
        except BudgetError as error:
            if not early:
                raise
            notes.append(f"so far {error}; the fastest plan known runs instead")
            outcome = self._search.outcome(Budget("max_throughput"))
        references = {label: plan_of(point) for label, point in outcome.references.items()}
        path = job.output_dir / PLAN_FILE
        permitted = None if job.device is None else device_facts(job.device)
        try:
            save_plan(
                path,
                outcome.plan,
                run=self._run_key(job),
                budget=budget,
                references=references,
                device=permitted,
                collectives=getattr(job, "collectives_report", list)(),  # strategies of others need not have one
            )
        except OSError as error:
            notes.append(f"the plan cannot be written to {path} ({error}); it runs all the same")
        self.findings = self._search.findings()
        notes.append(f"{summary_line(outcome, budget)} ({path})")
        return outcome, self._search.history, notes


def summary_line(outcome: Outcome, budget: Budget) -> str:
    """One line: what was chosen, against plain execution at the highest frequency."""
    base, chosen, plan = outcome.references[MAX_FREQUENCY], outcome.chosen, outcome.plan
    label = "EMULATED, " if plan.emulated else ""
    clocks, at = f"{plan.forward.frequency_mhz}/{plan.backward.frequency_mhz} MHz", "maximum frequency"
    if plan.forward.frequency_mhz is None:
        clocks = at = "the running clock"
    saves_nothing = chosen.energy_j > 0.999 * base.energy_j and plan.forward.frequency_mhz is not None
    hint = "; a larger max_slowdown lets clocks go lower" if saves_nothing and budget.kind == "max_slowdown" else ""
    return (
        f"plan for {budget} ({label}per iteration and GPU): {chosen.time_s:.4g} s, {chosen.energy_j:.4g} J "
        f"({chosen.time_s / base.time_s - 1.0:+.1%} time, {chosen.energy_j / base.energy_j - 1.0:+.1%} energy against "
        f"plain execution at {at}), {clocks}{hint}"
    )
