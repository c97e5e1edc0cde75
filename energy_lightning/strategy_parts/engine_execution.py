"""A model with recognised blocks: the partition engine in the blocks' place, and our own gradient reduction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from energy_lightning.collectives import Collectives
from energy_lightning.parallel.clipping import clip_grad_norm, is_sharded
from energy_lightning.parallel.reducer import GradientReducer, broadcast_module
from energy_lightning.partition import find_stacks, install, sharding
from energy_lightning.partition.removal import remove_engine
from energy_lightning.strategy_parts.communication import Communication
from energy_lightning.types import Plan, Schedule, StrategyError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class EngineExecution:
    """A module whose blocks run in the partition engine, sharded and replicated over a device mesh.

    Args:
        module: the LightningModule, on its device; changed in place. Rank 0's weights are used on all ranks.
        mesh: dimensions ("data_parallel", "tensor_parallel"), or None for a single process.
        activation_checkpointing: recompute the blocks' activations in backward.
        bucket_cap_bytes: size of a gradient bucket; None: gradients are not reduced (evaluation).
        communication: opens the collectives of both dimensions; closed by `close`.

    Collective over all ranks. Raises StrategyError for a module whose weights are still sharded.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: DeviceMesh | None,
        activation_checkpointing: bool,
        bucket_cap_bytes: int | None,
        communication: Communication | None = None,
    ) -> None:
        self.module = module
        self._communication = communication or Communication()
        self.tensor_parallel_group = _group(mesh, "tensor_parallel")
        data_parallel_group = _group(mesh, "data_parallel")
        if any(is_sharded(parameter) for parameter in module.parameters()):
            raise StrategyError(
                "the weights are still sharded from a run that failed, each rank holds a part: build the model anew "
                "and give fit(ckpt_path=...) the last checkpoint"
            )
        if mesh is not None and mesh.size() > 1:
            broadcast_module(module)
        paths = [stack.path for stack in find_stacks(module)]
        self.engine = install(
            module,
            tensor_parallel_group=self.tensor_parallel_group,
            activation_checkpointing=activation_checkpointing,
            collectives=self._collectives("tensor_parallel", self.tensor_parallel_group),
        )
        self.reducer: GradientReducer | None = None
        reduced = data_parallel_group if bucket_cap_bytes is not None else None
        replicas = self._collectives("data_parallel", reduced)
        if replicas is not None and bucket_cap_bytes is not None:
            self.reducer = GradientReducer(
                module.parameters(),
                announced=[p for path in paths for p in module.get_submodule(path).parameters()],
                collectives=replicas,
                bucket_cap_bytes=bucket_cap_bytes,
            )
            self.engine.on_gradients_ready = self.reducer.mark_ready
        self._reduces = True

    def _collectives(self, role: str, group: dist.ProcessGroup | None) -> Collectives | None:
        return None if group is None else self._communication.open(role, group)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, gradients accumulate on each rank and are not reduced."""
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    def before_backward(self, loss: Tensor) -> None:
        """Arrange for the gradients of the next backward through `loss` to be means over the replicas."""
        if self.reducer is not None and self._reduces:
            self.reducer.prepare(loss)

    def apply(self, plan: Plan) -> None:
        """Use the plan's schedules from the next step on. Raises PlanError where the plan does not fit the blocks."""
        self.engine.apply(plan)
        if self.reducer is not None:
            self.reducer.schedule = plan.backward.schedules.get("grad_bucket", Schedule())

    def clip_grad_norm(self, parameters: Any, max_norm: float) -> Tensor:
        """Like torch's, with the norm over all shards. Collective over the tensor-parallel group."""
        return clip_grad_norm(parameters, max_norm, group=self.tensor_parallel_group)

    def module_state_dict(self) -> dict[str, Any]:
        """The module's state dict with full weights, under the plain model's keys. Collective."""
        if self.tensor_parallel_group is None:
            return dict(self.module.state_dict())
        return dict(sharding.full_state_dict(self.module, self.tensor_parallel_group))

    def load_module_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool) -> None:
        """Load full weights, keeping this rank's part of the sharded ones."""
        if self.tensor_parallel_group is None:
            self.module.load_state_dict(state_dict, strict=strict)
        else:
            sharding.load_full_state_dict(self.module, state_dict, self.tensor_parallel_group, strict=strict)

    def optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's state dict with full state, as the plain model's optimizer has it. Collective."""
        if self.tensor_parallel_group is None:
            return optimizer.state_dict()
        return dict(sharding.full_optimizer_state_dict(optimizer, self.tensor_parallel_group))

    def load_optimizer_state_dict(self, optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
        """Load full optimizer state, keeping this rank's part of the sharded."""
        if self.tensor_parallel_group is None:
            optimizer.load_state_dict(dict(state_dict))
        else:
            local = sharding.local_optimizer_state_dict(optimizer, state_dict, self.tensor_parallel_group)
            optimizer.load_state_dict(local)

    def close(self, *, restore: bool) -> None:
        """Stop reducing and, with `restore`, make the module plain again, full weights on every rank (collective).

        Without, shards stay where there are any: ranks that are out of step cannot gather them.
        """
        if self.reducer is not None:
            self.reducer.close()
        if restore or self.tensor_parallel_group is None:
            remove_engine(self.engine.stacks, self.tensor_parallel_group)
        self._communication.close(in_step=restore)


def _group(mesh: DeviceMesh | None, name: str) -> dist.ProcessGroup | None:
    """The group of one mesh dimension, or None where it has a single rank."""
    if mesh is None or mesh[name].size() == 1:
        return None
    return mesh.get_group(name)
