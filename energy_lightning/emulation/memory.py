"""Whether a job fits: device memory of one GPU of each stage, counted tensor by tensor.

Symbols: n tokens of a microbatch on this GPU, h hidden size, t tensor-parallel group, s = t with sequence parallelism
(else 1), A and K widths of queries and of keys with values, F of the MLP, b bytes a value.

    kept of a layer for backward    n b [4 h / s + (2 A + K) / t + (u + 1) F / t],   u = 2 for a gated MLP, else 1
    under activation checkpointing  n b h / s, and the above for the one layer that is recomputed
    microbatches in flight          min(stages - stage, microbatches), as 1F1B keeps them
    weights, gradients              b each; optimizer: float32 master weights (where b < 4) and two moments
    logits                          n V / t values in b and once in float32 (a fused loss; unfused: twice or more)

Attention is flash attention: no scores are kept. Not modelled: dropout masks (up to 2 h bytes a token and layer), norms
and biases, an optimizer sharded while weights are not, fragmentation, buffers of overlapping collectives.
Source of the form: Korthikanti et al., arXiv 2205.05198, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from energy_lightning.emulation.gpu import GPU
from energy_lightning.types import WorkloadError
from energy_lightning.workload import Workload
from energy_lightning.workload.operators import DTYPE_BYTES

# CUDA context, kernels and the communication library's buffers: what a process takes before it computes. Assumed.
_RESERVED_BYTES = 1.5e9
_FLOAT32_BYTES = 4
_GPU_GROUPS = {"tensor_parallel", "pipeline_parallel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes on one GPU at the fullest moment of an iteration; fully sharded parts are a GPU's share.

    Attributes:
        weights_bytes, gradients_bytes, optimizer_bytes: of the stage's parameters.
        gathered_bytes: fully sharded: embedding and head, two layers and one layer's gradients in full.
        activations_bytes: kept for the backward of all microbatches in flight.
        recomputation_bytes: of the layer that is recomputed.
        logits_bytes: of the loss, last stage only.
        reserved_bytes: taken before anything is computed.
    """

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    gathered_bytes: float
    activations_bytes: float
    recomputation_bytes: float
    logits_bytes: float
    reserved_bytes: float

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return float(sum(self.parts().values()))

    def parts(self) -> dict[str, float]:
        """Bytes by what they hold ("weights", "activations", ...)."""
        return {f.name.removesuffix("_bytes"): getattr(self, f.name) for f in fields(self)}


def memory_per_gpu(workload: Workload, stage: int = 0) -> MemoryEstimate:
    """Device memory of one GPU of `stage`. Raises WorkloadError for a stage that is not there."""
    w, value_bytes = workload, DTYPE_BYTES[workload.dtype]
    own = w.parameters_per_gpu(stage) / (w.num_replicas if w.fully_sharded else 1)
    master_bytes = _FLOAT32_BYTES if value_bytes < _FLOAT32_BYTES else 0
    in_flight = min(w.pipeline_parallel - stage, w.num_microbatches)
    whole, checkpoint = _layer_bytes(w), _hidden_bytes(w)
    kept = checkpoint if w.activation_checkpointing else whole
    return MemoryEstimate(
        weights_bytes=own * value_bytes,
        gradients_bytes=own * value_bytes,
        optimizer_bytes=own * (master_bytes + 2 * _FLOAT32_BYTES),
        gathered_bytes=_gathered_bytes(w, stage) if w.fully_sharded else 0.0,
        activations_bytes=in_flight * w.layers_per_stage[stage] * kept,
        recomputation_bytes=whole if w.activation_checkpointing else 0.0,
        logits_bytes=_logits_bytes(w) if stage == w.pipeline_parallel - 1 else 0.0,
        reserved_bytes=_RESERVED_BYTES,
    )


def check_memory(workload: Workload, gpu: GPU) -> None:
    """Raise WorkloadError unless every stage fits into the GPU: by how much it is over and what would help."""
    stage, most = _fullest(workload)
    over_bytes = most.total_bytes - gpu.memory_bytes
    if over_bytes <= 0.0:
        return
    parts = sorted(most.parts().items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {_gb(size)}" for name, size in parts if size >= 0.05e9)
    place = f"stage {stage} of {workload.pipeline_parallel} " if workload.pipeline_parallel > 1 else ""
    raise WorkloadError(
        f"{workload.model.name}: {place}needs {_gb(most.total_bytes)} GB a GPU, {_gb(over_bytes)} GB more than the "
        f"{_gb(gpu.memory_bytes)} GB of {gpu.display_name} (GB: {listed}). {_remedy(workload, gpu)}"
    )


def _fullest(w: Workload) -> tuple[int, MemoryEstimate]:
    estimates = [(stage, memory_per_gpu(w, stage)) for stage in range(w.pipeline_parallel)]
    return max(estimates, key=lambda found: found[1].total_bytes)


def _remedy(w: Workload, gpu: GPU) -> str:
    """What would make it fit: single changes, else a combination."""
    tried = [(sizes, _peak(w, sizes)) for sizes in _changes(w)]
    fitting = [f"{_words(sizes)} ({_gb(size)} GB)" for sizes, size in tried if size <= gpu.memory_bytes]
    if fitting:
        return f"It would fit with {' or '.join(fitting)}"
    found = _combination(w, gpu)
    if found is None:
        return "No combination of parallelism, recomputation and batch size found that fits: choose larger GPUs"
    return f"No single change is enough; it would fit with {_words(found)} ({_gb(_peak(w, found))} GB)"


def _combination(w: Workload, gpu: GPU) -> dict[str, Any] | None:
    """Changes that together make it fit, None if nothing saves any more.

    At each step the one that saves most, of those that take no more GPUs if such a one saves a tenth.
    """
    together: dict[str, Any] = {}
    while (now := _peak(w, together)) > gpu.memory_bytes:
        further = list(_changes(w.with_sizes(**together)))
        free = [s for s in further if not _GPU_GROUPS & set(s) and _peak(w, together | s) <= 0.9 * now]
        best = min(free or further, key=lambda sizes: _peak(w, together | sizes), default=None)
        if best is None or _peak(w, together | best) >= now:
            return None
        together |= best
    return together


def _peak(w: Workload, sizes: dict[str, Any]) -> float:
    return _fullest(w.with_sizes(**sizes))[1].total_bytes


def _words(sizes: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _changes(w: Workload) -> Iterator[dict[str, Any]]:
    """Other ways to run the same job, as sizes to change."""
    wanted: list[dict[str, Any]] = [{"activation_checkpointing": True}] if not w.activation_checkpointing else []
    if w.tensor_parallel > 1 and not w.sequence_parallel:
        wanted.append({"sequence_parallel": True})
    if w.num_replicas > 1 and not w.fully_sharded:
        wanted.append({"data_parallel_kind": "fully_sharded"})
    if w.microbatch_size > 1:
        wanted.append({"microbatch_size": w.microbatch_size // 2})
    wanted += [{"tensor_parallel": 2 * w.tensor_parallel}, {"pipeline_parallel": 2 * w.pipeline_parallel}]
    for sizes in wanted:
        try:
            w.with_sizes(**sizes)
        except WorkloadError:  # does not divide
            continue
        yield sizes


def _tokens(w: Workload) -> float:
    return w.microbatch_size * w.sequence_length / w.context_parallel


def _hidden_bytes(w: Workload) -> float:
    split = w.tensor_parallel if w.sequence_parallel else 1
    return _tokens(w) * w.model.hidden_size * DTYPE_BYTES[w.dtype] / split


def _layer_bytes(w: Workload) -> float:
    """Everything that one layer keeps for its backward."""
    model = w.model
    normed = model.attention_size + model.kv_size / 2 if model.qk_norm else 0.0
    split = 2 * model.attention_size + model.kv_size + normed + (3 if model.gated else 2) * model.ffn_size
    return 4 * _hidden_bytes(w) + _tokens(w) * split / w.tensor_parallel * DTYPE_BYTES[w.dtype]


def _logits_bytes(w: Workload) -> float:
    if w.model.head not in ("causal_lm", "masked_lm"):
        return 0.0
    logits = _tokens(w) * w.model.vocab_size / w.tensor_parallel
    return logits * (DTYPE_BYTES[w.dtype] + _FLOAT32_BYTES)


def _gathered_bytes(w: Workload, stage: int) -> float:
    layer = w.model.layer_parameters / w.tensor_parallel
    root = w.parameters_per_gpu(stage) - w.layers_per_stage[stage] * layer
    return (root + min(3, w.layers_per_stage[stage] + 1) * layer) * DTYPE_BYTES[w.dtype]


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f}"
