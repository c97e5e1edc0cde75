"""Runs a stack of blocks partition by partition: forward at once, backward when its gradient arrives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from energy_lightning.collectives import Collectives
from energy_lightning.partition.architectures import Architecture
from energy_lightning.partition.errors import ExecutionError
from energy_lightning.partition.groups import Before, OperatorGroup, run_group
from energy_lightning.partition.lanes import Lane, PhaseSchedules
from energy_lightning.partition.order import Step, backward_steps, forward_steps
from energy_lightning.partition.random import RandomState, replayed
from energy_lightning.partition.sums import Sum
from energy_lightning.partition.tracing import TraceEvent

GradientsReady = Callable[[Sequence[nn.Parameter]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How one forward and its backward run.

    Attributes:
        forward, backward: launching of collectives.
        collectives: of the tensor-parallel group; None where the blocks are not sharded.
        checkpointed: layers whose activations are recomputed.
        trace: list that events are appended to, or None.
        on_gradients_ready: called with a layer's parameters when their gradients are final for this backward.
    """

    forward: PhaseSchedules = field(default_factory=PhaseSchedules)
    backward: PhaseSchedules = field(default_factory=PhaseSchedules)
    collectives: Collectives | None = None
    checkpointed: frozenset[int] = frozenset()
    trace: list[TraceEvent] | None = None
    on_gradients_ready: GradientsReady | None = None


class StackRun:
    """One forward of a stack, with what its backward needs.

    `wants_gradient[i]` says whether the input of layer i wants a gradient; the last entry is the stack's output. The
    steps are public for whoever runs single partitions (see profiling.py); training calls `forward` and `backward`.
    """

    def __init__(self, architecture: Architecture, layers: Sequence[Any], lanes: list[Lane], settings: RunSettings):
        self._architecture = architecture
        self._layers = layers
        self._lanes = lanes
        self._settings = settings
        self.wants_gradient = [False] * (len(layers) + 1)
        self._autocast = _autocast_now(lanes[0].call.device)
        self._ready_lanes: dict[int, int] = {}

    def forward(self, hidden: Tensor, wants_gradient: Sequence[bool]) -> Tensor:
        """(batch, sequence, hidden size) -> the same; grad mode must be off, layers record graphs where needed."""
        self.wants_gradient = list(wants_gradient)
        pending: Sum | None = None
        for lane, piece in zip(
            self._lanes, torch.split(hidden.detach(), nanobatch_sizes(len(hidden), len(self._lanes))), strict=True
        ):
            lane.h = piece
        for step in forward_steps(len(self._layers), len(self._lanes)):
            pending = self.forward_step(step, pending)
        if pending is not None:
            pending.launch()
        outputs = [self.leave(index, lane) for index, lane in enumerate(self._lanes)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def forward_step(self, step: Step, pending: Sum | None) -> Sum:
        """One forward partition on its lane, `pending` launched beside it; returns the partial sum it ends in."""
        lane, layer = self._lanes[step.nanobatch], self._layers[step.layer]
        recompute = step.layer in self._settings.checkpointed and self.wants_gradient[step.layer + 1]
        if step.key == "fwd_attn":
            lane.h_wants = lane.y_wants = self.wants_gradient[step.layer]
            if recompute:
                before = self._layers[step.layer - 1] if step.layer else None
                lane.take_checkpoint(step.layer, fold=before is not None and self._architecture.entry_is_sum(before))
        if recompute and self._architecture.draws_random(layer):
            lane.random_states[step.body] = RandomState.capture(lane.call.device)
        with torch.set_grad_enabled(self.wants_gradient[step.layer + 1] and not recompute):
            return self._compute(step, pending, self._settings.forward)

    def _compute(self, step: Step, pending: Sum | None, phase: PhaseSchedules) -> Sum:
        """Glue and body of a forward or recomputed partition; keeps their graphs in grad mode."""
        lane = self._lanes[step.nanobatch]
        before = self._beside(step, pending, phase)
        inputs = lane.enter()
        (h, x), glue = run_group({"norm_0": self._glue(step.body)}, inputs, (lane.h_wants, lane.y_wants), before)
        (y,), body = run_group(self._operators(step, lane), (x,), (glue.edges[1] is not None,), before)
        if torch.is_grad_enabled():
            lane.h_wants, lane.y_wants = glue.edges[0] is not None, body.edges[0] is not None
            lane.glues[step.body], lane.bodies[step.body] = glue, body
        if pending is not None:
            pending.launch()
        lane.h, lane.y = h, self._sum(y, step, phase)
        return lane.y

    def leave(self, index: int, lane: Lane) -> Tensor:
        """What is left after the last body of a lane: its part of the stack's output."""
        end = 2 * len(self._layers)
        inputs = lane.enter()
        lane.release_state()
        with torch.set_grad_enabled(self.wants_gradient[-1]):
            before = partial(self._record_operator, Step("fwd_rest", len(self._layers) - 1, index))
            outputs, glue = run_group({"norm_0": self._glue(end)}, inputs, (lane.h_wants, lane.y_wants), before)
        if self.wants_gradient[-1]:
            lane.glues[end] = glue
        return outputs[0]

    def backward(self, gradient: Tensor, *, keep_graph: bool) -> Tensor | None:
        """Gradient of the output -> gradient of the input (None if unwanted); parameters accumulate theirs."""
        first = self.wants_gradient[1:].index(True)
        self._ready_lanes.clear()
        for lane, piece in zip(
            self._lanes, torch.split(gradient, nanobatch_sizes(len(gradient), len(self._lanes))), strict=True
        ):
            lane.dh, lane.dx = piece, None
        layers = range(first, len(self._layers))
        pending: Sum | None = None
        for step in backward_steps(layers, len(self._lanes), self._settings.checkpointed):
            run = self.recompute_step if step.key.startswith("rec") else self.backward_step
            pending = run(step, pending, keep_graph)
        if pending is not None:
            pending.launch()
        inputs = [self._enter_backward(first, index, keep_graph) for index in range(len(self._lanes))]
        received = [piece for piece in inputs if piece is not None]
        if not self.wants_gradient[first] or first > 0:
            return None
        return torch.cat(received) if len(received) > 1 else received[0]

    def recompute_step(self, step: Step, pending: Sum | None, keep_graph: bool) -> Sum | None:
        """A forward partition again, from its layer's checkpoint, in backward."""
        lane = self._lanes[step.nanobatch]
        if step.key == "rec_attn":
            kept = lane.checkpoints[step.layer]
            lane.h, lane.y = kept.h, kept.y
            lane.h_wants = lane.y_wants = self.wants_gradient[step.layer]
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self._autocast())
            stack.enter_context(replayed(lane.random_states.get(step.body)))
            output = self._compute(step, pending, self._settings.backward)
        if step.key == "rec_attn":
            return output
        lane.release_state()  # the layer's output is known: its sum is not needed again
        return None

    def backward_step(self, step: Step, pending: Sum | None, keep_graph: bool) -> Sum | None:
        """The gradient of one body and of the glue after it; returns the partial sum of the body's input gradient."""
        lane, phase = self._lanes[step.nanobatch], self._settings.backward
        before = self._beside(step, pending, phase)
        dy = self._backward_glue(step.body + 1, step.nanobatch, before, keep_graph)
        body = _take(lane.bodies, step.body, keep_graph)
        names = tuple(self._architecture.operator_names(step.key))
        watched = names if self._settings.trace is not None else (phase.of(step.key).launch or "",)
        gradients = body.backward((dy,), before, watched, keep_graph=keep_graph)
        if pending is not None:
            pending.launch()
        lane.dx = self._sum(gradients[0], step, phase) if 0 in gradients else None
        return lane.dx

    def _backward_glue(self, body: int, nanobatch: int, before: Before, keep_graph: bool) -> Tensor | None:
        """Backward of the glue in front of `body`; returns the gradient of its y and updates the lane's dh."""
        lane = self._lanes[nanobatch]
        dx = None if lane.dx is None else lane.dx.result()
        before("norm_0")
        glue = _take(lane.glues, body, keep_graph)
        gradients = glue.backward((lane.dh, dx)[: len(glue.edges)], before, (), keep_graph=keep_graph)
        lane.dh, dy = gradients.get(0), gradients.get(1)
        layer, is_mlp = divmod(body, 2)
        if layer < len(self._layers) and not is_mlp:
            if layer in lane.checkpoints and lane.checkpoints[layer].folded:
                dy = lane.dh
            self._report_ready(layer)
        return dy

    def _enter_backward(self, layer: int, nanobatch: int, keep_graph: bool) -> Tensor | None:
        """Backward of the first glue that wants one: the way out of the stack."""
        before = partial(self._record_operator, Step("bwd_rest", layer, nanobatch))
        self._backward_glue(2 * layer, nanobatch, before, keep_graph)
        return self._lanes[nanobatch].dh

    def _report_ready(self, layer: int) -> None:
        self._ready_lanes[layer] = self._ready_lanes.get(layer, 0) + 1
        ready = self._settings.on_gradients_ready
        if ready is not None and self._ready_lanes[layer] == len(self._lanes):
            ready([p for p in self._layers[layer].parameters() if p.requires_grad])

    def _beside(self, step: Step, pending: Sum | None, phase: PhaseSchedules) -> Before:
        """Called before each operator of `step`: launches the pending collective where the schedule says."""
        schedule = phase.of(step.key)
        if pending is not None and schedule.launch is None:
            pending.launch(schedule if phase.overlapped else None)
            pending.result()

        def before(operator: str) -> None:
            if pending is not None and operator == schedule.launch:
                pending.launch(schedule, step, operator)
            self._record_operator(step, operator)

        return before

    def _record_operator(self, step: Step, operator: str) -> None:
        if self._settings.trace is not None:
            self._settings.trace.append(TraceEvent("op", step.key, operator, step.nanobatch, step.layer))

    def _sum(self, tensor: Tensor, source: Step, phase: PhaseSchedules) -> Sum:
        return Sum(tensor, source, self._settings.collectives, phase.of(source.key), self._settings.trace)

    def _glue(self, body: int) -> Callable[..., tuple[Tensor, ...]]:
        layer, is_mlp = divmod(body, 2)
        before = self._layers[layer if is_mlp else layer - 1] if body else None
        after = self._layers[layer] if layer < len(self._layers) else None
        row = self._architecture
        glue = row.leave if after is None else row.enter_mlp if is_mlp else row.enter_attention
        return partial(glue, before, after)

    def _operators(self, step: Step, lane: Lane) -> Mapping[str, Callable[..., tuple[Tensor, ...]]]:
        body = self._architecture.mlp if step.body % 2 else self._architecture.attention
        return {name: partial(operator, self._layers[step.layer], lane.call) for name, operator in body.items()}


def nanobatch_sizes(batch_size: int, num_nanobatches: int) -> list[int]:
    """As even as possible, larger ones first."""
    small, num_large = divmod(batch_size, num_nanobatches)
    return [small + (index < num_large) for index in range(num_nanobatches)]


def _take(groups: dict[int, OperatorGroup], body: int, keep: bool) -> OperatorGroup:
    if body not in groups:
        raise ExecutionError(
            "backward ran a second time through a stack of blocks whose activations are freed: "
            "pass retain_graph=True to the backward before it"
        )
    return groups[body] if keep else groups.pop(body)


def _autocast_now(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """A maker of the autocast context that is active now, for work that happens later."""
    kind = device.type
    return partial(
        torch.autocast,
        kind,
        dtype=torch.get_autocast_dtype(kind),
        enabled=torch.is_autocast_enabled(kind),
        cache_enabled=torch.is_autocast_cache_enabled(),
    )
