"""Workload: a training job's model shape, sizes and parallelism; its partitions per phase and stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from energy_lightning.types import WorkloadError
from energy_lightning.workload import layers
from energy_lightning.workload.checks import check_division, check_sizes, stage_layers
from energy_lightning.workload.fully_sharded import ShardedStage
from energy_lightning.workload.interleave import nanobatched_partitions, sequential_partitions
from energy_lightning.workload.operators import DTYPE_BYTES, Collective, Operator, Partition
from energy_lightning.workload.shape import ModelShape

WorkloadPhase = Literal["forward", "backward", "iteration"]
_SUFFIX = re.compile(r"_(tp|pp|cp|dp|fsdp)(\d+)$")
_SUFFIX_FIELDS = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "fsdp": "data_parallel",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training job, as the emulator and the search see it.

    Attributes:
        model: the model's shape.
        tensor_parallel, context_parallel, pipeline_parallel, data_parallel: group sizes.
        microbatch_size: sequences in one microbatch of one replica.
        num_microbatches: microbatches (gradient accumulation steps) of one replica in one iteration.
        sequence_length: tokens in a sequence.
        activation_checkpointing: the forward of each layer is recomputed inside backward.
        layers_per_stage: layers of each pipeline stage; empty splits evenly, earlier stages taking the rest.
        dtype: "bf16", "fp16" or "fp32".
        sequence_parallel: norms and residuals split over the tensor-parallel group (Megatron's sequence parallelism).
        data_parallel_kind: "all_reduce" keeps whole replicas and averages gradients; "fully_sharded" splits parameters,
            gradients and optimizer over data and context parallelism (see fully_sharded.py).
        communication: False leaves out all that passes between GPUs: what one GPU alone computes of its share, as
            profiles of a sharded model on a single GPU measure it.

    Raises:
        WorkloadError: a shape that cannot be split so.
    """

    model: ModelShape
    tensor_parallel: int = 1
    context_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    microbatch_size: int = 1
    num_microbatches: int = 1
    sequence_length: int = 128
    activation_checkpointing: bool = False
    layers_per_stage: tuple[int, ...] = ()
    dtype: str = "bf16"
    sequence_parallel: bool = False
    communication: bool = True
    data_parallel_kind: str = "all_reduce"

    def __post_init__(self) -> None:
        check_sizes(self)
        check_division(self)
        object.__setattr__(self, "layers_per_stage", stage_layers(self))

    @classmethod
    def preset(cls, name: str, **sizes: Any) -> Workload:
        """A published model, e.g. `preset("llama3.2_3b", tensor_parallel=8)` or `preset("llama3.2_3b_tp8")`.

        Suffixes _tpN, _cpN, _ppN, _dpN set group sizes, _fsdpN a fully sharded one; keyword arguments win over them.
        """
        fields: dict[str, Any] = {}
        base = str(name)
        while match := _SUFFIX.search(base):
            fields[_SUFFIX_FIELDS[match[1]]] = int(match[2])
            if match[1] == "fsdp":
                fields["data_parallel_kind"] = "fully_sharded"
            base = base[: match.start()]
        return cls._build(ModelShape.preset(base), fields | sizes)

    @classmethod
    def from_config(cls, config: Any, **sizes: Any) -> Workload:
        """From a transformers configuration object or its mapping; `sizes` as in `preset`."""
        return cls._build(ModelShape.from_config(config), sizes)

    @classmethod
    def _build(cls, model: ModelShape, sizes: Mapping[str, Any]) -> Workload:
        known = set(cls.__dataclass_fields__) - {"model"}
        unknown = sorted(set(sizes) - known)
        if unknown:
            raise WorkloadError(f"unknown workload argument {unknown[0]!r}; known: {', '.join(sorted(known))}")
        given = dict(sizes)
        if given.get("layers_per_stage", ()) is None:
            del given["layers_per_stage"]
        return cls(model=model, **given)

    def with_sizes(self, **sizes: Any) -> Workload:
        """A copy with other sizes (microbatch_size, sequence_length, ...); another number of stages splits anew."""
        anew = {"layers_per_stage": ()} if {"pipeline_parallel", "model"} & set(sizes) else {}
        return replace(self, **(anew | sizes))

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole job."""
        return self.gpus_per_stage * self.pipeline_parallel

    @property
    def gpus_per_stage(self) -> int:
        """GPUs that execute one pipeline stage, over all replicas."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel

    @property
    def boundary_bytes(self) -> float:
        """Bytes that one GPU passes to its peer in the next stage for a microbatch: its share of the hidden states."""
        if not self.communication:
            return 0.0
        tokens = self.microbatch_size * self.sequence_length / self.context_parallel
        return tokens * self.model.hidden_size * DTYPE_BYTES[self.dtype] / self.tensor_parallel

    @property
    def num_replicas(self) -> int:
        """GPUs that hold the same (or, fully sharded, share the same) part of the model: data x context parallel."""
        return self.data_parallel * self.context_parallel

    @property
    def fully_sharded(self) -> bool:
        """Whether parameters, gradients and optimizer are split over the replicas."""
        return self.data_parallel_kind == "fully_sharded" and self.num_replicas > 1

    def key(self) -> dict[str, Any]:
        """Plain values that identify shape and parallelism."""
        values = asdict(self)
        values["layers_per_stage"] = list(self.layers_per_stage)
        return values

    def partitions(self, phase: WorkloadPhase, *, stage: int = 0, nanobatched: bool) -> tuple[Partition, ...]:
        """The partitions that one microbatch's phase (or one iteration's end) executes on one GPU of `stage`.

        The phase's time is the sum over partitions of count x time: with nanobatches, "fwd_edge"/"bwd_edge" holds the
        first compute and the trailing collective, which nothing hides. "*_rest", "grad_bucket" and "optimizer" are
        sequential in both modes. Fully sharded, "fwd_gather", "bwd_gather" and "bwd_scatter" are the collectives that
        no compute hides, and a sequential segment's own collective is a partition for itself ("fwd_attn_reduce").

        Raises:
            WorkloadError: no such stage or phase.
        """
        self._check_stage(stage)
        if phase == "iteration":
            return self._iteration_end(stage)
        if phase not in ("forward", "backward"):
            raise WorkloadError(f"phase must be forward, backward or iteration, got {phase!r}")
        segments = self._segments(phase, nanobatched)
        num_layers = self.layers_per_stage[stage]
        prefix = "fwd" if phase == "forward" else "bwd"
        build = nanobatched_partitions if nanobatched else sequential_partitions
        rest = self._rest(phase, stage)
        tail = (Partition(f"{prefix}_rest", rest, None, 1, False),) if rest else ()
        partitions = (*build(segments, num_layers, prefix), *tail)
        if not (self.fully_sharded and self.communication):
            return partitions
        sharded = self._sharded_stage(stage)
        return sharded.forward(partitions) if phase == "forward" else sharded.backward(partitions)

    def _check_stage(self, stage: int) -> None:
        if not 0 <= stage < self.pipeline_parallel:
            raise WorkloadError(
                f"{self.model.name}: no pipeline stage {stage}; it has stages 0 to {self.pipeline_parallel - 1}"
            )

    def _layer_shape(self, *, nanobatched: bool = False) -> layers.LayerShape:
        share = 0.5 if nanobatched else 1.0
        tokens = self.microbatch_size * self.sequence_length / self.context_parallel * share
        return layers.LayerShape(
            model=self.model,
            tokens=tokens,
            sequence_length=self.sequence_length,
            tensor_parallel=self.tensor_parallel,
            context_parallel=self.context_parallel,
            dtype=self.dtype,
            sequence_parallel=self.sequence_parallel,
            ring_attention=not nanobatched,  # what Megatron-LM does; nanobatches hide the collective themselves
        )

    def _segments(self, phase: WorkloadPhase, nanobatched: bool) -> tuple[layers.Segment, ...]:
        shape = self._layer_shape(nanobatched=nanobatched)
        if phase == "forward":
            return self._with_collectives(layers.forward_segments(shape))
        recompute = layers.forward_segments(shape, "rec") if self.activation_checkpointing else ()
        return self._with_collectives(recompute + layers.backward_segments(shape))

    def _with_collectives(self, segments: tuple[layers.Segment, ...]) -> tuple[layers.Segment, ...]:
        return segments if self.communication else tuple(replace(s, collective=None) for s in segments)

    def _rest(self, phase: WorkloadPhase, stage: int) -> tuple[Operator, ...]:
        shape, backward = self._layer_shape(), phase == "backward"
        pipelined = self.pipeline_parallel > 1
        first = layers.embedding(shape, backward=backward, pipelined=pipelined) if stage == 0 else ()
        last = layers.head(shape, backward=backward) if stage == self.pipeline_parallel - 1 else ()
        return last + first if backward else first + last

    def parameters_per_gpu(self, stage: int = 0) -> float:
        """Weights that one GPU of `stage` computes with (norms and biases left out); gathered, if fully sharded."""
        root_parameters = self._root_parameters(stage)
        return self.layers_per_stage[stage] * self.model.layer_parameters / self.tensor_parallel + root_parameters

    def _root_parameters(self, stage: int) -> float:
        """Embedding and head of one GPU of `stage`."""
        self._check_stage(stage)
        model, last = self.model, self.pipeline_parallel - 1
        has_head = stage == last and model.head in ("causal_lm", "masked_lm")
        own_head = has_head and not (model.tied_embeddings and last == 0)
        return (int(stage == 0) + int(own_head)) * model.embedding_parameters / self.tensor_parallel

    def _sharded_stage(self, stage: int) -> ShardedStage:
        value_bytes = DTYPE_BYTES[self.dtype]
        layer_bytes = self.model.layer_parameters / self.tensor_parallel * value_bytes
        root_bytes = self._root_parameters(stage) * value_bytes
        return ShardedStage(layer_bytes, root_bytes, self.layers_per_stage[stage], self.num_replicas)

    def _iteration_end(self, stage: int) -> tuple[Partition, ...]:
        """Gradient reduction over whole replicas, and AdamW on float32 master weights (of a GPU's shard).

        First and last stage each hold a tied embedding and sum its gradients, as Megatron-LM does.
        """
        value_bytes = DTYPE_BYTES[self.dtype]
        shards = self.num_replicas if self.fully_sharded else 1
        own = self.parameters_per_gpu(stage) / shards
        moved = own * (30.0 if value_bytes == 2 else 28.0)  # gradient, weight, two moments
        optimizer = Operator("optimizer_0", "memory", 0.0, moved, 4, self.dtype)
        step = Partition("optimizer", (optimizer,), None, 1, False)
        if not self.communication:
            return (step,)
        collectives = []
        if self.num_replicas > 1 and not self.fully_sharded:
            collectives.append(("grad_bucket", Collective("all_reduce", own * value_bytes, self.num_replicas)))
        if self.model.tied_embeddings and self.pipeline_parallel > 1 and (root := self._root_parameters(stage)):
            collectives.append(("grad_embedding", Collective("all_reduce", root / shards * value_bytes, 2)))
        return *(Partition(key, (), collective, 1, False) for key, collective in collectives), step
