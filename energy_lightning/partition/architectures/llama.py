"""Llama (transformers' LlamaDecoderLayer): pre-norm, rotary embedding, grouped-query attention, gated MLP."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from energy_lightning.partition.architectures.base import (
    Architecture,
    add_deferred_bias,
    attend,
    has_deferred_bias,
    linear,
    row_linear,
    split_heads,
)
from energy_lightning.partition.calls import BlockCall

_MODELING = "transformers.models.llama.modeling_llama"


def _query_key_value(layer: Any, call: BlockCall, x: Tensor) -> tuple[Tensor, ...]:
    attention = layer.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return tuple(split_heads(linear(projection, x), attention.head_dim) for projection in projections)


def _rotate(layer: Any, call: BlockCall, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    rotary = sys.modules[type(layer).__module__].apply_rotary_pos_emb
    query, key = rotary(query, key, *call.position_embeddings)
    return (query, *call.with_cached(layer.self_attn, key, value))


def _attend(layer: Any, call: BlockCall, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    attention = layer.self_attn
    dropout = attention.attention_dropout if attention.training else 0.0
    return (attend(attention, call, (query, key, value), dropout),)


def _project(layer: Any, call: BlockCall, attended: Tensor) -> tuple[Tensor, ...]:
    return (row_linear(layer.self_attn.o_proj, attended),)


def _gate_and_up(layer: Any, call: BlockCall, x: Tensor) -> tuple[Tensor, ...]:
    return linear(layer.mlp.gate_proj, x), linear(layer.mlp.up_proj, x)


def _activate(layer: Any, call: BlockCall, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    return (layer.mlp.act_fn(gate) * up,)


def _down(layer: Any, call: BlockCall, activated: Tensor) -> tuple[Tensor, ...]:
    return (row_linear(layer.mlp.down_proj, activated),)


def _enter_attention(before: Any, after: Any, h: Tensor, y: Tensor | None) -> tuple[Tensor, ...]:
    h = h if y is None else h + add_deferred_bias(before.mlp.down_proj, y)
    return h, after.input_layernorm(h)


def _enter_mlp(before: Any, after: Any, h: Tensor, y: Tensor | None) -> tuple[Tensor, ...]:
    h = h if y is None else h + add_deferred_bias(before.self_attn.o_proj, y)
    return h, after.post_attention_layernorm(h)


def _leave(before: Any, after: Any, h: Tensor, y: Tensor | None) -> tuple[Tensor, ...]:
    return (h if y is None else h + add_deferred_bias(before.mlp.down_proj, y),)


LLAMA = Architecture(
    name="llama",
    owner_type=f"{_MODELING}.LlamaModel",
    layers_attribute="layers",
    layer_type=f"{_MODELING}.LlamaDecoderLayer",
    positional=("attention_mask", "position_ids", "cache", "use_cache", "position_embeddings"),
    column_linears=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"),
    row_linears=("self_attn.o_proj", "mlp.down_proj"),
    divisible=("num_attention_heads", "num_key_value_heads", "intermediate_size"),
    attention={"linear_0": _query_key_value, "rope_0": _rotate, "attn_0": _attend, "linear_1": _project},
    mlp={"linear_0": _gate_and_up, "activation_0": _activate, "linear_1": _down},
    enter_attention=_enter_attention,
    enter_mlp=_enter_mlp,
    leave=_leave,
    entry_is_sum=lambda before: not has_deferred_bias(before.mlp.down_proj),
    draws_random=lambda layer: layer.self_attn.training and layer.self_attn.attention_dropout > 0.0,
    unsupported=lambda layer: None,
)
