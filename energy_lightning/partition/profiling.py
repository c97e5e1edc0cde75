"""Single partitions of a stack, run again and again on synthetic activations, for measuring their time and energy.

A partition runs exactly as in training, through the same operators, launch points and collectives:

    nanobatched   wait for the collective launched last time | compute, launching what was computed last time
                  at the schedule's launch point (the output of one execution is what the next one sums)
    sequential    compute | collective, exposed
    alone         compute

What is run is a twin of one layer, the last one, taken as if other layers were before and after it; the model's own
weights, gradients and random state are not touched. Gradients accumulate in the twin as they would in training and
start anew as often. Not modelled: layers that differ from the last one, and with an odd batch the smaller nanobatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from energy_lightning.collectives import Collectives
from energy_lightning.partition.calls import BlockCall
from energy_lightning.partition.errors import ExecutionError
from energy_lightning.partition.execution import RunSettings, StackRun, nanobatch_sizes
from energy_lightning.partition.lanes import Lane, PhaseSchedules
from energy_lightning.partition.order import Step, backward_steps, forward_steps
from energy_lightning.partition.random import RandomState, replayed
from energy_lightning.partition.recognition import BlockStack
from energy_lightning.partition.sums import Sum
from energy_lightning.partition.tracing import TraceEvent
from energy_lightning.partition.twins import twin_of
from energy_lightning.types import Schedule

ForwardContext = Callable[[], AbstractContextManager[object]]
KEYS = ("fwd_attn", "fwd_mlp", "rec_attn", "rec_mlp", "bwd_mlp", "bwd_attn")
_NUM_LAYERS = 2  # of the twin's stack: each measured partition has a neighbour on the side that its glue needs
_SEED = 20261


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCall:
    """What a stack was called with in training.

    Attributes:
        shape: (batch, sequence, hidden size) of its input; dtype, device: of its input.
        call: its other arguments, without a cache.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    call: BlockCall

    @classmethod
    def of(cls, hidden: Tensor, call: BlockCall) -> StackCall:
        """From the arguments that an engine's `on_call` hears of."""
        return cls(shape=tuple(hidden.shape), dtype=hidden.dtype, device=hidden.device, call=replace(call, cache=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """How partitions run.

    Attributes:
        collectives: of the tensor-parallel group; None where the blocks are not sharded.
        checkpointing: activations are recomputed in backward.
        context: a maker of what forward runs in (autocast); backward runs outside of it.
        backwards_per_step: backwards of one layer between two resets of its gradients, in sequential execution.
        trace: list that events are appended to, or None.
    """

    collectives: Collectives | None = None
    checkpointing: bool = False
    context: ForwardContext = nullcontext
    backwards_per_step: int = 1
    trace: list[TraceEvent] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKind:
    """Which partition runs, and where its collective does.

    Attributes:
        key: one of KEYS.
        nanobatched: half a batch, in the nanobatched mode.
        collective: "beside" its compute, "after" it, or "none".
    """

    key: str
    nanobatched: bool
    collective: str

    @classmethod
    def parse(cls, name: str, *, nanobatched: bool, has_collective: bool, checkpointing: bool) -> PartitionKind:
        """From a workload partition's key: one of KEYS, with "_alone" after it, or "fwd_edge", "bwd_edge".

        Raises ExecutionError for a partition that the engine does not have.
        """
        edges = {"fwd_edge": "fwd_attn", "bwd_edge": "rec_attn" if checkpointing else "bwd_mlp"}
        key = edges.get(name, name.removesuffix("_alone"))
        if key not in KEYS or (key.startswith("rec") and not checkpointing):
            raise ExecutionError(f"the partition engine does not run {name!r}; it runs {', '.join(KEYS)}")
        beside = nanobatched and name not in edges
        return cls(key=key, nanobatched=nanobatched, collective=_place(has_collective, beside))


def _place(has_collective: bool, beside: bool) -> str:
    if not has_collective:
        return "none"
    return "beside" if beside else "after"


class PreparedPartition:
    """One partition under one schedule, on memory of its own. A collective of the group: all ranks make it alike.

    Args:
        stack: whose last layer runs.
        sizes: what the stack is called with in training.
        kind: which partition, and where its collective runs.
        schedule: of the collective; None: as early as possible, the backend's SM count.
        settings: how partitions run.

    Raises:
        ExecutionError: a batch that cannot be cut into nanobatches.
    """

    def __init__(
        self,
        stack: BlockStack,
        sizes: StackCall,
        kind: PartitionKind,
        schedule: Schedule | None,
        settings: PartitionSettings,
    ) -> None:
        self._kind, self._settings, self._device = kind, settings, sizes.device
        self._step = Step(kind.key, 0 if kind.key.startswith("bwd") else 1, 0)
        self._twin = twin_of(list(stack.layers.children())[-1])
        self._lane = Lane(_own_part(sizes, kind.nanobatched))
        schedules = PhaseSchedules(kind.collective == "beside", {} if schedule is None else {kind.key: schedule})
        run_settings = RunSettings(
            forward=schedules,
            backward=schedules,
            collectives=settings.collectives,
            checkpointed=frozenset(range(_NUM_LAYERS)) if settings.checkpointing else frozenset(),
            trace=settings.trace,
        )
        with settings.context():
            self._stack_run = StackRun(stack.row, [self._twin] * _NUM_LAYERS, [self._lane], run_settings)
        self._stack_run.wants_gradient = [True] * (_NUM_LAYERS + 1)
        self._pending: Sum | None = None
        self._waiting: Sum | None = None
        self._num_runs = 0
        self._entry: _Entry | None = self._rehearse(_synthetic(sizes, kind.nanobatched))
        self._payload = _Payload(self._entry.like, settings.collectives)
        self.run(2)  # the first collective, which may connect, is over and the next one's payload is computed
        self._num_runs = 0

    def run(self, num_runs: int) -> None:
        """Execute it that often; returns when everything is issued. Raises ExecutionError after `close`."""
        if self._entry is None:
            raise ExecutionError(f"partition {self._kind.key!r} has been released: prepare it again")
        forward = self._kind.key.startswith("fwd")
        per_context = 2 if self._kind.nanobatched else 1  # autocast casts weights once for both nanobatches
        with self._apart():
            for start in range(0, num_runs, per_context):
                with self._settings.context() if forward else nullcontext():
                    for _ in range(start, min(start + per_context, num_runs)):
                        self._once(self._entry)

    def close(self) -> None:
        """Free its memory. Idempotent."""
        if self._entry is not None:
            self._entry = self._pending = self._waiting = None
            del self._stack_run, self._twin, self._lane, self._payload

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Grad mode as inside autograd, and afterwards the random state is as it was."""
        with replayed(RandomState.capture(self._device)), torch.no_grad():
            yield

    def _once(self, entry: _Entry) -> None:
        entry.put_into(self._lane)
        if self._waiting is not None:
            self._waiting.result()
        if self._kind.key.startswith("bwd"):
            self._forget_gradients()
        output = self._execute(self._step, self._pending)
        if self._kind.collective == "after":
            (output or self._substitute()).result()
        elif self._kind.collective == "beside":
            self._waiting, self._pending = self._pending, output or self._substitute()
        self._num_runs += 1

    def _execute(self, step: Step, pending: Sum | None) -> Sum | None:
        if step.key.startswith("fwd"):
            return self._stack_run.forward_step(step, pending)
        run = self._stack_run.recompute_step if step.key.startswith("rec") else self._stack_run.backward_step
        return run(step, pending, True)

    def _forget_gradients(self) -> None:
        if self._num_runs % (self._settings.backwards_per_step * (1 + self._kind.nanobatched)) == 0:
            for parameter in self._twin.parameters():
                parameter.grad = None

    def _substitute(self) -> Sum:
        """For a partition that ends in no partial sum, the one of its neighbour that runs beside it."""
        tensor = self._payload.tensor(self._num_runs)
        return Sum(tensor, self._step, self._settings.collectives, None, self._settings.trace)

    def _rehearse(self, hidden: Tensor) -> _Entry:
        """Forward and backward of the twin's stack; returns the lane's state before the step that is measured."""
        lane, entry = self._lane, None
        with self._apart():
            with self._settings.context():
                lane.h = hidden
                for step in forward_steps(_NUM_LAYERS, 1):
                    entry = _Entry.of(lane) if step == self._step else entry
                    self._execute(step, None)
                lane.dh, lane.dx = self._stack_run.leave(0, lane), None
            checkpointed = range(_NUM_LAYERS) if self._settings.checkpointing else ()
            for step in backward_steps(range(_NUM_LAYERS), 1, checkpointed):
                entry = _Entry.of(lane) if step == self._step else entry
                self._execute(step, None)
        assert entry is not None, "every key is a step of forward or backward"
        _forget_other_graphs(lane, self._step)
        return entry


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a lane holds when a partition begins; the partial sums are complete."""

    h: Tensor | None
    y: Tensor | None
    wants: tuple[bool, bool]
    dh: Tensor | None
    dx: Tensor | None

    @classmethod
    def of(cls, lane: Lane) -> _Entry:
        y, dx = (None if partial is None else partial.result() for partial in (lane.y, lane.dx))
        return cls(lane.h, y, (lane.h_wants, lane.y_wants), lane.dh, dx)

    @property
    def like(self) -> Tensor:
        """A tensor such as the collectives sum."""
        return next(tensor for tensor in (self.y, self.dx, self.h, self.dh) if tensor is not None)

    def put_into(self, lane: Lane) -> None:
        source = Step("fwd_rest", 0, 0)
        lane.h, lane.dh = self.h, self.dh
        lane.y, lane.dx = (None if tensor is None else Sum(tensor, source) for tensor in (self.y, self.dx))
        lane.h_wants, lane.y_wants = self.wants


class _Payload:
    """Tensors to be summed over the ranks in place again and again, filled anew before the sums grow too large."""

    def __init__(self, like: Tensor, collectives: Collectives | None) -> None:
        self._fresh, self._own = like, (like.clone(), like.clone())
        growth = math.log(max(2, 1 if collectives is None else collectives.size))
        self._period = max(1, int(0.5 * math.log(torch.finfo(like.dtype).max) / growth))

    def tensor(self, turn: int) -> Tensor:
        """One of two, in turn: the other may still be on its way through a collective."""
        own = self._own[turn % 2]
        if turn // 2 % self._period == 0:
            own.copy_(self._fresh)
        return own


def _own_part(sizes: StackCall, nanobatched: bool) -> BlockCall:
    if not nanobatched:
        return sizes.call
    if sizes.shape[0] < 2 or not sizes.call.splits(sizes.shape[0]):
        raise ExecutionError(f"a batch of shape {sizes.shape} with these arguments cannot be cut into two nanobatches")
    return sizes.call.split(nanobatch_sizes(sizes.shape[0], 2))[0]


def _synthetic(sizes: StackCall, nanobatched: bool) -> Tensor:
    """Hidden states of the real shape and type, the same on all ranks."""
    batch_size = nanobatch_sizes(sizes.shape[0], 2)[0] if nanobatched else sizes.shape[0]
    generator = torch.Generator(sizes.device).manual_seed(_SEED)
    shape = (batch_size, *sizes.shape[1:])
    return torch.randn(shape, generator=generator, dtype=sizes.dtype, device=sizes.device)


def _forget_other_graphs(lane: Lane, step: Step) -> None:
    """Of all that the rehearsal recorded, keep what one backward partition needs."""
    backward = step.key.startswith("bwd")
    lane.bodies = {body: group for body, group in lane.bodies.items() if backward and body == step.body}
    lane.glues = {body: group for body, group in lane.glues.items() if backward and body == step.body + 1}
