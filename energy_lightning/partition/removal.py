"""Takes an engine out of its model again: plain layers with full weights, as before `install`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from energy_lightning.partition.layer_list import OnlyThroughEngine, PartitionedLayers, _SetRunning
from energy_lightning.partition.recognition import BlockStack
from energy_lightning.partition.sharding import full_tensor, shard_of


def remove_engine(stacks: Sequence[BlockStack], tensor_parallel_group: dist.ProcessGroup | None) -> None:
    """Undo `install` for `stacks`, in place. Parameter objects stay; gradients are dropped where weights change shape.

    A collective over the group that the weights are sharded over (None: they are not).
    """
    for stack in stacks:
        layers = stack.layers
        for layer in layers.children():
            _remove_hooks(layer, OnlyThroughEngine)
            for module in layer.modules():
                _restore(module, tensor_parallel_group)
        if isinstance(layers, PartitionedLayers):
            plain = nn.ModuleList(layers.children())
            plain.training = layers.training
            setattr(stack.owner, stack.row.layers_attribute, plain)
        _remove_hooks(stack.owner, _SetRunning)


@torch.no_grad()
def _restore(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    for parameter in module.parameters(recurse=False):
        shard = shard_of(parameter)
        if shard is None or group is None:
            continue
        parameter.grad = None
        parameter.data = full_tensor(parameter, shard, group)
        del parameter.tensor_parallel_shard  # type: ignore[attr-defined]
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape


def _remove_hooks(module: nn.Module, hook_type: type) -> None:
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(hook, hook_type):
                del hooks[key]
                module._forward_hooks_always_called.pop(key, None)
