"""What a training step does beside its blocks, run alone and again and again for measuring; the model is only read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from energy_lightning.collectives import Collectives
from energy_lightning.parallel.buckets import GradientBucket
from energy_lightning.parallel.reducer import start_mean
from energy_lightning.partition.errors import ExecutionError
from energy_lightning.partition.profiling import ForwardContext
from energy_lightning.partition.random import RandomState, replayed
from energy_lightning.partition.twins import twin_of
from energy_lightning.types import Schedule


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of the model around the blocks, as training made it.

    Attributes:
        model: what was called (a transformers model with its head, or as much of it as training uses).
        args, kwargs: its arguments, detached.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return next(self.model.parameters()).device


class MeasuredRest:
    """The model without its blocks (embedding, norm, head, loss): forward, or backward of one recorded forward.

    Args:
        call: of the model in training.
        stacks: the layer lists of its blocks, left out.
        backward: measure backward.
        context: what forward runs in.
        backwards_per_step: backwards between two resets of the gradients, as in training.

    Raises ExecutionError for a model whose outputs want no gradient.
    """

    def __init__(
        self,
        call: ModelCall,
        stacks: Sequence[nn.Module],
        *,
        backward: bool,
        context: ForwardContext,
        backwards_per_step: int,
    ) -> None:
        self._call, self._context, self._per_step, self._num_runs = call, context, backwards_per_step, 0
        self._twin: nn.Module | None = twin_of(call.model, emptied=stacks)
        self._graph: tuple[Tensor, Tensor] | None = None
        if backward:
            with self._apart():
                output = _differentiable(self._forward(self._twin))
                self._graph = output, torch.ones_like(output)
        self.run(1)

    def run(self, num_runs: int) -> None:
        """Execute it that often; returns when everything is issued."""
        if self._twin is None:
            raise ExecutionError("the rest of the model has been released: prepare it again")
        with self._apart():
            for _ in range(num_runs):
                if self._graph is None:
                    self._forward(self._twin)
                else:
                    self._backward(self._twin, *self._graph)

    def close(self) -> None:
        """Free its memory."""
        self._twin = self._graph = None

    def _forward(self, twin: nn.Module) -> Any:
        with self._context():
            return twin(*self._call.args, **self._call.kwargs)

    def _backward(self, twin: nn.Module, output: Tensor, gradient: Tensor) -> None:
        if self._num_runs % self._per_step == 0:
            twin.zero_grad(set_to_none=True)
        torch.autograd.backward(output, gradient, retain_graph=True)
        self._num_runs += 1

    @contextmanager
    def _apart(self) -> Iterator[None]:
        device = self._call.device
        with replayed(RandomState.capture(device)), torch.enable_grad():
            yield


def _differentiable(output: Any) -> Tensor:
    """The loss of a model's output, else its first tensor that wants a gradient."""
    values = [getattr(output, "loss", None), *(output.values() if isinstance(output, Mapping) else (output,))]
    for value in values:
        for leaf in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                return leaf
    raise ExecutionError(
        f"no output of {type(output).__name__} wants a gradient: the rest of the model has no backward"
    )


class MeasuredOptimizer:
    """Steps of an optimizer like the real one on copies of one layer's weights, as often as it fills the model.

    Args:
        like: the real optimizer; where its class cannot be made from its defaults, AdamW takes its place.
        layer: whose weights are copied; random gradients.
        num_parameters: that the real one updates on this rank.
    """

    def __init__(self, like: Optimizer | None, layer: nn.Module, *, num_parameters: int) -> None:
        generator = torch.Generator(next(layer.parameters()).device).manual_seed(0)
        trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        if not trained:
            raise ExecutionError(
                f"{type(layer).__name__} has no weights to train: an optimizer step cannot be measured"
            )
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in trained]
        for own in copies:
            own.grad = torch.randn(own.shape, generator=generator, dtype=own.dtype, device=own.device)
        self._optimizer: Optimizer | None = _optimizer_like(like, copies)
        self._repeats = max(1, round(num_parameters / sum(own.numel() for own in copies)))
        self.run(1)  # the first step makes the state

    def run(self, num_runs: int) -> None:
        """Execute it that often; returns when everything is issued."""
        if self._optimizer is None:
            raise ExecutionError("the optimizer has been released: prepare it again")
        for _ in range(num_runs * self._repeats):
            self._optimizer.step()

    def close(self) -> None:
        """Free its memory."""
        self._optimizer = None


def _optimizer_like(like: Optimizer | None, parameters: list[nn.Parameter]) -> Optimizer:
    if like is None:
        return AdamW(parameters)
    known = inspect.signature(type(like)).parameters
    options = {name: value for name, value in like.defaults.items() if name in known}
    try:
        return type(like)(parameters, **options)
    except (TypeError, ValueError):
        return AdamW(parameters)


class MeasuredBuckets:
    """The averaging of all gradients of one step over the replicas, in the real buckets' sizes, one after the other.

    All buckets go through one tensor of each type: how they overlap with each other is the backend's business.
    """

    def __init__(self, buckets: Sequence[GradientBucket], collectives: Collectives, schedule: Schedule | None) -> None:
        self._collectives, self._schedule = collectives, schedule or Schedule()
        self._buffers: list[Tensor] = []
        largest: dict[torch.dtype, Tensor] = {}
        for like in sorted((bucket.buffer for bucket in buckets), key=Tensor.numel, reverse=True):
            own = largest.setdefault(like.dtype, torch.ones_like(like))
            self._buffers.append(own[: like.numel()])
        self.run(1)

    def run(self, num_runs: int) -> None:
        """Execute it that often; returns when everything is issued."""
        if not self._buffers:
            raise ExecutionError("the gradient buckets have been released: prepare them again")
        for _ in range(num_runs):
            for handle in [start_mean(self._collectives, buffer, self._schedule) for buffer in self._buffers]:
                handle.wait()

    def close(self) -> None:
        """Free its memory."""
        self._buffers = []
