"""What a Workload refuses: sizes that are no counts, and shapes that cannot be split as asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energy_lightning.types import WorkloadError
from energy_lightning.workload.operators import DTYPE_BYTES
from energy_lightning.workload.shape import ModelShape

if TYPE_CHECKING:
    from energy_lightning.workload.job import Workload

_COUNTS = (
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
    "data_parallel",
    "microbatch_size",
    "num_microbatches",
    "sequence_length",
)
DATA_PARALLEL_KINDS = ("all_reduce", "fully_sharded")


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number >= 1 (True is none)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_sizes(w: Workload) -> None:
    """WorkloadError for a model, size, format or switch that has no meaning."""
    if not isinstance(w.model, ModelShape):
        raise WorkloadError(f"model must be a ModelShape (Workload.preset takes names), got {w.model!r}")
    name = w.model.name
    for field in _COUNTS:
        value = getattr(w, field)
        if not is_count(value):
            raise WorkloadError(f"{name}: {field} must be a whole number >= 1, got {value!r}")
    for field, allowed in (("dtype", tuple(DTYPE_BYTES)), ("data_parallel_kind", DATA_PARALLEL_KINDS)):
        value = getattr(w, field)
        if value not in allowed:
            raise WorkloadError(f"{name}: {field} must be one of {', '.join(allowed)}, got {value!r}")
    for field in ("activation_checkpointing", "sequence_parallel", "communication"):
        value = getattr(w, field)
        if not isinstance(value, bool):
            raise WorkloadError(f"{name}: {field} must be true or false, got {value!r}")


def check_division(w: Workload) -> None:
    """WorkloadError naming the sizes that would do, for a group that does not divide what it splits."""
    model = w.model
    halves = " and its two halves a rank (a causal mask is balanced so)" if model.causal else ""
    for what, size, parts_name, times, why in (
        ("num_heads", model.num_heads, "tensor_parallel", 1, ""),
        ("num_kv_heads", model.num_kv_heads, "tensor_parallel", 1, " (key and value heads are not replicated)"),
        ("ffn_size", model.ffn_size, "tensor_parallel", 1, ""),
        ("sequence_length", w.sequence_length, "context_parallel", 2 if model.causal else 1, halves),
        (
            "sequence_length",
            w.sequence_length,
            "tensor_parallel",
            1 if w.sequence_parallel else 0,
            " (sequence_parallel)",
        ),
    ):
        parts = getattr(w, parts_name)
        if parts > 1 and size % (parts * times or 1):
            allowed = [d for d in range(1, min(size, 128) + 1) if d == 1 or size % (d * times) == 0]
            raise WorkloadError(
                f"{model.name}: {parts_name}={parts} does not divide {what}={size}{why}; "
                f"choose one of {', '.join(map(str, allowed))}"
            )


def stage_layers(w: Workload) -> tuple[int, ...]:
    """Layers of each stage: those given, else an even split whose rest goes to the earlier stages.

    Raises:
        WorkloadError: there are fewer layers than stages, or those given are not the model's.
    """
    stages, num_layers, name = w.pipeline_parallel, w.model.num_layers, w.model.name
    if num_layers < stages:
        raise WorkloadError(
            f"{name}: pipeline_parallel={stages} needs at least one layer a stage, the model has {num_layers}; "
            f"choose 1 to {num_layers}"
        )
    given = w.layers_per_stage
    if not isinstance(given, (list, tuple)):
        raise WorkloadError(f"{name}: layers_per_stage must list layers, e.g. [15, 13], got {given!r}")
    if not given:
        return tuple(num_layers // stages + (s < num_layers % stages) for s in range(stages))
    if len(given) != stages or not all(is_count(n) for n in given) or sum(given) != num_layers:
        total = f", in all {sum(given)}" if all(is_count(n) for n in given) else ""
        raise WorkloadError(
            f"{name}: layers_per_stage must name {stages} stages of >= 1 layer, in all {num_layers}, "
            f"got {tuple(given)}{total}"
        )
    return tuple(given)
