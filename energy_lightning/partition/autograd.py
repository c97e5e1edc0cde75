"""The stack of blocks as one node of the user's autograd graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from energy_lightning.partition.errors import ExecutionError
from energy_lightning.partition.execution import StackRun


class _StackFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: StackRun, wants_gradient: list[bool], hidden: Tensor, anchor: Tensor) -> Tensor:
        ctx.run = run
        return run.forward(hidden, wants_gradient)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor | None, None]:
        if torch.is_grad_enabled():
            raise ExecutionError(
                "backward with create_graph=True does not reach through the partition engine: "
                "use a plan without nanobatches and tensor_parallel_size=1 for double backward"
            )
        if not torch.autograd._is_checkpoint_valid():  # type: ignore[no-untyped-call]
            raise ExecutionError(
                "torch.autograd.grad() and backward(inputs=...) do not reach through the partition engine, whose "
                "blocks accumulate into param.grad: call backward() without inputs, or use a plan without "
                "nanobatches and tensor_parallel_size=1"
            )
        keep_graph = torch._C._autograd._get_current_graph_task_keep_graph()
        return None, None, ctx.run.backward(gradient, keep_graph=keep_graph), None


def run_stack(run: StackRun, hidden: Tensor, wants_gradient: list[bool]) -> Tensor:
    """Runs `run` on `hidden`; where a gradient is wanted, the output's backward runs the stack's.

    `wants_gradient` as in StackRun.forward.
    """
    if not wants_gradient[-1]:
        with torch.no_grad():
            return run.forward(hidden, wants_gradient)
    anchor = torch.empty(0, requires_grad=True)  # parameters want gradients even where `hidden` does not
    output: Tensor = _StackFunction.apply(run, wants_gradient, hidden, anchor)  # type: ignore[no-untyped-call]
    return output


class _Announce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, anchor: Tensor, announce: Callable[[], None]) -> Tensor:
        ctx.announce = announce
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.announce()
        return gradient, None, None


def announced(hidden: Tensor, announce: Callable[[], None]) -> Tensor:
    """The input of a layer, made to call `announce` when backward has left the layer.

    Autograd accumulates a layer's parameter gradients before it goes on to the layer's input.
    """
    anchor = torch.empty(0, requires_grad=True)
    output: Tensor = _Announce.apply(hidden, anchor, announce)  # type: ignore[no-untyped-call]
    return output
