"""Finding stacks of blocks that the engine knows, and saying why one is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from energy_lightning.partition.architectures import ARCHITECTURES, Architecture
from energy_lightning.partition.errors import TensorParallelError, UnrecognisedModelError


@dataclass(frozen=True, slots=True)
class BlockStack:
    """A recognised stack of transformer blocks.

    Attributes:
        path: dotted path of the layer list in the model.
        architecture: name of its row in ARCHITECTURES.
        config: the transformers configuration.
        num_layers: blocks in the stack.
        owner: the module whose forward goes through the layers.
    """

    path: str
    architecture: str
    config: Any = field(repr=False)
    num_layers: int
    owner: nn.Module = field(repr=False)

    @property
    def row(self) -> Architecture:
        """What the engine knows about the architecture."""
        return ARCHITECTURES[self.architecture]

    @property
    def layers(self) -> nn.ModuleList:
        """The layer list."""
        layers: nn.ModuleList = getattr(self.owner, self.row.layers_attribute)
        return layers


def find_stacks(model: nn.Module) -> list[BlockStack]:
    """The recognised stacks of `model`, in module order; empty when there are none."""
    return [stack for stack, reason in _candidates(model) if reason is None]


def require_stacks(model: nn.Module) -> list[BlockStack]:
    """As find_stacks, but raises UnrecognisedModelError saying what was looked for and what was in the way."""
    stacks = find_stacks(model)
    if stacks:
        return stacks
    reasons = [f"{stack.path}: {reason}" for stack, reason in _candidates(model)]
    known = ", ".join(f"{row.name} ({row.layer_type})" for row in ARCHITECTURES.values())
    raise UnrecognisedModelError(
        f"{type(model).__name__} has no transformer blocks that the partition engine knows; known: {known}. "
        + (f"Not usable: {'; '.join(reasons)}. " if reasons else "")
        + "Use tensor_parallel_size=1 (plain layers), or add a row to energy_lightning.partition.ARCHITECTURES."
    )


def check_tensor_parallel_size(stack: BlockStack, size: int) -> None:
    """Raises TensorParallelError unless `size` divides the stack's heads and widths."""
    values = {name: getattr(stack.config, name) for name in stack.row.divisible}
    offending = {name: value for name, value in values.items() if size < 1 or value % size}
    if offending:
        allowed = [n for n in range(1, min(values.values()) + 1) if all(value % n == 0 for value in values.values())]
        listed = ", ".join(f"{name}={value}" for name, value in offending.items())
        raise TensorParallelError(
            f"tensor_parallel_size={size} does not divide {listed} of {stack.path} ({stack.architecture}); "
            f"possible: {', '.join(map(str, allowed))}"
        )


def _candidates(model: nn.Module) -> Iterator[tuple[BlockStack, str | None]]:
    """Every layer list whose owner is of a known type, with what keeps the engine from running it."""
    rows = {row.owner_type: row for row in ARCHITECTURES.values()}
    for path, module in model.named_modules():
        row = rows.get(_full_name(module))
        layers = getattr(module, row.layers_attribute, None) if row is not None else None
        if row is None or not isinstance(layers, nn.ModuleList):
            continue
        full_path = f"{path}.{row.layers_attribute}" if path else row.layers_attribute
        stack = BlockStack(full_path, row.name, module.config, len(layers), module)
        yield stack, unknown_part(row, layers)


def unknown_part(row: Architecture, layers: nn.ModuleList) -> str | None:
    """The first part of `layers` that is not as the engine knows it, or None."""
    if not len(layers):
        return "it has no layers"
    for index, layer in enumerate(layers.children()):
        if _full_name(layer) != row.layer_type:
            return f"layer {index} is a {_full_name(layer)}, not a {row.layer_type}"
        if reason := row.unsupported(layer):
            return f"layer {index}: {reason}"
        for name in (*row.column_linears, *row.row_linears):
            linear = layer.get_submodule(name)
            if type(linear) is not nn.Linear:
                return f"layer {index}: {name} is a {_full_name(linear)}, not a torch.nn.Linear"
    return None


def _full_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
