"""A module that computes what another one does and leaves no trace in it: for measuring without touching the model."""

from __future__ import annotations

import copy
from collections.abc import Collection

from torch import Tensor, nn

from energy_lightning.partition.architectures.base import SHARD_ATTRIBUTE


def twin_of(module: nn.Module, *, emptied: Collection[nn.Module] = ()) -> nn.Module:
    """A copy whose weights lie in the same memory, whose gradients are its own, and which has no hooks.

    Reading is all that forward and backward do to weights, so nothing is doubled. Configuration objects and buffers are
    shared. In the place of the layer lists in `emptied` stand empty ones. `copy.deepcopy` would take along whatever
    hooks refer to, a whole Trainer for instance.
    """
    return _twin(module, {}, frozenset(emptied))


def _twin(module: nn.Module, known: dict[int, nn.Parameter], emptied: frozenset[nn.Module]) -> nn.Module:
    if module in emptied:
        return nn.ModuleList()
    twin = copy.copy(module)  # its dictionaries are the module's own until they are replaced here
    for name, value in vars(module).items():
        if "_hooks" in name and isinstance(value, dict):
            vars(twin)[name] = type(value)()
    twin._parameters = {name: _own(parameter, known) for name, parameter in module._parameters.items()}
    twin._buffers = dict(module._buffers)
    children = module._modules.items()
    twin._modules = {name: None if child is None else _twin(child, known, emptied) for name, child in children}
    return twin


def _own(parameter: Tensor | None, known: dict[int, nn.Parameter]) -> nn.Parameter | None:
    if parameter is None:
        return None
    if id(parameter) not in known:  # a tied one is one
        own = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        if hasattr(parameter, SHARD_ATTRIBUTE):
            setattr(own, SHARD_ATTRIBUTE, getattr(parameter, SHARD_ATTRIBUTE))
        known[id(parameter)] = own
    return known[id(parameter)]
