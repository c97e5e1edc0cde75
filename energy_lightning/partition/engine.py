"""The engine: the recognised stacks of a model, the plan they run, plain or partitioned execution."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import or_
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from energy_lightning.collectives import Collectives, select_collectives
from energy_lightning.partition.autograd import run_stack
from energy_lightning.partition.calls import BlockCall
from energy_lightning.partition.errors import ExecutionError
from energy_lightning.partition.execution import GradientsReady, RunSettings, StackRun, nanobatch_sizes
from energy_lightning.partition.inspection import cache_length, foreign_hook, wanted_outputs
from energy_lightning.partition.lanes import Lane, PhaseSchedules
from energy_lightning.partition.layer_list import OnlyThroughEngine, put_runner_in
from energy_lightning.partition.plain import run_plain
from energy_lightning.partition.random import put_in_step
from energy_lightning.partition.recognition import BlockStack, check_tensor_parallel_size, require_stacks, unknown_part
from energy_lightning.partition.sharding import shard_stack
from energy_lightning.partition.tracing import TraceEvent
from energy_lightning.types import PhasePlan, Plan, PlanError

logger = logging.getLogger(__name__)

CallListener = Callable[[BlockStack, Tensor, BlockCall], None]


def install(
    model: nn.Module,
    *,
    tensor_parallel_group: dist.ProcessGroup | None = None,
    activation_checkpointing: bool = False,
    collectives: Collectives | None = None,
) -> PartitionEngine:
    """Puts an engine in the place of the recognised stacks of `model`, in place, and returns it.

    With a `tensor_parallel_group` of more than one rank, the blocks' parameters become this rank's shards (load full
    checkpoints before); `model` must be the same on all ranks. `collectives` defaults to the best backend for the
    group. Until a plan is applied, execution is sequential. Names and state_dict keys stay as they are.

    Raises UnrecognisedModelError when nothing is recognised, TensorParallelError when the group's size does not fit.
    """
    stacks = require_stacks(model)
    if tensor_parallel_group is not None and dist.get_world_size(tensor_parallel_group) > 1:
        for stack in stacks:  # all checks before any change
            check_tensor_parallel_size(stack, dist.get_world_size(tensor_parallel_group))
        collectives = collectives or select_collectives("auto", tensor_parallel_group)
        for stack in stacks:
            shard_stack(stack, tensor_parallel_group)
            for layer in stack.layers.children():
                layer.register_forward_pre_hook(OnlyThroughEngine())
        put_in_step(tensor_parallel_group, next(model.parameters()).device)
    else:
        collectives = None
    return PartitionEngine(stacks, collectives=collectives, activation_checkpointing=activation_checkpointing)


class PartitionEngine:
    """Runs the stacks of one model. Made by `install`.

    Attributes:
        stacks: what it runs.
        trace: None, or a list to which every operator, launch and wait of partitioned execution is appended.
        on_gradients_ready: called during backward with the parameters of a layer (those that want gradients) once
            param.grad is final for this backward, last layer first; None: nobody listens.
        on_call: called before every forward of a stack with the stack, its input and its other arguments.
    """

    def __init__(
        self, stacks: Sequence[BlockStack], *, collectives: Collectives | None, activation_checkpointing: bool
    ) -> None:
        self.stacks = tuple(stacks)
        self.trace: list[TraceEvent] | None = None
        self.on_gradients_ready: GradientsReady | None = None
        self.on_call: CallListener | None = None
        self._collectives = collectives
        self._activation_checkpointing = activation_checkpointing
        self._plan = Plan.sequential()
        self._warned: set[str] = set()
        for stack in self.stacks:
            runner = _StackRunner(self, stack)
            put_runner_in(stack.owner, stack.row.layers_attribute, runner)
        self._modules = {stack.path: tuple(stack.layers.modules()) for stack in self.stacks}

    @property
    def plan(self) -> Plan:
        """The plan that forwards from now on follow."""
        return self._plan

    @property
    def collectives(self) -> Collectives | None:
        """Of the tensor-parallel group; None where the blocks are not sharded."""
        return self._collectives

    def apply(self, plan: Plan) -> None:
        """Follows `plan` from the next forward on; a backward follows the plan of its forward.

        Of the phases, `nanobatched` and the schedules matter. Activations are split the way forward split them: where
        only one phase is nanobatched, both run as two nanobatches and the other phase's collectives are exposed.

        Raises PlanError for a pipeline plan, and (where there are collectives to launch) for a launch point that the
        architecture does not have.
        """
        if self._collectives is not None:
            for phase in (plan.forward, plan.backward):
                for stack in self.stacks:
                    _check_launch_points(phase, stack)
        if plan.forward.nanobatched != plan.backward.nanobatched:
            self._warn_once("Forward and backward run as two nanobatches: the plan nanobatches one of them.")
        self._plan = plan

    def operator_names(self, key: str) -> tuple[str, ...]:
        """Operators of partition `key` ("fwd_attn", ...) in execution order; of the first stack."""
        return self.stacks[0].row.operator_names(key)

    def run(self, stack: BlockStack, hidden: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """All layers of `stack` on `hidden` (batch, sequence, hidden size), called like the first one."""
        rank = None if self._collectives is None else self._collectives.rank
        call = BlockCall.bind(stack.row.positional, args, kwargs, rank=rank, hidden=hidden)
        if self.on_call is not None:
            self.on_call(stack, hidden, call)
        nanobatched = self._nanobatches(hidden, call)
        if self._collectives is None and not nanobatched:
            return self._run_plain(stack, hidden, args, kwargs)
        obstacle = _obstacle(stack, call) or self._changes(stack)
        hook = foreign_hook(self._modules[stack.path])
        if self._collectives is None and (obstacle or hook):
            self._warn_once(f"{stack.path} runs its plain layers, not nanobatches: {obstacle or hook}")
            return self._run_plain(stack, hidden, args, kwargs)
        if obstacle:
            raise ExecutionError(
                f"{stack.path} is tensor-parallel and runs partitioned only, but {obstacle}. Use "
                "tensor_parallel_size=1, where the plain layers step in"
            )
        if hook:
            self._warn_once(f"{stack.path} runs partitioned, which leaves out {hook}")
        return self._run_partitioned(stack, hidden, call, num_nanobatches=1 + nanobatched)

    def _changes(self, stack: BlockStack) -> str | None:
        """What has been changed in the layers since they were recognised, if it is unknown to the engine."""
        modules = tuple(stack.layers.modules())
        if modules == self._modules[stack.path]:
            return None
        if change := unknown_part(stack.row, stack.layers):
            return change
        self._modules[stack.path] = modules
        return None

    def _nanobatches(self, hidden: Tensor, call: BlockCall) -> bool:
        """Whether this forward runs as two nanobatches."""
        wanted = self._plan.forward.nanobatched or self._plan.backward.nanobatched
        if not wanted or len(hidden) < 2 or not call.splits(len(hidden)):
            return False
        return torch.is_grad_enabled() or (self._collectives is not None and call.cache is None)

    def _run_plain(self, stack: BlockStack, hidden: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        return run_plain(
            list(stack.layers.children()),
            hidden,
            args,
            kwargs,
            checkpointed=self._activation_checkpointing,
            on_gradients_ready=self.on_gradients_ready,
        )

    def _run_partitioned(self, stack: BlockStack, hidden: Tensor, call: BlockCall, *, num_nanobatches: int) -> Tensor:
        layers = list(stack.layers.children())
        if torch.is_grad_enabled() and call.cache is not None:  # an empty cache, which training does not need
            call = replace(call, cache=None)
        wants_gradient = _wants_gradient(hidden, layers)
        settings = RunSettings(
            forward=PhaseSchedules.from_plan(self._plan.forward),
            backward=PhaseSchedules.from_plan(self._plan.backward),
            collectives=self._collectives,
            checkpointed=frozenset(i for i, layer in enumerate(layers) if self._recomputes(layer)),
            trace=self.trace,
            on_gradients_ready=self.on_gradients_ready,
        )
        calls = call.split(nanobatch_sizes(len(hidden), num_nanobatches)) if num_nanobatches > 1 else [call]
        run = StackRun(stack.row, layers, [Lane(own) for own in calls], settings)
        return run_stack(run, hidden, wants_gradient)

    def _recomputes(self, layer: nn.Module) -> bool:
        by_transformers = getattr(layer, "gradient_checkpointing", False) and layer.training
        return self._activation_checkpointing or bool(by_transformers)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)


def _wants_gradient(hidden: Tensor, layers: Sequence[nn.Module]) -> list[bool]:
    """Whether a gradient is wanted at the input of each layer and at the stack's output."""
    if not torch.is_grad_enabled():
        return [False] * (len(layers) + 1)
    trainable = (any(parameter.requires_grad for parameter in layer.parameters()) for layer in layers)
    return list(accumulate(trainable, or_, initial=hidden.requires_grad))


def _obstacle(stack: BlockStack, call: BlockCall) -> str | None:
    """What only the plain layers can do, or None."""
    if outputs := wanted_outputs(stack.config, call.extra):
        return f"the {outputs} of every layer are wanted"
    if call.extra.get("encoder_hidden_states") is not None:
        return "encoder_hidden_states are given"
    if torch.is_grad_enabled() and cache_length(call.cache) > 0:
        return "a gradient with a filled key-value cache is wanted"
    if torch.is_grad_enabled() and call.needs_gradient():
        return "an argument besides the hidden states wants a gradient"
    return None


def _check_launch_points(phase: PhasePlan, stack: BlockStack) -> None:
    for key, schedule in phase.schedules.items():
        if not key.endswith(("_attn", "_mlp")) or schedule.launch is None:
            continue
        allowed = stack.row.operator_names(key)
        if schedule.launch not in allowed:
            raise PlanError(
                f"{phase.phase} schedule of {key!r}: {stack.architecture} has no operator {schedule.launch!r} "
                f"to launch beside; allowed: {', '.join(allowed)}, or null for not overlapped"
            )


class _StackRunner:
    """What the owner of a stack calls instead of its layers."""

    def __init__(self, engine: PartitionEngine, stack: BlockStack) -> None:
        self._engine, self._stack = engine, stack

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._engine.run(self._stack, hidden_states, args, kwargs)
