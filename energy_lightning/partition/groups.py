"""Operators run together with an autograd graph of their own, whose backward can run whenever the schedule wants.

A group starts at inlets, which stand for its inputs without keeping them in memory, and ends at gradient edges,
which stand for its outputs in the same way: what stays alive is what the operators themselves saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Before = Callable[[str], None]
"""Called with an operator's name just before the operator (forward) or its gradient (backward) runs."""


class _Inlet(torch.autograd.Function):
    """Passes one input on and puts its gradient into a slot under the input's index; the graph ends here."""

    @staticmethod
    def forward(ctx: Any, slot: dict[int, Tensor], index: int, anchor: Tensor, tensor: Tensor) -> Tensor:
        """`anchor` makes autograd record the node whatever `tensor` is."""
        ctx.slot, ctx.index = slot, index
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        """Ends here."""
        ctx.slot[ctx.index] = gradient
        return None, None, None, None


@dataclass(slots=True)
class OperatorGroup:
    """The graph that a run of operators left behind.

    Attributes:
        edges: per output, where its gradient enters, or None where no gradient is wanted.
        nodes: per operator, the graph nodes that made its outputs.
    """

    edges: tuple[GradientEdge | None, ...]
    nodes: dict[str, tuple[Node, ...]]
    _slot: dict[int, Tensor] = field(default_factory=dict)

    def backward(
        self, gradients: Sequence[Tensor | None], before: Before, watched: Collection[str], *, keep_graph: bool
    ) -> dict[int, Tensor]:
        """Accumulates parameter gradients and returns {input index: gradient}, inputs without one left out.

        `gradients` belong to the outputs (None: zero). `before` is called for the operators in `watched`.
        """
        pairs = [
            (edge, grad)
            for edge, grad in zip(self.edges, gradients, strict=True)
            if edge is not None and grad is not None
        ]
        if not pairs:
            return {}
        hooks = [
            node.register_prehook(hook)
            for name in watched
            for hook in [_once(partial(before, name))]
            for node in self.nodes.get(name, ())
        ]
        try:
            edges, grads = zip(*pairs, strict=True)
            torch.autograd.backward(edges, grads, retain_graph=keep_graph)
        finally:
            for hook in hooks:
                hook.remove()
        received = dict(self._slot)
        self._slot.clear()
        return received


def _once(call: Callable[[], None]) -> Callable[[Any], None]:
    """An operator has a node per output; only the first to run announces it."""
    fired = False

    def hook(_gradients: Any) -> None:
        nonlocal fired
        if not fired:
            fired = True
            call()

    return hook


def run_group(
    operators: Mapping[str, Callable[..., tuple[Tensor, ...]]],
    inputs: Sequence[Tensor | None],
    wants_gradient: Sequence[bool],
    before: Before,
) -> tuple[tuple[Tensor, ...], OperatorGroup]:
    """Runs operators in order, each on the outputs of the one before, recording a graph if grad mode is on.

    Returns the last operator's outputs, detached, and the group.
    """
    slot: dict[int, Tensor] = {}
    anchor = torch.empty(0, requires_grad=True)
    values: tuple[Any, ...] = tuple(
        _Inlet.apply(slot, index, anchor, tensor)  # type: ignore[no-untyped-call]
        if wanted and tensor is not None and torch.is_grad_enabled()
        else tensor
        for index, (tensor, wanted) in enumerate(zip(inputs, wants_gradient, strict=True))
    )
    nodes: dict[str, tuple[Node, ...]] = {}
    seen: set[Node] = set()
    for name, operator in operators.items():
        before(name)
        values = operator(*values)
        made = [value.grad_fn for value in values if value.grad_fn is not None]
        nodes[name] = tuple(node for node in made if node not in seen)
        seen.update(made)
    edges = tuple(get_gradient_edge(value) if value.requires_grad else None for value in values)
    return tuple(value.detach() for value in values), OperatorGroup(edges, nodes, slot)
