"""Operator, Collective and Partition: one GPU's work, in FLOPs and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OperatorKind = Literal["linear", "attention", "memory"]
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter"]
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Operator:
    """One compute operator, one execution, on one GPU.

    Attributes:
        name: numbered inside its partition ("norm_0", "linear_0", ...).
        kind: which throughput limits it: "linear" and "attention" are matrix products, "memory" moves bytes.
        flops: floating-point operations (a multiply-add counts two).
        bytes: bytes read and written in device memory if every tensor passes through it once.
        num_kernels: kernels launched.
        dtype: format of the matrix products ("bf16", "fp16", "fp32").
        efficiency: throughput of this shape relative to a very large one, from 0 to 1.
        gradient: a linear of backward (gradients of input and weight).
    """

    name: str
    kind: OperatorKind
    flops: float
    bytes: float
    num_kernels: int = 1
    dtype: str = "bf16"
    efficiency: float = 1.0
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective, one execution.

    Attributes:
        kind: "all_reduce", "all_gather" or "reduce_scatter".
        bytes: size of the full tensor (all-gather: after gathering; reduce-scatter: before).
        group_size: GPUs taking part.
    """

    kind: CollectiveKind
    bytes: float
    group_size: int

    @property
    def wire_bytes(self) -> float:
        """Bytes that each GPU sends in a ring: (n-1)/n of the tensor, all-reduce twice that."""
        passes = 2.0 if self.kind == "all_reduce" else 1.0
        return passes * self.bytes * (self.group_size - 1) / self.group_size


@dataclass(frozen=True, slots=True)
class Partition:
    """One collective and the run of compute operators it is executed with.

    Attributes:
        key: type of the partition, named after its compute ("fwd_attn", "bwd_mlp", ...).
        operators: the compute, in execution order.
        collective: nanobatched: the other nanobatch's collective, hidden behind `operators`; sequential: the collective
            that follows `operators`, exposed. None if there is none.
        count: executions in one microbatch's phase (for the phase "iteration": in one iteration).
        nanobatched: operators hold half a microbatch and the collective may overlap them.
        independent: the collective may overlap `operators` though they hold the whole microbatch, for it moves none of
            their values (parameters gathered ahead, gradients of layers that are done).
    """

    key: str
    operators: tuple[Operator, ...]
    collective: Collective | None
    count: int
    nanobatched: bool
    independent: bool = False

    @property
    def name(self) -> str:
        """`key`, with ".sequential" appended where the partition is not nanobatched."""
        return self.key if self.nanobatched else f"{self.key}.sequential"

    @property
    def launch_points(self) -> tuple[str, ...]:
        """Operators beside which the collective may be launched; empty where nothing can hide it.

        The last operator is left out (a launch there always leaves the collective exposed) unless it is the only one.
        """
        may_overlap = self.nanobatched or self.independent
        if not may_overlap or self.collective is None or self.key.endswith("_edge"):
            return ()
        names = tuple(operator.name for operator in self.operators)
        return names if len(names) == 1 else names[:-1]
