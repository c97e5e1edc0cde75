"""Segments of one transformer layer and of what surrounds the stack: operators, each run closed by a collective.

Symbols: n tokens on this GPU, h hidden size, t tensor-parallel group, c context-parallel group, b bytes a value.
FLOPs count matrix products only; bytes count every tensor once (weights, inputs, outputs). Not modelled: biases,
dropout masks, padding, flash-attention's recomputation of statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from energy_lightning.workload.operators import DTYPE_BYTES, Collective, CollectiveKind, Operator
from energy_lightning.workload.shape import ModelShape

# Flash attention's backward recomputes the scores: five matrix products against the forward's two.
_ATTENTION_BACKWARD = 2.5
# It also runs slower: at 0.75 of the forward's throughput in FlashAttention-2's figures (arXiv 2307.08691), at 0.6 with
# the reductions and changes of layout around it (fitted with the constants of a100-sxm4-40gb.yaml).
_ATTENTION_BACKWARD_SPEED = 0.6
# Flash attention reaches S / (S + short) of its throughput at sequence length S. Read off FlashAttention-2's figures
# for an A100 (arXiv 2307.08691, figure 5, head dimension 128: causal 165 and 180 TFLOP/s at 4k and 8k).
_SHORT_CAUSAL, _SHORT_FULL = 800.0, 250.0
# Narrow heads leave more of the work to the softmax: about 0.86 of the throughput at head dimension 64 (same figures).
_NARROW_HEAD, _WIDE_HEAD = 24.0, 128.0
# Passes over the hidden states of a look-up: rows read, hidden states written; backward: gradients added to rows.
_EMBEDDING_FORWARD, _EMBEDDING_BACKWARD = 2.0, 3.0
# What the first of several stages takes in all, in the same unit. Read off the published plans of two-stage pipelines,
# where a planner stretches the stage that has slack until both are equally long; the figures do not say what it is.
# Jobs of one stage show nothing of it, so they are not charged.
_FIRST_STAGE_FORWARD, _FIRST_STAGE_BACKWARD = 75.0, 115.0
# Products of 2-byte values whose rows are no multiple of 16 bytes take other, slower kernels. Read off GPT-3 profiles
# that come with Perseus (vocabulary shards of 50257 / 8 values): 0.35 (A100) and 0.6 (A40) of an aligned product.
_UNALIGNED = 0.45


def attention_efficiency(sequence_length: int, head_dim: int, *, causal: bool) -> float:
    """Flash attention's throughput relative to a long sequence of heads of 128 and wider."""
    long = sequence_length / (sequence_length + (_SHORT_CAUSAL if causal else _SHORT_FULL))
    wide = head_dim / (head_dim + _NARROW_HEAD) * (_WIDE_HEAD + _NARROW_HEAD) / _WIDE_HEAD
    return long * min(1.0, wide)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of operators without a collective inside, and the collective that closes it (None: none)."""

    key: str
    operators: tuple[Operator, ...]
    collective: Collective | None


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Everything a layer's operators depend on, for one (nano)batch on one GPU.

    Attributes:
        model: the model's shape.
        tokens: tokens held by this GPU (microbatch x sequence / context parallel; halved for a nanobatch).
        sequence_length: full sequence length (attention's keys).
        tensor_parallel, context_parallel: group sizes.
        dtype: "bf16", "fp16" or "fp32".
        sequence_parallel: norms and residuals hold 1/tensor_parallel of the tokens.
        ring_attention: context-parallel ranks pass keys and values round while they compute attention, which hides the
            exchange; else it is a collective before attention.
    """

    model: ModelShape
    tokens: float
    sequence_length: int
    tensor_parallel: int
    context_parallel: int
    dtype: str
    sequence_parallel: bool = False
    ring_attention: bool = False

    def linear(self, name: str, inputs: float, outputs: float, *, backward: bool = False) -> Operator:
        """n x inputs times inputs x outputs; backward: gradients of input and weight, each as large as the forward."""
        passes = 2 if backward else 1
        weights, activations = inputs * outputs, self.tokens * (inputs + outputs)
        moved = passes * (weights + activations) * DTYPE_BYTES[self.dtype]
        row_bytes = math.ceil(outputs) * DTYPE_BYTES[self.dtype]
        efficiency = _UNALIGNED if self.dtype != "fp32" and row_bytes % 16 else 1.0
        flops = passes * 2.0 * self.tokens * weights
        return Operator(name, "linear", flops, moved, passes, self.dtype, efficiency, gradient=backward)

    def memory(self, name: str, values: float, num_kernels: int = 1) -> Operator:
        """An elementwise operator that moves `values` numbers."""
        return Operator(name, "memory", 0.0, values * DTYPE_BYTES[self.dtype], num_kernels, self.dtype)

    def glue(self, *, backward: bool = False) -> Operator:
        """Between an all-reduce and the next linear: residual add and norm (backward: their gradients)."""
        share = self.tensor_parallel if self.sequence_parallel else 1
        tensors = 5 if backward else 4  # in, residual in, residual out, normed out; backward reads one more
        return self.memory("norm_0", tensors * self.tokens * self.model.hidden_size / share, 2)

    def rope(self, *, backward: bool = False) -> Operator:
        """Rotary embedding, and q/k norms where the model has them."""
        model = self.model
        width = (model.attention_size + model.kv_size / 2) / self.tensor_parallel
        passes = 2 * (model.rotary + model.qk_norm * (1.5 if backward else 1.0))
        return self.memory("rope_0", passes * self.tokens * width, 2 * (model.rotary + model.qk_norm))

    def attention(self, *, backward: bool = False) -> Operator:
        """Scores and their product with the values; a causal mask skips half, balanced over context-parallel ranks."""
        model, factor = self.model, (_ATTENTION_BACKWARD if backward else 1.0)
        keys = self.sequence_length / (2 if model.causal else 1)
        flops = 4.0 * self.tokens * keys * model.attention_size / self.tensor_parallel
        own = 2 * self.tokens * model.attention_size
        gathered = self.tokens * self.context_parallel * model.kv_size
        moved = (2 if backward else 1) * (own + gathered) / self.tensor_parallel * DTYPE_BYTES[self.dtype]
        own_tokens = self.sequence_length // self.context_parallel  # of a sequence; kernels see no longer a run of them
        efficiency = attention_efficiency(own_tokens, model.head_dim, causal=model.causal)
        efficiency *= _ATTENTION_BACKWARD_SPEED if backward else 1.0
        return Operator("attn_0", "attention", factor * flops, moved, 2 if backward else 1, self.dtype, efficiency)

    def activation(self, *, backward: bool = False) -> Operator:
        """The MLP's activation (gated: with its product)."""
        tensors = (5 if backward else 3) if self.model.gated else (3 if backward else 2)
        return self.memory("activation_0", tensors * self.tokens * self.model.ffn_size / self.tensor_parallel)

    def qkv(self, *, backward: bool = False) -> Operator:
        """Query, key and value projections in one product."""
        model = self.model
        width = (model.attention_size + model.kv_size) / self.tensor_parallel
        return self.linear("linear_0", model.hidden_size, width, backward=backward)

    def output(self, *, backward: bool = False) -> Operator:
        """Attention's output projection."""
        model = self.model
        return self.linear(
            "linear_1", model.attention_size / self.tensor_parallel, model.hidden_size, backward=backward
        )

    def up(self, *, backward: bool = False) -> Operator:
        """The MLP's first linear (gate and up in one)."""
        model = self.model
        width = (2 if model.gated else 1) * model.ffn_size / self.tensor_parallel
        return self.linear("linear_0", model.hidden_size, width, backward=backward)

    def down(self, *, backward: bool = False) -> Operator:
        """The MLP's second linear."""
        model = self.model
        return self.linear("linear_1", model.ffn_size / self.tensor_parallel, model.hidden_size, backward=backward)

    def hidden_all_reduce(self) -> Collective | None:
        """Sum of the hidden states (or of their gradient) over the tensor-parallel group.

        With sequence parallelism a reduce-scatter and the next segment's all-gather: the two halves of a ring's
        all-reduce, the same bytes, counted as one collective.
        """
        if self.tensor_parallel == 1:
            return None
        moved = self.tokens * self.model.hidden_size * DTYPE_BYTES[self.dtype]
        return Collective("all_reduce", moved, self.tensor_parallel)

    def kv_exchange(self, *, backward: bool = False) -> Collective | None:
        """Context parallelism: keys and values gathered (backward: their gradients reduced and scattered)."""
        if self.context_parallel == 1 or self.ring_attention:
            return None
        values = self.tokens * self.context_parallel * self.model.kv_size / self.tensor_parallel
        kind: CollectiveKind = "reduce_scatter" if backward else "all_gather"
        return Collective(kind, values * DTYPE_BYTES[self.dtype], self.context_parallel)


def _with_rope(shape: LayerShape, *, backward: bool = False) -> tuple[Operator, ...]:
    return (shape.rope(backward=backward),) if shape.model.rotary or shape.model.qk_norm else ()


def forward_segments(shape: LayerShape, prefix: str = "fwd") -> tuple[Segment, ...]:
    """Forward of one layer; `prefix` "rec": recomputed in backward, where the layer's output is not summed again."""
    reduce, exchange = shape.hidden_all_reduce(), shape.kv_exchange()
    before = (shape.glue(), shape.qkv(), *_with_rope(shape))
    after = (shape.attention(), shape.output())
    mlp = Segment(
        f"{prefix}_mlp",
        (shape.glue(), shape.up(), shape.activation(), shape.down()),
        None if prefix == "rec" else reduce,
    )
    if exchange is None:
        return Segment(f"{prefix}_attn", before + after, reduce), mlp
    return Segment(f"{prefix}_qkv", before, exchange), Segment(f"{prefix}_ao", after, reduce), mlp


def backward_segments(shape: LayerShape) -> tuple[Segment, ...]:
    """Backward of one layer. With context parallelism keys and values are gathered again instead of kept."""
    reduce = shape.hidden_all_reduce()
    gather, scatter = shape.kv_exchange(), shape.kv_exchange(backward=True)
    glue = shape.glue(backward=True)
    mlp_operators = (glue, shape.down(backward=True), shape.activation(backward=True), shape.up(backward=True))
    output, attention = (glue, shape.output(backward=True)), (shape.attention(backward=True),)
    qkv = (*_with_rope(shape, backward=True), shape.qkv(backward=True))
    mlp = Segment("bwd_mlp", mlp_operators, reduce)
    if gather is None:
        return mlp, Segment("bwd_attn", output + attention + qkv, reduce)
    return (
        mlp,
        Segment("bwd_o", output, gather),
        Segment("bwd_a", attention, scatter),
        Segment("bwd_qkv", qkv, reduce),
    )


def embedding(shape: LayerShape, *, backward: bool = False, pipelined: bool = False) -> tuple[Operator, ...]:
    """Token embedding of the only stage, or of the first of several (`pipelined`) with what else that stage does."""
    if pipelined:
        passes = _FIRST_STAGE_BACKWARD if backward else _FIRST_STAGE_FORWARD
    else:
        passes = _EMBEDDING_BACKWARD if backward else _EMBEDDING_FORWARD
    return (shape.memory("embedding_0", passes * shape.tokens * shape.model.hidden_size, 2),)


def head(shape: LayerShape, *, backward: bool = False) -> tuple[Operator, ...]:
    """Final norm, head and loss of the last stage; the loss works in float32 on logits split over tensor parallel."""
    model, hidden = shape.model, shape.model.hidden_size
    if model.head == "none":
        return ()
    norm = shape.memory("norm_0", (4 if backward else 2) * shape.tokens * hidden, 2)
    if model.head == "classification":
        return (norm,)  # one token a sequence goes through the pooler: negligible
    logits = shape.tokens * model.vocab_size / shape.tensor_parallel
    projection = shape.linear("linear_0", hidden, model.vocab_size / shape.tensor_parallel, backward=backward)
    # Vocabulary-parallel cross entropy, fused: maximum and float32 exponents of 2-byte logits (10 bytes a logit);
    # backward: exponents to gradients (6 bytes).
    moved = (6.0 if backward else 10.0) * logits
    loss = Operator("loss_0", "memory", 0.0, moved, 3 if backward else 6, shape.dtype)
    operators: tuple[Operator, ...] = (norm, projection, loss)
    if model.head == "masked_lm":
        transform = shape.linear("transform_0", hidden, hidden, backward=backward)
        operators = (norm, transform, projection, loss)
    return tuple(reversed(operators)) if backward else operators
