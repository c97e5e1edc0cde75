"""Workload: a training job's model shape, sizes and parallelism; its partitions per phase and stage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from energy_lightning.types import WorkloadError
from energy_lightning.workload import layers
from energy_lightning.workload.interleave import nanobatched_partitions, sequential_partitions
from energy_lightning.workload.operators import DTYPE_BYTES, Collective, Operator, Partition
from energy_lightning.workload.shape import ModelShape

WorkloadPhase = Literal["forward", "backward", "iteration"]
_SUFFIX = re.compile(r"_(tp|pp|cp|dp)(\d+)$")
_SUFFIX_FIELDS = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
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

    def __post_init__(self) -> None:
        for name in (*_SUFFIX_FIELDS.values(), "microbatch_size", "num_microbatches", "sequence_length"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise WorkloadError(f"{self.model.name}: {name} must be a whole number >= 1, got {value!r}")
        if self.dtype not in DTYPE_BYTES:
            raise WorkloadError(f"{self.model.name}: dtype must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}")
        self._check_division()
        object.__setattr__(self, "layers_per_stage", self._stage_layers())

    def _check_division(self) -> None:
        model = self.model
        for what, size, parts_name in (
            ("num_heads", model.num_heads, "tensor_parallel"),
            ("ffn_size", model.ffn_size, "tensor_parallel"),
            ("sequence_length", self.sequence_length, "context_parallel"),
        ):
            parts = getattr(self, parts_name)
            if size % parts:
                allowed = ", ".join(str(d) for d in range(1, min(size, 129)) if size % d == 0)
                raise WorkloadError(
                    f"{model.name}: {parts_name}={parts} does not divide {what}={size}; choose one of {allowed}"
                )

    def _stage_layers(self) -> tuple[int, ...]:
        stages, num_layers, name = self.pipeline_parallel, self.model.num_layers, self.model.name
        if num_layers < stages:
            raise WorkloadError(
                f"{name}: pipeline_parallel={stages} needs at least one layer a stage, the model has {num_layers}"
            )
        if not self.layers_per_stage:
            return tuple(num_layers // stages + (s < num_layers % stages) for s in range(stages))
        given = tuple(self.layers_per_stage)
        if len(given) != stages or sum(given) != num_layers or min(given) < 1:
            raise WorkloadError(
                f"{name}: layers_per_stage must name {stages} stages of >= 1 layer, in all {num_layers}, got {given}"
            )
        return given

    @classmethod
    def preset(cls, name: str, **sizes: Any) -> Workload:
        """A published model, e.g. `preset("llama3.2_3b", tensor_parallel=8)` or `preset("llama3.2_3b_tp8")`.

        Suffixes _tpN, _cpN, _ppN, _dpN set the group sizes; keyword arguments win over them.
        """
        fields: dict[str, Any] = {}
        base = name
        while match := _SUFFIX.search(base):
            fields[_SUFFIX_FIELDS[match[1]]] = int(match[2])
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
        if isinstance(given.get("layers_per_stage"), Sequence):
            given["layers_per_stage"] = tuple(given["layers_per_stage"])
        elif given.get("layers_per_stage", ()) is None:
            del given["layers_per_stage"]
        return cls(model=model, **given)

    def with_sizes(self, **sizes: Any) -> Workload:
        """A copy with other sizes (microbatch_size, sequence_length, ...)."""
        return replace(self, **sizes)

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

    def key(self) -> dict[str, Any]:
        """Plain values that identify shape and parallelism."""
        values = asdict(self)
        values["layers_per_stage"] = list(self.layers_per_stage)
        return values

    def partitions(self, phase: WorkloadPhase, *, stage: int = 0, nanobatched: bool) -> tuple[Partition, ...]:
        """The partitions that one microbatch's phase (or one iteration's end) executes on one GPU of `stage`.

        The phase's time is the sum over partitions of count x time: with nanobatches, "fwd_edge"/"bwd_edge" holds the
        first compute and the trailing collective, which nothing hides. "*_rest", "grad_bucket" and "optimizer" are
        sequential in both modes.

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
        return (*build(segments, num_layers, prefix), *tail)

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
        first = layers.embedding(shape, backward=backward) if stage == 0 else ()
        last = layers.head(shape, backward=backward) if stage == self.pipeline_parallel - 1 else ()
        return last + first if backward else first + last

    def parameters_per_gpu(self, stage: int = 0) -> float:
        """Weights held by one GPU of `stage` (norms and biases left out)."""
        self._check_stage(stage)
        model, last = self.model, self.pipeline_parallel - 1
        has_head = stage == last and model.head in ("causal_lm", "masked_lm")
        own_head = has_head and not (model.tied_embeddings and last == 0)
        embeddings = (int(stage == 0) + int(own_head)) * model.embedding_parameters
        return (self.layers_per_stage[stage] * model.layer_parameters + embeddings) / self.tensor_parallel

    def _iteration_end(self, stage: int) -> tuple[Partition, ...]:
        """Gradient reduction, charged as if nothing hid it, and AdamW on float32 master weights."""
        parameters = self.parameters_per_gpu(stage)
        replicas = self.data_parallel * self.context_parallel
        moved = parameters * (30.0 if DTYPE_BYTES[self.dtype] == 2 else 28.0)  # gradient, weight, two moments
        optimizer = Operator("optimizer_0", "memory", 0.0, moved, 4, self.dtype)
        step = Partition("optimizer", (optimizer,), None, 1, False)
        if replicas == 1 or not self.communication:
            return (step,)
        gradients = Collective("all_reduce", parameters * DTYPE_BYTES[self.dtype], replicas)
        return Partition("grad_bucket", (), gradients, 1, False), step
