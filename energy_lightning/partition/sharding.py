"""Tensor-parallel sharding: a parameter stays a plain nn.Parameter and holds this rank's part of the full one.

DTensor would cost a dispatch per optimizer operation and cannot share a foreach call with plain tensors. What a
parameter holds is written on it as `tensor_parallel_shard`. Checkpoints are consolidated: full tensors under the
plain model's names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from energy_lightning.partition.architectures.base import SHARD_ATTRIBUTE
from energy_lightning.partition.recognition import BlockStack, check_tensor_parallel_size

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor cut into equal parts along `dim`, in rank order of the tensor-parallel group."""

    dim: int


def shard_of(parameter: Tensor) -> Shard | None:
    """How a parameter is sharded; None: every rank holds all of it."""
    return getattr(parameter, SHARD_ATTRIBUTE, None)


def local_part(full: Tensor, shard: Shard, group: dist.ProcessGroup) -> Tensor:
    """This rank's part of a full tensor, in memory of its own."""
    return full.chunk(dist.get_world_size(group), dim=shard.dim)[dist.get_rank(group)].clone()


def full_tensor(tensor: Tensor, shard: Shard, group: dist.ProcessGroup) -> Tensor:
    """The full tensor that `tensor` is this rank's part of. A collective: all ranks of `group` call it."""
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.detach().contiguous(), group=group)
    return torch.cat(parts, dim=shard.dim)


def shard_stack(stack: BlockStack, group: dist.ProcessGroup) -> None:
    """Cuts the linears of every block to this rank's heads and columns, in place. Parameter objects stay the same."""
    size = dist.get_world_size(group)
    check_tensor_parallel_size(stack, size)
    for layer in stack.layers.children():
        for names, dim in ((stack.row.column_linears, 0), (stack.row.row_linears, 1)):
            for name in names:
                _shard_linear(layer.get_submodule(name), dim, group)


def _shard_linear(linear: nn.Module, dim: int, group: dist.ProcessGroup) -> None:
    assert isinstance(linear, nn.Linear)
    _shard_parameter(linear.weight, Shard(dim), group)
    if dim == 0 and linear.bias is not None:  # row-parallel: the bias is added once, after the sum
        _shard_parameter(linear.bias, Shard(0), group)
    linear.out_features, linear.in_features = linear.weight.shape


def _shard_parameter(parameter: Tensor, shard: Shard, group: dist.ProcessGroup) -> None:
    with torch.no_grad():
        gradient, parameter.grad = parameter.grad, None
        parameter.data = local_part(parameter.data, shard, group)
        parameter.grad = None if gradient is None else local_part(gradient, shard, group)
    setattr(parameter, SHARD_ATTRIBUTE, shard)


def full_state_dict(module: nn.Module, group: dist.ProcessGroup) -> dict[str, Any]:
    """As module.state_dict(), with full tensors. A collective: all ranks of `group` call it."""
    state = module.state_dict(keep_vars=True)
    full = {}
    for name, value in state.items():
        shard = shard_of(value) if isinstance(value, Tensor) else None
        if shard is not None:
            full[name] = full_tensor(value, shard, group)
        else:
            full[name] = value.detach() if isinstance(value, Tensor) else value
    return full


def load_full_state_dict(
    module: nn.Module, state: Mapping[str, Any], group: dist.ProcessGroup, *, strict: bool = True
) -> Any:
    """As module.load_state_dict(), from full tensors; every rank takes its part. Returns what that returns."""
    own = module.state_dict(keep_vars=True)
    local = {}
    for name, value in state.items():
        shard = shard_of(own[name]) if name in own else None
        local[name] = value if shard is None else local_part(value, shard, group)
    return module.load_state_dict(local, strict=strict)


def full_optimizer_state_dict(optimizer: torch.optim.Optimizer, group: dist.ProcessGroup) -> dict[str, Any]:
    """As optimizer.state_dict(), where states shaped like a sharded parameter are full. A collective.

    A state of another shape that is no scalar (a factored second moment, say) cannot be told apart from its full
    form: it stays this rank's, with a warning.
    """
    state = optimizer.state_dict()
    parameters = _parameters(optimizer)
    full = {}
    for index, values in state["state"].items():
        parameter = parameters[index]
        full[index] = {
            name: full_tensor(value, shard, group) if (shard := _state_shard(parameter, name, value)) else value
            for name, value in values.items()
        }
    return {**state, "state": full}


def local_optimizer_state_dict(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], group: dist.ProcessGroup
) -> dict[str, Any]:
    """The inverse of full_optimizer_state_dict for `optimizer`, ready for its load_state_dict."""
    parameters = _parameters(optimizer)
    local = {}
    for index, values in state["state"].items():
        parameter = parameters[index]
        shard = shard_of(parameter)
        full_shape = None if shard is None else _full_shape(parameter, shard, dist.get_world_size(group))
        local[index] = {
            name: local_part(value, shard, group)
            if shard is not None and isinstance(value, Tensor) and value.shape == full_shape
            else value
            for name, value in values.items()
        }
    return {**state, "state": local}


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters in the order in which optimizer.state_dict() numbers them."""
    return [parameter for parameter_group in optimizer.param_groups for parameter in parameter_group["params"]]


def _state_shard(parameter: Tensor, name: str, value: Any) -> Shard | None:
    shard = shard_of(parameter)
    if shard is None or not isinstance(value, Tensor) or value.dim() == 0:
        return None
    if value.shape == parameter.shape:
        return shard
    logger.warning(
        "Optimizer state %r of a sharded parameter has shape %s, not the parameter's %s: the checkpoint holds one "
        "rank's part of it",
        name,
        tuple(value.shape),
        tuple(parameter.shape),
    )
    return None


def _full_shape(parameter: Tensor, shard: Shard, size: int) -> torch.Size:
    shape = list(parameter.shape)
    shape[shard.dim] *= size
    return torch.Size(shape)
