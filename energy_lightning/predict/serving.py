"""Requests served on an emulated GPU: prefill and decode of a batch, apart.

Prefill is one forward pass over the prompts, with the head on each prompt's last token. Decode is one pass for each
further output token: a pass computes one token a sequence and reads all weights and the keys and values so far. The
batch is static: prompts equally long, outputs too. Every figure is the GPU model's (emulated), none is a measurement.
Not modelled: CUDA graphs (every kernel is launched), sampling, continuous batching, paged caches, host power. A
collective waits as long for the slowest rank as in training, which makes tensor parallelism dear in decode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from energy_lightning.emulation import GPU, Estimate, emulate_partition
from energy_lightning.predict.columns import PredictionError
from energy_lightning.workload import ModelShape, Operator
from energy_lightning.workload.layers import LayerShape, Segment, embedding, forward_segments, head
from energy_lightning.workload.operators import DTYPE_BYTES

_POSITIONS = 5  # of decode, between which its time and energy are interpolated: both are close to linear
_RESERVED_BYTES = 1.5e9  # as `emulation.memory` assumes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """A batch of equal requests: tokens of each prompt and each output, requests at once, GPUs that share the model."""

    input_tokens: int
    output_tokens: int
    batch_size: int
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens", "batch_size", "tensor_parallel"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PredictionError(f"{name} must be a whole number > 0, got {value!r}")


def emulate_serving(run: ServingRun, shape: ModelShape, gpu: GPU, *, dtype: str = "bf16") -> tuple[Estimate, Estimate]:
    """Prefill and decode of the batch at the highest clock: seconds, and joules of one GPU of `tensor_parallel`.

    Raises:
        PredictionError: no causal language model, heads that cannot be shared, an unknown dtype, or out of memory.
    """
    _check(run, shape, gpu, dtype)
    prefill = _pass(run, shape, gpu, dtype, new_tokens=run.input_tokens, seen_tokens=run.input_tokens)
    passes = run.output_tokens - 1
    if passes == 0:
        return prefill, Estimate(0.0, 0.0)
    first = run.input_tokens + 1
    positions = np.unique(np.linspace(first, first + passes - 1, _POSITIONS).round().astype(int))
    each = [_pass(run, shape, gpu, dtype, new_tokens=1, seen_tokens=int(position)) for position in positions]
    every = np.arange(first, first + passes)
    time_s, energy_j = (
        float(np.interp(every, positions, [getattr(one, name) for one in each]).sum())
        for name in ("time_s", "energy_j")
    )
    return prefill, Estimate(time_s, energy_j)


def serving_bytes(run: ServingRun, shape: ModelShape, dtype: str) -> float:
    """Device memory of one GPU: weights, keys and values of the whole batch, and what a process reserves."""
    embeddings = (1 if shape.tied_embeddings else 2) * shape.embedding_parameters
    weights = shape.num_layers * shape.layer_parameters + embeddings
    kept = run.batch_size * (run.input_tokens + run.output_tokens) * shape.num_layers * shape.kv_size
    return float(weights + kept) / run.tensor_parallel * DTYPE_BYTES[dtype] + _RESERVED_BYTES


def _check(run: ServingRun, shape: ModelShape, gpu: GPU, dtype: str) -> None:
    if dtype not in DTYPE_BYTES:
        raise PredictionError(f"unknown dtype={dtype}; choose one of {', '.join(DTYPE_BYTES)}")
    if not shape.causal or shape.head != "causal_lm":
        raise PredictionError(f"{shape.name} generates no text: give a causal language model")
    if shape.num_kv_heads % run.tensor_parallel or shape.ffn_size % run.tensor_parallel:
        raise PredictionError(
            f"tensor_parallel={run.tensor_parallel} does not divide num_kv_heads={shape.num_kv_heads} and "
            f"ffn_size={shape.ffn_size} of {shape.name}"
        )
    needed = serving_bytes(run, shape, dtype)
    if needed > gpu.memory_bytes:
        raise PredictionError(
            f"out of memory: {shape.name} needs {needed / 1e9:.1f} GB a GPU, {gpu.display_name} has "
            f"{gpu.memory_bytes / 1e9:.1f} GB; give a smaller batch or more tensor_parallel"
        )


def _pass(run: ServingRun, shape: ModelShape, gpu: GPU, dtype: str, *, new_tokens: int, seen_tokens: int) -> Estimate:
    """One forward pass of `new_tokens` a sequence that attend to `seen_tokens`, themselves included."""
    layer = LayerShape(shape, float(run.batch_size * new_tokens), seen_tokens, run.tensor_parallel, 1, dtype)
    total = Estimate(0.0, 0.0)
    for segment in forward_segments(layer):
        operators = segment.operators if new_tokens > 1 else _with_cache(segment, layer)
        once = emulate_partition(operators, segment.collective, gpu, frequency_mhz=gpu.max_frequency_mhz)
        total = total + once.times(shape.num_layers)
    last = tuple(o for o in head(replace(layer, tokens=float(run.batch_size))) if o.name != "loss_0")
    return total + emulate_partition((*embedding(layer), *last), None, gpu, frequency_mhz=gpu.max_frequency_mhz)


def _with_cache(segment: Segment, layer: LayerShape) -> tuple[Operator, ...]:
    """The segment's operators where each sequence has one new token: attention reads the cache once."""
    model, share = layer.model, layer.tensor_parallel
    flops = 4.0 * layer.tokens * layer.sequence_length * model.attention_size / share
    moved = layer.tokens * layer.sequence_length * model.kv_size / share * DTYPE_BYTES[layer.dtype]
    reading = Operator("attn_0", "attention", flops, moved, 1, layer.dtype)
    return tuple(reading if operator.name == "attn_0" else operator for operator in segment.operators)
