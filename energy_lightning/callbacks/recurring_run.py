"""Rank 0's side of a run of a recurring job: the one that touches the store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from energy_lightning.callbacks.job import log
from energy_lightning.callbacks.run_meter import Spent
from energy_lightning.callbacks.target import Target
from energy_lightning.callbacks.verdicts import Verdict, is_out_of_memory, told, verdict_of
from energy_lightning.recurring import (
    JobSettings,
    JointOptimizer,
    RecurringError,
    Run,
    StoreError,
    TargetNeverReachedWarning,
)
from energy_lightning.recurring.rows import identity, read_settings
from energy_lightning.recurring.runs import UNKNOWN_POWER_W
from energy_lightning.recurring.settings import seed_and_clock
from energy_lightning.recurring.store import RunStore
from energy_lightning.types import EnergyLightningError

OPTIONS = ("eta", "beta", "seed", "policy", "window", "lease_s", "max_power_w", "clock")


def parse_options(batch_sizes: Any, default: Any, options: Mapping[str, Any], named: Iterable[str]) -> JobSettings:
    """What RecurringJob's arguments mean, checked on every rank before a store is touched; RecurringError.

    `named`: its parameters, the last of which takes `options`.
    """
    if unknown := sorted(set(options) - set(OPTIONS)):
        known = ", ".join([*[*named][:-1], *OPTIONS])
        raise RecurringError(f"RecurringJob has no option {unknown[0]!r}; known: {known}")
    seed_and_clock(options.get("seed", 0), options.get("clock", time.time))
    stored = {name: value for name, value in options.items() if name not in ("seed", "clock")}
    return JobSettings.parse(batch_sizes, **{"max_power_w": UNKNOWN_POWER_W, "default": default, **stored})


class RecurringRun:
    """A suggestion of the store at `path`, until it is reported or abandoned.

    A store that is not ours raises at the start. One that fails later (deleted, disk full, not writable any more) ends
    no training, which is worth more than its record: `say` gets one line.

    Args:
        settings: of BatchSizeOptimizer; without `max_power_w` that of the latest run counts until `use_max_power`.
        say: takes a line for the user.
        clock_s: wall time, of a run that ends before anything was metered.

    Attributes:
        store_id: of the store, for a checkpoint; None where it has none.
        earlier: runs of the batch size that were reported before this one began.
    """

    def __init__(
        self,
        batch_sizes: Sequence[int],
        path: Path,
        settings: Mapping[str, Any],
        target: Target,
        say: Callable[[str], None],
        *,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock_s, self._start_s = clock_s, clock_s()
        self._max_power_is_measured = "max_power_w" not in settings
        known = dict(settings)
        with RunStore(path).reading() as connection:
            kept, self.store_id = read_settings(connection), identity(connection)
        if self._max_power_is_measured:  # the first run needs none: there is nothing to compare
            known["max_power_w"] = kept.get("max_power_w", UNKNOWN_POWER_W)
        self._optimizer = JointOptimizer(batch_sizes, store=path, **known)  # to which a run's limit is no prior
        self._target, self._say = target, say
        self._emulated: bool | None = kept.get("emulated")  # the store's kind of runs, until this one's is known
        self._path, self._store_failed = path, False
        self._begun, self._comparable, self.earlier = False, True, list[Run]()
        self._adopt: Callable[[], None] | None = None  # an earlier suggestion
        self.batch_size = self._suggestion()

    def _suggestion(self) -> int:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", TargetNeverReachedWarning)
            batch_size = self._optimizer.suggest()
        for each in told:
            self._say(str(each.message))
        return batch_size

    def begin(self, *, max_power_w: float | None, emulated: bool, fault: str | None = None) -> int | None:
        """Training begins on GPUs that may draw so much together, which counts where the settings leave it to them.

        Returns its number in the store; None where it is not to be reported for a `fault`, and so is neither compared
        nor stopped. Raises RecurringError where the store's runs are of the other kind (emulated or measured).
        """
        self._emulated, self._start_s = emulated, self._clock_s()
        if fault is not None:
            self.discard()
            self._comparable = False
            return None
        try:
            self._optimizer.check_kind(emulated)
            done = [run for run in self._optimizer.runs() if run.state == "done"]
            self.earlier = [run for run in done if run.batch_size == self.batch_size]
            if self._adopt is not None:  # only now: a run that is resumed and trains nothing more stays as it was
                self._adopt()
            if self._max_power_is_measured:
                self._weigh_time(max_power_w)
        except StoreError as error:
            self._go_on_without(error)
        self._begun = True
        return self._optimizer.open_run(self.batch_size)

    def _weigh_time(self, max_power_w: float | None) -> None:
        cost = self._optimizer.cost
        if max_power_w is not None:
            self._optimizer.use_max_power(max_power_w)
        elif 0.0 < cost.eta < 1.0:
            self._say(
                f"the GPUs do not tell their power limits, so time counts as if they drew {cost.max_power_w:g} W: give "
                "max_power_w, of all GPUs together"
            )

    def resume(self, run_id: int | None, batch_size: int, *, over: bool, retargeted: bool) -> str | None:
        """Go on with an earlier suggestion instead of this one, where it is not `over`.

        In words, that it is not to be reported, as it has reached its target since the checkpoint was saved; None where
        it is, and where it is `retargeted`: a run to another target is another one. RecurringError where its batch size
        is no arm.
        """
        if batch_size not in self._optimizer.batch_sizes:
            raise RecurringError(
                f"the checkpoint is of a run with batch size {batch_size}, which is none of "
                f"{list(self._optimizer.batch_sizes)}: add it to batch_sizes, or resume without RecurringJob"
            )
        self.discard()
        self.batch_size = batch_size
        if over:
            return None
        if not retargeted and is_done(self._optimizer, run_id, batch_size, reached=True):
            return (
                f"run {run_id}, which the checkpoint is of, has reached its target since then and is reported: what "
                "was spent before would count twice"
            )
        self._adopt, self._begun = partial(self._optimizer.adopt, run_id, batch_size), run_id is not None
        return None

    def judge(self, metrics: Mapping[str, Any], spent: Spent) -> Verdict:
        """Whether the run is there, or goes on. Shows the store that it lives."""
        if self._target.reached(metrics):
            return "reached"
        if spent.time_s <= 0.0 or self._store_failed or not self._comparable:
            return "going on"
        try:
            dear = self._optimizer.should_stop(energy_j=spent.energy_j or 0.0, time_s=spent.time_s)
        except StoreError as error:
            self._go_on_without(error)
            return "going on"
        return "too dear" if dear else "going on"

    def _go_on_without(self, error: StoreError) -> None:
        self._store_failed = True
        self._say(f"training goes on, however dear it gets: {error}")

    def end(
        self,
        verdict: Verdict,
        spent: Spent,
        num_evaluations: int | None,
        power_limit_w: float | None,
        *,
        missing: str | None,
    ) -> tuple[bool, str]:
        """Report a run that is over; whether the store was told, and a line about it.

        Not reported: one that ended by itself and never logged `monitor` (`missing` says so), and one that could not be
        measured. `num_evaluations` and `power_limit_w` as in BatchSizeOptimizer.observe.
        """
        if not self._comparable:
            line = told(self.batch_size, verdict, spent, emulated=bool(self._emulated))
            return False, f"{line}; not reported"
        fault = missing if verdict == "ended" else None
        if fault is None and (not spent.time_s > 0.0 or (spent.energy_j is None and self._optimizer.cost.eta > 0.0)):
            fault = "its time or energy could not be measured"
        if fault is not None:
            self.discard()
            return False, f"the run is not reported: {fault}"
        return self._report(verdict, spent, num_evaluations, power_limit_w)

    def fail(self, error: BaseException, spent: Spent | None, power_limit_w: float | None = None) -> Verdict:
        """Training ends by an error: of a run that did not fit into memory the store is told what is known of its cost.

        `spent`: None before the first batch. Where nothing was metered yet the time is the wall clock's, the energy not
        known.
        """
        unmetered = self._adopt is not None and spent is None  # of a resumed run: what it had spent is not in here
        if not is_out_of_memory(error) or not self._comparable or unmetered:
            return self._break_off(error)
        if self._emulated is None:
            self.discard()
            self._say(
                f"batch size {self.batch_size} ran out of memory before the first batch and is not reported: whether "
                "the job's runs are measured or emulated is not known yet. Give a smaller default"
            )
            return "out of memory"
        if spent is None or not spent.time_s > 0.0:
            wall_s = self._clock_s() - self._start_s
            spent = Spent(gpu=0.0, time_s=wall_s, energy_j=None, limit_w=None, void_s=0.0)
        reported, line = self._report("out of memory", spent, None, power_limit_w)
        self._say(line if reported else self._told_elsewhere() or line)
        return "out of memory"

    def _break_off(self, error: BaseException) -> Verdict:
        """Nothing is to be learnt from the run here."""
        if line := self._told_elsewhere():
            self._say(line)
            return "out of memory"
        begun, verdict = self._begun, verdict_of(error)
        self.discard(tried=verdict == "failed" and not isinstance(error, EnergyLightningError))
        if verdict == "interrupted":
            then = "; resumed from a checkpoint it goes on" if begun else ""
            self._say(f"the run with batch size {self.batch_size} is not reported: it was interrupted{then}")
        elif begun:  # else the error says all
            self._say(f"the run with batch size {self.batch_size} is not reported: {type(error).__name__} ended it")
        return verdict

    def _told_elsewhere(self) -> str | None:
        """A line, where another rank has reported (`report_alone`), whose end may be what ends this one."""
        if not self._is_done(reached=False):
            return None
        return f"the run with batch size {self.batch_size} did not reach its target: a rank ran out of memory"

    def _is_done(self, *, reached: bool | None = None) -> bool:
        with suppress(StoreError):
            return is_done(self._optimizer, self._optimizer.open_run(self.batch_size), self.batch_size, reached=reached)
        return False

    def _report(
        self, verdict: Verdict, spent: Spent, num_evaluations: int | None, power_limit_w: float | None
    ) -> tuple[bool, str]:
        report: dict[str, Any] = {"energy_j": spent.energy_j, "time_s": spent.time_s}
        report |= {"reached_target": verdict == "reached"}
        report |= {} if num_evaluations is None else {"num_evaluations": num_evaluations}
        report |= {} if power_limit_w is None else {"power_limit_w": power_limit_w}
        report |= {"emulated": True} if self._emulated else {}
        try:
            self._optimizer.observe(self.batch_size, **report)
        except RecurringError as error:
            if self._is_done():
                return False, "the run is not reported: another process, which went on with it too, has reported it"
            figures = ", ".join(f"{name}={value!r}" for name, value in report.items())
            return False, (
                f"the run is not reported: {error}. To report it later: "
                f"BatchSizeOptimizer.of_store({str(self._path)!r}).observe({self.batch_size}, {figures})"
            )
        return True, told(self.batch_size, verdict, spent, emulated=bool(self._emulated))

    def discard(self, *, tried: bool = False) -> None:
        """It says nothing of its batch size; the store forgets one that neither began nor was `tried`. Idempotent."""
        try:
            (self._optimizer.abandon if self._begun or tried else self._optimizer.withdraw)(self.batch_size)
        except StoreError as error:  # its lease ends by itself
            self._say(f"the store does not know that this run is over: {error}")


def report_alone(
    store: Path, run_id: int, batch_size: int, spent: Spent, power_limit_w: float | None, *, emulated: bool
) -> None:
    """Out of memory on another rank than 0, which may never come to report: this one does, where it sees the store.

    Once: rank 0 may have run out of memory as well.
    """
    try:
        optimizer = JointOptimizer.of_store(store)
        if is_done(optimizer, run_id, batch_size, reached=False):
            return
        optimizer.adopt(run_id, batch_size)
        optimizer.observe(
            batch_size,
            energy_j=spent.energy_j,
            time_s=spent.time_s,
            reached_target=False,
            power_limit_w=power_limit_w,
            emulated=emulated,
        )
    except RecurringError as error:
        log.warning(f"energy_lightning: out of memory with batch size {batch_size} is not reported: {error}")


def is_done(optimizer: JointOptimizer, run_id: int | None, batch_size: int, *, reached: bool | None) -> bool:
    """Whether the store was told that the run `reached` its target, or that it did not; None: either."""
    done = [run for run in optimizer.runs() if run.state == "done" and reached in (None, run.reached_target)]
    return (run_id, batch_size) in [(run.run_id, run.batch_size) for run in done]
