"""What the callbacks see of a run: the strategy's side of the job, decisions of rank 0, and one line to the user."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from energy_lightning.device import Device
from energy_lightning.types import Budget, BudgetError, Plan, PlanError, StrategyError, WorkloadError
from energy_lightning.workload import Workload

log = logging.getLogger(__name__)
T = TypeVar("T")

USER_MISTAKES = (BudgetError, PlanError, StrategyError, WorkloadError)
"""Errors that stop the training: the user must decide."""

FAILURES = (ValueError, ArithmeticError, LookupError, OSError, RuntimeError, ImportError)
"""What may go wrong while measuring and planning; the training goes on without us."""


@runtime_checkable
class JobStrategy(Protocol):
    """The part of KareusStrategy that the callbacks use.

    Attributes:
        device: this rank's GPU, or None where there is nothing to measure.
        workload: the job's shape, or None where it is not known.
        budget: what the user is willing to give.
        plan: the plan that the user gave, or None: one is to be found.
        applied_plan: what every iteration runs now.
        output_dir: folder of the measurements and the plan.
    """

    @property
    def device(self) -> Device | None: ...  # noqa: D102
    @property
    def workload(self) -> Workload | None: ...  # noqa: D102
    @property
    def budget(self) -> Budget: ...  # noqa: D102
    @property
    def plan(self) -> Plan | None: ...  # noqa: D102
    @property
    def applied_plan(self) -> Plan | None: ...  # noqa: D102
    @property
    def output_dir(self) -> Path: ...  # noqa: D102

    def run_key(self) -> Mapping[str, Any]:
        """What measurements depend on, as plain values."""
        ...

    def apply_plan(self, plan: Plan) -> None:
        """Run this plan from the next step on."""
        ...


def job_of(trainer: Any) -> JobStrategy | None:
    """The trainer's strategy if it is one of ours."""
    strategy = trainer.strategy
    return strategy if isinstance(strategy, JobStrategy) else None


def find_callback(trainer: Any, kind: type[T]) -> T | None:
    """The trainer's first callback of a kind."""
    return next((callback for callback in trainer.callbacks if isinstance(callback, kind)), None)


def check_alone(trainer: Any, kind: type[Any], name: str) -> None:
    """StrategyError where the trainer has several callbacks of a kind that works on one thing of the whole job."""
    count = sum(isinstance(callback, kind) for callback in trainer.callbacks)
    if count > 1:
        raise StrategyError(f"the Trainer has {count} callbacks {name}, which would undo each other's work: leave one")


def say(trainer: Any, line: str) -> None:
    """One line to the user, on rank 0, between progress bars."""
    trainer.lightning_module.print(f"energy_lightning: {line}")


def report(trainer: Any, line: str) -> None:
    """One line about this rank's own hardware: like `say` on rank 0, through the log on the others."""
    if trainer.is_global_zero:
        say(trainer, line)
    else:
        log.warning(f"energy_lightning: rank {trainer.global_rank}: {line}")


def on_rank_zero(trainer: Any, work: Callable[[], T]) -> T:
    """Do `work` on rank 0; every rank gets its result, or raises its error. Collective.

    The result must pickle. Without this, an error on rank 0 alone would leave the others waiting for ever.
    """
    outcome: tuple[T | None, BaseException | None] = (None, None)
    if trainer.is_global_zero:
        try:
            outcome = (work(), None)
        except FAILURES as error:
            outcome = (None, error)
    result, fault = trainer.strategy.broadcast(outcome)
    if fault is not None:
        raise fault
    return cast(T, result)


def fault_line(failure: Exception) -> str:
    """One line about one of FAILURES that was caught; the user's mistakes among them are raised again.

    For hooks that run in every step: `try` costs nothing there, entering and leaving `degrading` does.
    """
    if isinstance(failure, USER_MISTAKES):
        raise failure
    return f"{type(failure).__name__}: {failure}"


class degrading:
    """A failure of ours inside is handed to `give_up` as one line; the user's mistakes (and `raising`) are raised.

    A class, not a generator, whose frame costs tens of microseconds. In every step of a run: see `fault_line`.
    """

    __slots__ = ("_give_up", "_raising")

    def __init__(self, give_up: Callable[[str], None], *, raising: tuple[type[Exception], ...] = ()) -> None:
        self._give_up, self._raising = give_up, raising

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, USER_MISTAKES + self._raising) or not isinstance(error, FAILURES):
            return False
        self._give_up(f"{type(error).__name__}: {error}")
        return True


def gather_rows(trainer: Any, values: Sequence[float]) -> list[list[float]]:
    """The same number of values from every rank, one row a rank. Collective."""
    if trainer.world_size == 1:
        return [list(values)]
    import torch
    import torch.distributed as dist

    own = torch.tensor(values, dtype=torch.float64, device=trainer.strategy.root_device)
    rows = [torch.empty_like(own) for _ in range(trainer.world_size)]
    dist.all_gather(rows, own)
    return [row.tolist() for row in rows]


def clock_is_controlled(trainer: Any, job: JobStrategy) -> bool:
    """Whether the clock of every rank's GPU may be set. Collective."""
    own = job.device is not None and job.device.can_lock_frequency
    return all(row[0] for row in gather_rows(trainer, [float(own)]))


def gpu_identity(device: Device | None, rank: int) -> float:
    """A number that two ranks share exactly when they use the same GPU (devices without a uuid are all different)."""
    uuid = getattr(device, "uuid", None)
    if uuid is None:
        return float(-1 - rank)
    return float(int(hashlib.sha256(str(uuid).encode()).hexdigest()[:12], 16))
