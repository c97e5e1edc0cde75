"""Runs single partitions of the model that trains, on its real device, for PartitionMeter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from energy_lightning.partition import ExecutionError
from energy_lightning.partition.calls import BlockCall
from energy_lightning.partition.profiling import (
    ForwardContext,
    PartitionKind,
    PartitionSettings,
    PreparedPartition,
    StackCall,
)
from energy_lightning.partition.recognition import BlockStack
from energy_lightning.strategy_parts.engine_execution import EngineExecution
from energy_lightning.strategy_parts.measured_parts import (
    MeasuredBuckets,
    MeasuredOptimizer,
    MeasuredRest,
    ModelCall,
)
from energy_lightning.types import Schedule
from energy_lightning.workload import Partition


class _Measured(Protocol):
    def run(self, num_runs: int) -> None: ...

    def close(self) -> None: ...


class RealRunner:
    """A PartitionRunner for the blocks of a model, what is around them, its gradient buckets and its optimizer.

    The first forward with gradients tells the sizes; the model itself is not touched: weights are read, gradients and
    optimizer states are the runner's own, and the random state is put back.

    Args:
        execution: the model on its device, in its partition engine.
        checkpointing: activations are recomputed in backward.
        num_microbatches: forward-backward pairs in a step.
        context: what training runs forward in (autocast).
        optimizers: those of the training, when asked.
    """

    def __init__(
        self,
        execution: EngineExecution,
        *,
        checkpointing: bool = False,
        num_microbatches: int = 1,
        context: ForwardContext = nullcontext,
        optimizers: Callable[[], Sequence[Optimizer]] = tuple,
    ) -> None:
        self._execution, self._num_microbatches, self._optimizers = execution, num_microbatches, optimizers
        self._context, self._checkpointing = context, checkpointing
        self._stack = execution.engine.stacks[0]
        self._stack_call: StackCall | None = None
        self._model_call: ModelCall | None = None
        self._prepared: _Measured | None = None
        execution.engine.on_call = self._see_stack
        self._hooks = [
            module.register_forward_pre_hook(self._see_model, with_kwargs=True)
            for module in _ancestors(execution.module, self._stack)
        ]

    def prepare(self, partition: Partition, schedule: Schedule | None) -> Callable[[int], None]:
        """See PartitionRunner. Collective over the ranks whose collectives the partition uses.

        Raises ExecutionError for a partition that this model does not have, and before the first step of training.
        """
        self.release()
        if self._stack_call is None:
            raise ExecutionError("partitions can be run once training has made a step: it tells their sizes")
        make = self._other_parts().get(partition.key)
        self._prepared = self._block(partition, schedule) if make is None else make(schedule)
        return self._prepared.run

    def release(self) -> None:
        """Free what the last prepared partition holds."""
        if self._prepared is not None:
            self._prepared.close()
            self._prepared = None

    def close(self) -> None:
        """Release, and stop watching the model. Idempotent."""
        self.release()
        self._stop_watching()
        self._model_call = None

    def _block(self, partition: Partition, schedule: Schedule | None) -> _Measured:
        assert self._stack_call is not None, "checked by prepare"
        engine = self._execution.engine
        kind = PartitionKind.parse(
            partition.key,
            nanobatched=partition.nanobatched,
            has_collective=partition.collective is not None,
            checkpointing=self._checkpointing,
        )
        settings = PartitionSettings(
            collectives=engine.collectives,
            checkpointing=self._checkpointing,
            context=self._context,
            backwards_per_step=self._num_microbatches,
            trace=engine.trace,
        )
        return PreparedPartition(self._stack, self._stack_call, kind, schedule, settings)

    def _other_parts(self) -> dict[str, Callable[[Schedule | None], _Measured]]:
        return {
            "fwd_rest": lambda schedule: self._rest(backward=False),
            "bwd_rest": lambda schedule: self._rest(backward=True),
            "optimizer": lambda schedule: self._optimizer(),
            "grad_bucket": self._buckets,
        }

    def _rest(self, *, backward: bool) -> _Measured:
        if self._model_call is None:
            raise ExecutionError(f"{self._stack.path} was not called from a module around it: no rest to measure")
        return MeasuredRest(
            self._model_call,
            [stack.layers for stack in self._execution.engine.stacks],
            backward=backward,
            context=self._context,
            backwards_per_step=self._num_microbatches,
        )

    def _optimizer(self) -> _Measured:
        optimizers = self._optimizers()
        layer = list(self._stack.layers.children())[-1]
        count = sum(parameter.numel() for parameter in self._execution.module.parameters() if parameter.requires_grad)
        like = getattr(optimizers[0], "_optimizer", optimizers[0]) if optimizers else None
        return MeasuredOptimizer(like, layer, num_parameters=count)

    def _buckets(self, schedule: Schedule | None) -> _Measured:
        reducer = self._execution.reducer
        if reducer is None:
            raise ExecutionError("there is one replica of the model only: no gradients to average")
        return MeasuredBuckets(reducer.buckets, reducer.collectives, schedule)

    # what training calls the model with

    def _see_stack(self, stack: BlockStack, hidden: Tensor, call: BlockCall) -> None:
        if stack == self._stack and torch.is_grad_enabled():
            self._stack_call = StackCall.of(hidden, call)
            self._stop_watching()

    def _see_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._model_call is None and torch.is_grad_enabled():  # the outermost is called first
            self._model_call = ModelCall(module, _detached(args), _detached(dict(kwargs)))

    def _stop_watching(self) -> None:
        if self._execution.engine.on_call == self._see_stack:
            self._execution.engine.on_call = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _ancestors(root: nn.Module, stack: BlockStack) -> list[nn.Module]:
    """Modules around the stack, outermost first, without the root (a LightningModule, whose forward is the user's)."""
    names = stack.path.split(".")[:-1]
    return [root.get_submodule(".".join(names[:depth])) for depth in range(1, len(names) + 1)]


def _detached(value: Any) -> Any:
    """The same arguments without the graphs that tensors among them belong to."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple):
        return tuple(_detached(item) for item in value)
    if isinstance(value, dict):
        return {name: _detached(item) for name, item in value.items()}
    return value
