"""What the engine must know about an architecture: one declarative row per family of transformer blocks.

Every block is a chain of glue and bodies. Between them travels a pair: `h`, the residual stream, and `y`, the
all-reduced output of the last body (None before the first):

    glue (h, y) -> (h', x)      residual add, dropout, a sharded row-parallel linear's bias, norm: operator norm_0
    body  x -> y                column-parallel linears, attention or activation, row-parallel linear
    leave (h, y) -> hidden      what is left after the last body

`h`, `x`, `y` and `hidden` are (batch, sequence, hidden size). With tensor parallelism `y` is a partial sum until the
all-reduce, and in backward so is the gradient of `x`; `h` and all glue are the same on every rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from energy_lightning.partition.calls import BlockCall

Operator = Callable[..., tuple[Tensor, ...]]
"""(layer, call, *outputs of the operator before it) -> outputs."""

SHARD_ATTRIBUTE = "tensor_parallel_shard"
"""Name of the attribute on parameters that hold one rank's part."""

Glue = Callable[[Any, Any, Tensor, "Tensor | None"], tuple[Tensor, ...]]
"""(layer of the body before, layer of the body after, h, y) -> (h', x); either layer is None at an end of the stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family of blocks.

    Attributes:
        name: short name ("bert", "llama").
        owner_type, layer_type: full dotted names of the class that holds the layer list and of the layers. Exact
            matches only: a subclass may compute something else.
        layers_attribute: where the owner keeps its nn.ModuleList of layers.
        positional: names of the arguments of a layer's forward after the hidden states.
        column_linears, row_linears: paths inside a layer of the linears split over output and input features.
        divisible: names of configuration values that the tensor-parallel size must divide.
        attention, mlp: the operators of the two bodies, in order.
        enter_attention, enter_mlp, leave: the glue.
        entry_is_sum: whether the layer after `before` needs h + y only, so that a checkpoint keeps one tensor.
        draws_random: whether a layer draws random numbers as it stands (dropout above 0 in training mode).
        unsupported: why a layer cannot run in the engine, or None.
    """

    name: str
    owner_type: str
    layers_attribute: str
    layer_type: str
    positional: tuple[str, ...]
    column_linears: tuple[str, ...]
    row_linears: tuple[str, ...]
    divisible: tuple[str, ...]
    attention: Mapping[str, Operator]
    mlp: Mapping[str, Operator]
    enter_attention: Glue
    enter_mlp: Glue
    leave: Glue
    entry_is_sum: Callable[[Any], bool]
    draws_random: Callable[[Any], bool]
    unsupported: Callable[[Any], str | None]

    def operator_names(self, key: str) -> tuple[str, ...]:
        """Operators of a partition in execution order; `key` is fwd_, rec_ or bwd_ with attn or mlp."""
        direction, _, kind = key.partition("_")
        body = tuple(self.attention if kind == "attn" else self.mlp)
        return ("norm_0", *(reversed(body) if direction == "bwd" else body))


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    """A column-parallel linear: (..., in) -> (..., out of this rank)."""
    return functional.linear(x, module.weight, module.bias)


def row_linear(module: nn.Linear, x: Tensor) -> Tensor:
    """A row-parallel linear: (..., in of this rank) -> (..., out), without the bias if that is deferred."""
    return functional.linear(x, module.weight, None if _is_shard(module) else module.bias)


def add_deferred_bias(module: nn.Linear, y: Tensor) -> Tensor:
    """Adds, once, the bias that a sharded row-parallel linear leaves out of each rank's partial sum."""
    return y + module.bias if has_deferred_bias(module) else y


def has_deferred_bias(module: nn.Linear) -> bool:
    """Whether glue adds the bias of a row-parallel linear; an unsharded one adds it itself, in one kernel."""
    return module.bias is not None and _is_shard(module)


def _is_shard(module: nn.Linear) -> bool:
    return hasattr(module.weight, SHARD_ATTRIBUTE)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(batch, sequence, heads * head_dim) -> (batch, heads, sequence, head_dim)."""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def attend(module: Any, call: BlockCall, heads: tuple[Tensor, Tensor, Tensor], dropout: float) -> Tensor:
    """Attention through the implementation that the model is configured for (eager, sdpa, flash, ...).

    `heads` are query, key and value (batch, heads, sequence, head_dim); returns (batch, sequence, heads * head_dim).
    The implementations are looked up in the model's own module, so transformers is not imported here.
    """
    modeling = sys.modules[type(module).__module__]
    implementation = modeling.ALL_ATTENTION_FUNCTIONS.get_interface(
        module.config._attn_implementation, modeling.eager_attention_forward
    )
    options = {"dropout": dropout, "scaling": module.scaling, **call.extra}
    with call.random_per_rank(dropout > 0.0):
        output = implementation(module, *heads, call.attention_mask, **options)[0]
    return output.reshape(*output.shape[:2], -1)  # type: ignore[no-any-return]
