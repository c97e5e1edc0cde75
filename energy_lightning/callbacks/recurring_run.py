"""Rank 0's side of a run of a recurring job: the only one that touches the store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from energy_lightning.callbacks.run_meter import Spent
from energy_lightning.recurring import BatchSizeOptimizer, RecurringError, StoreError
from energy_lightning.recurring.errors import number
from energy_lightning.recurring.store import RunStore, read_settings

_NO_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""In RuntimeErrors of torch 2.x where memory is short (torch/csrc: c10/core/impl/alloc_cpu.cpp, aten CUDABlas)."""

Verdict = Literal["going on", "reached", "too dear", "ended", "out of memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The value of a metric at which a run is done."""

    monitor: str
    value: float
    mode: Literal["min", "max"]

    def __post_init__(self) -> None:
        if not isinstance(self.monitor, str) or not self.monitor:
            raise RecurringError(f"monitor must be the name of a logged metric, e.g. 'val_acc', got {self.monitor!r}")
        object.__setattr__(self, "value", number("target", self.value, "0.84"))
        if self.mode not in ("min", "max") or not math.isfinite(self.value):
            raise RecurringError(f"need mode 'min' or 'max' and a finite target, got {self.mode!r} and {self.value}")

    def reached(self, metrics: Mapping[str, Any]) -> bool:
        """Whether the metric is there; False while it was not logged."""
        metric = metrics.get(self.monitor)
        if metric is None:
            return False
        return float(metric) >= self.value if self.mode == "max" else float(metric) <= self.value


class RecurringRun:
    """A suggestion of the store at `path`, until it is reported or abandoned.

    A store that is not ours raises at the start. One that fails later (deleted, disk full, not writable any more) ends
    no training, which is worth more than its record: `say` gets one line.

    Args:
        settings: of BatchSizeOptimizer; without `max_power_w` that of the latest run counts until `use_max_power`.
        say: takes a line for the user.
        clock_s: wall time, of a run that ends before anything was metered.
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
            kept = read_settings(connection)
        if self._max_power_is_measured:  # the first run needs none: there is nothing to compare
            known["max_power_w"] = kept.get("max_power_w", 1.0)
        self._optimizer = BatchSizeOptimizer(batch_sizes, store=path, **known)
        self._target, self._say = target, say
        self._emulated: bool | None = kept.get("emulated")  # the store's kind of runs, until this one's is known
        self._path, self._store_failed = path, False
        self.batch_size = self._optimizer.suggest()

    def begin(self, *, max_power_w: float | None, emulated: bool) -> int | None:
        """Training begins on GPUs that may draw so much together, which counts where the settings leave it to them.

        Returns its number in the store. Raises RecurringError where the store's runs are of the other kind (emulated or
        measured).
        """
        self._optimizer.check_kind(emulated)
        self._emulated, self._start_s = emulated, self._clock_s()
        if self._max_power_is_measured and max_power_w is not None:
            self._optimizer.use_max_power(max_power_w)
        return self._optimizer.open_run(self.batch_size)

    def resume(self, run_id: int | None, batch_size: int, *, over: bool = False) -> int:
        """Go on with an earlier suggestion instead of this one, where it is not over; its batch size.

        RecurringError where it is no arm.
        """
        if batch_size not in self._optimizer.batch_sizes:
            raise RecurringError(
                f"the checkpoint is of a run with batch size {batch_size}, which is none of "
                f"{list(self._optimizer.batch_sizes)}: add it to batch_sizes, or resume without RecurringJob"
            )
        self.abandon()
        if not over:
            self._optimizer.adopt(run_id, batch_size)
        self.batch_size = batch_size
        return batch_size

    def judge(self, metrics: Mapping[str, Any], spent: Spent) -> Verdict:
        """Whether the run is there, or goes on. Shows the store that it lives."""
        if self._target.reached(metrics):
            return "reached"
        if spent.time_s <= 0.0 or self._store_failed:
            return "going on"
        try:
            dear = self._optimizer.should_stop(energy_j=spent.energy_j or 0.0, time_s=spent.time_s)
        except StoreError as error:
            self._store_failed = True
            self._say(f"training goes on, however dear it gets: {error}")
            return "going on"
        return "too dear" if dear else "going on"

    def end(self, verdict: Verdict, metrics: Mapping[str, Any], spent: Spent) -> str | None:
        """As `report`, of a training that is over; one that ended by itself and never logged `monitor` is abandoned."""
        if verdict == "ended" and self._target.monitor not in metrics:
            self.abandon()
            logged = ", ".join(sorted(str(name) for name in metrics)) or "none"
            return f"the run is not reported: it never logged {self._target.monitor!r} (monitor); logged: {logged}"
        return self.report(spent, reached=verdict == "reached")

    def out_of_memory(self, spent: Spent | None) -> str:
        """Report a run that did not fit, whatever is known of its cost, and say so. `spent`: None before a first batch.

        Nothing may have been metered yet: then the time is the wall clock's and the energy 0 J.
        """
        time_s, energy_j = (0.0, None) if spent is None else (spent.time_s, spent.energy_j)
        time_s, energy_j = time_s if time_s > 0.0 else self._clock_s() - self._start_s, energy_j or 0.0
        if self._emulated is None:
            self.abandon()
            return (
                f"batch size {self.batch_size} ran out of memory before a first batch and is not reported: whether the "
                "job's runs are measured or emulated is not known yet. Give a smaller default"
            )
        return self._observe(energy_j, time_s, reached=False) or (
            f"the run with batch size {self.batch_size} did not reach its target (out of memory): {energy_j:.4g} J "
            f"over all GPUs, {time_s:.4g} s"
        )

    def report(self, spent: Spent, *, reached: bool) -> str | None:
        """Tell the store; or why it is not told: the run is then abandoned."""
        unknown = spent.energy_j is None and self._optimizer.cost.eta > 0.0
        if not spent.time_s > 0.0 or unknown:
            self.abandon()
            return "the run is not reported: its time or energy could not be measured"
        return self._observe(spent.energy_j or 0.0, spent.time_s, reached=reached)

    def _observe(self, energy_j: float, time_s: float, *, reached: bool) -> str | None:
        """Why the store could not be told, or None."""
        emulated = bool(self._emulated)
        try:
            self._optimizer.observe(
                self.batch_size,
                energy_j=energy_j,
                time_s=time_s,
                reached_target=reached,
                emulated=emulated,
            )
        except RecurringError as error:
            figures = f"energy_j={energy_j!r}, time_s={time_s!r}, reached_target={reached}"
            figures += ", emulated=True" if emulated else ""
            return (
                f"the run is not reported: {error}. To report it later: "
                f"BatchSizeOptimizer.of_store({str(self._path)!r}).observe({self.batch_size}, {figures})"
            )
        return None

    def abandon(self) -> None:
        """It says nothing of its batch size."""
        try:
            self._optimizer.abandon(self.batch_size)
        except StoreError as error:  # its lease ends by itself
            self._say(f"the store does not know that this run is over: {error}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether what ended a run is that it did not fit, on a GPU or on the CPU."""
    import torch

    said = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(part in said for part in _NO_MEMORY)
