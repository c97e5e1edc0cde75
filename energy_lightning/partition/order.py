"""The order in which partitions run: pure data, apart from the code that runs it.

Two nanobatches, forward (AR: the all-reduce of the partition before, hidden behind the compute of this one):

    compute      attn 0   attn 1        mlp 0         mlp 1         attn 0 (next layer)   ...
    beside it    -        AR(attn 0)    AR(attn 1)    AR(mlp 0)     AR(mlp 1)             ...

Backward runs layers from the last, in each first the recomputation (if its activations were not kept), then the MLP,
then attention, nanobatches interleaved in the same way. With one nanobatch nothing hides the collectives.
Source: partitioned overlap, Kareus (arXiv 2601.17654), section on the execution model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One partition of one layer and nanobatch; `key` as in Plan schedules ("fwd_attn", "rec_mlp", "bwd_attn", ...)."""

    key: str
    layer: int
    nanobatch: int

    @property
    def body(self) -> int:
        """Index of the body in the chain of the stack: two per layer, attention first."""
        return 2 * self.layer + (self.key.endswith("mlp"))


def forward_steps(num_layers: int, num_nanobatches: int) -> Iterator[Step]:
    """The partitions of a forward, in order."""
    for layer in range(num_layers):
        for key in ("fwd_attn", "fwd_mlp"):
            for nanobatch in range(num_nanobatches):
                yield Step(key, layer, nanobatch)


def backward_steps(layers: range, num_nanobatches: int, recomputed: Collection[int]) -> Iterator[Step]:
    """The partitions of a backward over `layers` (ascending), those in `recomputed` after running forward again."""
    for layer in reversed(layers):
        recomputation = ("rec_attn", "rec_mlp") if layer in recomputed else ()
        for key in (*recomputation, "bwd_mlp", "bwd_attn"):
            for nanobatch in range(num_nanobatches):
                yield Step(key, layer, nanobatch)
