"""A module that computes the same as another one, on weights of its own: for measuring without touching the model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from energy_lightning.partition.architectures.base import SHARD_ATTRIBUTE


def twin_of(module: nn.Module) -> nn.Module:
    """A copy with the same weights in memory of their own, without gradients and without any hook.

    Configuration objects and buffers are shared: they are read only. `copy.deepcopy` would take along whatever hooks
    refer to, a whole Trainer for instance.
    """
    return _twin(module, {})


def _twin(module: nn.Module, known: dict[int, nn.Parameter]) -> nn.Module:
    twin = copy.copy(module)  # its dictionaries are the module's own until they are replaced here
    for name, value in vars(module).items():
        if "_hooks" in name and isinstance(value, dict):
            vars(twin)[name] = type(value)()
    twin._parameters = {name: _own(parameter, known) for name, parameter in module._parameters.items()}
    twin._buffers = dict(module._buffers)
    twin._modules = {name: None if child is None else _twin(child, known) for name, child in module._modules.items()}
    return twin


def _own(parameter: Tensor | None, known: dict[int, nn.Parameter]) -> nn.Parameter | None:
    if parameter is None:
        return None
    if id(parameter) not in known:
        with torch.no_grad():
            own = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
        if hasattr(parameter, SHARD_ATTRIBUTE):
            setattr(own, SHARD_ATTRIBUTE, getattr(parameter, SHARD_ATTRIBUTE))
        known[id(parameter)] = own
    return known[id(parameter)]
