"""Puts a runner in the place of a stack's layers while its owner's forward goes through them, and only then.

Parameters, names, state_dict keys and everything that walks the layers from outside see the layers as they are. A
copy or a pickle of the model holds an ordinary layer list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from energy_lightning.partition.errors import ExecutionError, TensorParallelError

Runner = Callable[..., Any]
"""Called in place of the layers, with the arguments of the first one; returns what the last one would."""


class PartitionedLayers(nn.ModuleList):
    """A layer list that yields one runner instead of its layers inside its owner's forward."""

    def __init__(self, layers: nn.ModuleList, runner: Runner) -> None:
        super().__init__(layers.children())
        self.training = layers.training
        self.__dict__["_runner"] = runner  # not a submodule
        self.running = False

    def __iter__(self) -> Iterator[Any]:
        return iter([self.__dict__["_runner"]]) if self.running else super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        if not self.running:
            layers = list(self.children())
            return nn.ModuleList(layers[index]) if isinstance(index, slice) else super().__getitem__(index)
        if isinstance(index, slice) and len(range(*index.indices(len(self)))) == len(self):
            return list(self)
        raise ExecutionError(f"the partition engine runs all {len(self)} layers of a stack, asked for {index}")

    def __reduce__(self) -> tuple[Any, ...]:
        return nn.ModuleList, (list(self.children()),)


class _SetRunning:
    """A module hook; a class, so that models with it can be copied and pickled."""

    def __init__(self, attribute: str, running: bool) -> None:
        self._attribute, self._running = attribute, running

    def __call__(self, owner: nn.Module, *_: Any) -> None:
        layers = getattr(owner, self._attribute)
        if isinstance(layers, PartitionedLayers):
            layers.running = self._running


class OnlyThroughEngine:
    """A forward pre-hook of sharded layers: alone they would return a partial sum."""

    def __call__(self, layer: nn.Module, *_: Any) -> None:
        """Refuses."""
        raise TensorParallelError(
            f"this {type(layer).__name__} holds one rank's shard and runs only inside its model's forward"
        )


def put_runner_in(owner: nn.Module, attribute: str, runner: Runner) -> None:
    """Makes `owner.forward` see `runner` where it looks for its list of layers called `attribute`."""
    setattr(owner, attribute, PartitionedLayers(getattr(owner, attribute), runner))
    owner.register_forward_pre_hook(_SetRunning(attribute, True))
    owner.register_forward_hook(_SetRunning(attribute, False), always_call=True)
