"""Gradient norms of a model whose parameters are partly sharded over a tensor-parallel group."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.types import StrategyError


def is_sharded(parameter: Tensor) -> bool:
    """Whether this rank holds a part of the parameter (else all of it, as its tensor-parallel peers do)."""
    return getattr(parameter, "tensor_parallel_shard", None) is not None


@torch.no_grad()
def total_grad_norm(parameters: Iterable[Tensor], *, group: dist.ProcessGroup | None, norm_type: float = 2.0) -> Tensor:
    """Norm of all gradients as if nothing were sharded; the same number on every rank of `group`.

    Shards are summed over the group, replicated parameters count once. Collective over `group` (None: no sharding).
    `norm_type` is a positive number; infinity is not supported with a group.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    replicated = [p.grad for p in with_gradient if p.grad is not None and not is_sharded(p)]
    sharded = [p.grad for p in with_gradient if p.grad is not None and is_sharded(p)]
    if group is None:
        return torch.nn.utils.get_total_norm(replicated + sharded, norm_type)
    if not math.isfinite(norm_type) or norm_type <= 0:
        raise StrategyError(f"norm_type must be finite and > 0 with tensor parallelism, got {norm_type}")
    device = with_gradient[0].device if with_gradient else torch.device("cpu")
    powers = torch.stack(
        [torch.nn.utils.get_total_norm(grads, norm_type).to(device, torch.float32) for grads in (replicated, sharded)]
    ).pow(norm_type)
    powers[0] /= dist.get_world_size(group)
    dist.all_reduce(powers, group=group)
    return powers.sum().pow(1.0 / norm_type)


@torch.no_grad()
def clip_grad_norm(
    parameters: Iterable[Tensor], max_norm: float, *, group: dist.ProcessGroup | None, norm_type: float = 2.0
) -> Tensor:
    """Scale the gradients in place so that their total norm is at most `max_norm`; returns the norm before.

    Like `torch.nn.utils.clip_grad_norm_`, with the norm of `total_grad_norm`.
    """
    parameters = list(parameters)
    norm = total_grad_norm(parameters, group=group, norm_type=norm_type)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
