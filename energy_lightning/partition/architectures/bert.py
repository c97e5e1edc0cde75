"""BERT (transformers' BertLayer without cross-attention): post-norm, so the residual stream is the normed one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from energy_lightning.partition.architectures.base import (
    Architecture,
    add_deferred_bias,
    attend,
    linear,
    row_linear,
    split_heads,
)
from energy_lightning.partition.calls import BlockCall

_MODELING = "transformers.models.bert.modeling_bert"


def _query_key_value(layer: Any, call: BlockCall, x: Tensor) -> tuple[Tensor, ...]:
    attention = layer.attention.self
    query, key, value = (
        split_heads(linear(projection, x), attention.attention_head_size)
        for projection in (attention.query, attention.key, attention.value)
    )
    return (query, *call.with_cached(attention, key, value))


def _attend(layer: Any, call: BlockCall, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    attention = layer.attention.self
    dropout = attention.dropout.p if attention.training else 0.0
    return (attend(attention, call, (query, key, value), dropout),)


def _project(layer: Any, call: BlockCall, attended: Tensor) -> tuple[Tensor, ...]:
    return (row_linear(layer.attention.output.dense, attended),)


def _intermediate(layer: Any, call: BlockCall, x: Tensor) -> tuple[Tensor, ...]:
    return (linear(layer.intermediate.dense, x),)


def _activate(layer: Any, call: BlockCall, x: Tensor) -> tuple[Tensor, ...]:
    return (layer.intermediate.intermediate_act_fn(x),)


def _down(layer: Any, call: BlockCall, activated: Tensor) -> tuple[Tensor, ...]:
    return (row_linear(layer.output.dense, activated),)


def _add_and_norm(output: Any, h: Tensor, y: Tensor) -> Tensor:
    """`output` is a BertSelfOutput or a BertOutput, whose dense has made y: dropout, residual, LayerNorm."""
    normed: Tensor = output.LayerNorm(output.dropout(add_deferred_bias(output.dense, y)) + h)
    return normed


def _enter_attention(before: Any, after: Any, h: Tensor, y: Tensor | None) -> tuple[Tensor, ...]:
    h = h if y is None else _add_and_norm(before.output, h, y)
    return h, h


def _enter_mlp(before: Any, after: Any, h: Tensor, y: Tensor | None) -> tuple[Tensor, ...]:
    h = h if y is None else _add_and_norm(before.attention.output, h, y)
    return h, h


def _leave(before: Any, after: Any, h: Tensor, y: Tensor | None) -> tuple[Tensor, ...]:
    return (h if y is None else _add_and_norm(before.output, h, y),)


def _draws_random(layer: Any) -> bool:
    dropouts = (layer.attention.self.dropout, layer.attention.output.dropout, layer.output.dropout)
    return any(dropout.training and dropout.p > 0.0 for dropout in dropouts)


def _unsupported(layer: Any) -> str | None:
    if layer.add_cross_attention:
        return "it has cross-attention"
    if layer.chunk_size_feed_forward:
        return f"chunk_size_feed_forward is {layer.chunk_size_feed_forward}, not 0"
    return None


BERT = Architecture(
    name="bert",
    owner_type=f"{_MODELING}.BertEncoder",
    layers_attribute="layer",
    layer_type=f"{_MODELING}.BertLayer",
    positional=("attention_mask", "encoder_hidden_states", "encoder_attention_mask", "cache"),
    column_linears=("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"),
    row_linears=("attention.output.dense", "output.dense"),
    divisible=("num_attention_heads", "intermediate_size"),
    attention={"linear_0": _query_key_value, "attn_0": _attend, "linear_1": _project},
    mlp={"linear_0": _intermediate, "activation_0": _activate, "linear_1": _down},
    enter_attention=_enter_attention,
    enter_mlp=_enter_mlp,
    leave=_leave,
    entry_is_sum=lambda before: False,
    draws_random=_draws_random,
    unsupported=_unsupported,
)
