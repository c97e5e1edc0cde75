"""A run of a recurring job on all ranks: what it has cost, whether it is there, and its report, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from energy_lightning.callbacks.evaluations import Evaluations
from energy_lightning.callbacks.job import on_rank_zero, say
from energy_lightning.callbacks.recurring_run import RecurringRun, report_alone
from energy_lightning.callbacks.run_meter import JobMeter, Spent
from energy_lightning.callbacks.shared_device import gather_objects
from energy_lightning.callbacks.target import Target
from energy_lightning.callbacks.verdicts import Verdict, verdict_of
from energy_lightning.device import Device, has_emulated_figures
from energy_lightning.recurring import RecurringError, Run


class JobRun:
    """Every rank has one; the verdict is rank 0's, which alone has a RecurringRun.

    Attributes:
        active: whether a verdict is still to come.
        resumed: state of the checkpoint that it goes on from.
        spent: the whole job's, as of the last look; once the verdict is there, as of then. None before the first batch.
        verdict: rank 0's; that of an error is the rank's own.
        fault: why it is not to be reported, in words; None where it is.
    """

    def __init__(self, target: Target, store: Path, *, active: bool) -> None:
        self.active, self._target, self._store = active, target, store
        self.resumed: Mapping[str, Any] | None = None
        self.spent: Spent | None = None
        self.verdict: Verdict = "going on" if active else "no run"
        self.fault: str | None = None
        self._run: RecurringRun | None = None  # on rank 0
        self._run_id: int | None = None
        self._store_id: str | None = None
        self._meter: JobMeter | None = None
        self._emulated = False
        self._evaluations: Evaluations | None = Evaluations(monitor=target.monitor)
        self._reported, self._closed = False, not active

    @property
    def opened(self) -> bool:
        """Whether its first batch has begun."""
        return self._meter is not None

    def suggest(self, trainer: Any, make: Callable[[], RecurringRun]) -> int:
        """The batch size that the store suggests. Collective."""

        def ask() -> int:
            self._run = make()
            return self._run.batch_size

        return on_rank_zero(trainer, ask)

    def resume(self, trainer: Any, state: Mapping[str, Any]) -> int:
        """Go on with a checkpoint's run; its batch size. It is over where it had reached this target. Collective."""
        run, batch_size, target = self._run, int(state["batch_size"]), asdict(self._target)
        over, before = state.get("reached") == target, state.get("target") or state.get("reached")
        self._evaluations = Evaluations.resumed(self._target.monitor, state.get("evaluations"))

        def go_on() -> str | None:
            assert run is not None
            known = state.get("store_id") in (None, run.store_id)  # another store's run of that number is another one
            retargeted = before not in (None, target)
            return run.resume(state["run_id"] if known else None, batch_size, over=over, retargeted=retargeted)

        self.resumed, self.fault = dict(state), on_rank_zero(trainer, go_on) or state.get("fault")
        if over:
            self.active, self.verdict = False, "reached"
        return batch_size

    def open(self, trainer: Any, device: Device, *, needs_energy: bool, fault: str | None) -> None:
        """Its first batch begins on this rank's `device`. Not to be reported for rank 0's `fault`. Collective."""
        self._meter, self._emulated = JobMeter(trainer, device, self.resumed or {}), has_emulated_figures(device)
        if needs_energy and not all(gather_objects(trainer, device.energy_source != "none")):
            raise RecurringError(
                "RecurringJob: energy is not measured on every rank, so runs cannot be compared by it. Choose by time "
                "with eta=0, or measure: device='nvidia', or an emulated one with workload=..."
            )
        self.spent = self._meter.read(trainer)
        run, limit_w, why = self._run, self.spent.limit_w, self.fault or fault

        def begin() -> tuple[int | None, str | None, str | None]:
            assert run is not None
            return run.begin(max_power_w=limit_w, emulated=self._emulated, fault=why), run.store_id, why

        self._run_id, self._store_id, self.fault = on_rank_zero(trainer, begin)
        if self.fault is not None:
            say(trainer, f"this run will not be reported: {self.fault}")

    @property
    def earlier(self) -> Sequence[Run]:
        """Runs of its batch size that were reported before it began; rank 0 knows."""
        return [] if self._run is None else self._run.earlier

    def counted(self, trainer: Any) -> Evaluations | None:
        """Its evaluations where they count: not in the sanity check, once it is there, or in validate() after it."""
        counts = not (trainer.sanity_checking or self._closed or self.verdict == "reached")
        return self._evaluations if counts else None

    def look(self, trainer: Any, metrics: Mapping[str, Any]) -> None:
        """What the run has cost, whether it is there, whether it goes on; the report where it is over. Collective.

        Lightning heeds `should_stop` only after the Trainer's min_steps and min_epochs.
        """
        if not self.active or self._meter is None:
            return
        spent, run = self._meter.read(trainer), self._run
        self.spent = spent
        self.verdict = on_rank_zero(trainer, lambda: "going on" if run is None else run.judge(metrics, spent))
        if self.verdict != "going on":
            trainer.should_stop = True
            self._report(trainer)

    def end(self, trainer: Any) -> None:
        """Training is over, maybe without a verdict. Collective."""
        self.look(trainer, trainer.callback_metrics)  # a metric may have been logged since
        if self.active and self._meter is not None:
            self.verdict = "ended"
            self._report(trainer)
        elif self.verdict == "too dear" and self._meter is not None:
            self._meter.read(trainer)  # for a checkpoint that is saved after the fit

    def fail(self, trainer: Any, error: BaseException, batch_size: int | None) -> None:
        """Training ends by an error. On the ranks that have one, no collective.

        Out of memory on another rank than 0 is reported by that one: rank 0 may wait for it in a collective until it is
        killed.
        """
        if not self.active:
            return
        if self._meter is not None:  # also for a checkpoint that is saved hereafter
            self.spent = self._meter.read_alone()
        limit_w = _settled_limit_w(trainer)
        if self._run is not None:
            self.verdict = self._run.fail(error, self.spent, limit_w)
            return
        self.verdict = verdict_of(error)
        if self.verdict == "out of memory" and not (self._run_id is None or self.spent is None or batch_size is None):
            report_alone(self._store, self._run_id, batch_size, self.spent, limit_w, emulated=self._emulated)

    def abandon(self, trainer: Any, batch_size: int | None) -> None:
        """There was nothing to train."""
        if not self.active:
            return
        self.verdict = "no run"
        empty = trainer.num_training_batches == 0
        if self._run is not None:
            self._run.discard(tried=empty)
        if empty:
            say(
                trainer,
                f"the training loader has no batch of batch size {batch_size}, which may be suggested again: take it "
                "out of batch_sizes, or give more rows",
            )

    def state(self, trainer: Any, batch_size: int | None) -> Mapping[str, Any] | None:
        """What the whole job has spent, for a checkpoint; None where there is nothing to go on with. Collective."""
        if self._meter is None or self.spent is None:  # before the first batch
            return self.resumed
        reached = asdict(self._target) if self.verdict == "reached" and self._reported else None
        whole = self._meter.read(trainer)
        spent = self.spent if reached else whole  # without its target all of it counts
        return {
            "batch_size": batch_size,
            "run_id": self._run_id,
            "store_id": self._store_id,
            "fault": self.fault,
            "target": asdict(self._target),
            "reached": reached,
            "time_s": spent.time_s,
            "energy_j": spent.energy_j,
            "evaluations": None if self._evaluations is None else self._evaluations.state(),
        }

    def close(self) -> None:
        """End measuring. Idempotent."""
        self.active, self._closed = False, True
        if self._meter is not None:
            self._meter.close()

    def _report(self, trainer: Any) -> None:
        """Collective."""
        assert self.spent is not None
        spent, run, verdict, metrics = self.spent, self._run, self.verdict, trainer.callback_metrics
        evaluations, limit_w = self._evaluations, _settled_limit_w(trainer)
        num = None if evaluations is None else evaluations.completed(metrics, reached=verdict == "reached")

        def end() -> tuple[bool, str]:
            assert run is not None
            return run.end(verdict, spent, num, limit_w, missing=self._target.missing(metrics))

        self._reported, line = on_rank_zero(trainer, end)
        self.active = False
        say(trainer, line)
        is_news = not any(one.reached_target and one.num_evaluations == 1 for one in self.earlier)
        if doubt := self._target.doubt(metrics, num if is_news else None):
            say(trainer, doubt)


def _settled_limit_w(trainer: Any) -> float | None:
    """Of one GPU: what PowerLimitOptimizer has settled on; None where there is none, or it has not yet."""
    limits = (getattr(callback, "power_limit_w", None) for callback in trainer.callbacks)
    return next((limit_w for limit_w in limits if limit_w is not None), None)
