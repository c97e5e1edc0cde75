"""Fully sharded data parallelism (ZeRO stage 3, PyTorch's FSDP): each of N replicas keeps 1/N of a stage's parameters.

    forward    gather root + layer 0 |  layer 0 computes, layer 1 is gathered  |  layer 1, layer 2 is gathered  | ...
    backward   gather the last layer |  layer i computes; i-1 is gathered, gradients of i+1 are reduced and scattered
                                        | ... |  scatter layer 0 + root

The root (embedding, head) stays gathered for the microbatch; a layer is gathered for forward and again for backward,
and its gradients are scattered after every microbatch. What overlaps is spread evenly over a layer's partitions: in
backward the gathering over the recomputed part (without recomputation: the MLP), the scattering over the rest. Beside a
collective of tensor or context parallelism it follows on the same stream and counts as so many more bytes of that one.
Not modelled: a limit on how far ahead is gathered, float32 reduction, links that differ between the groups.
Source: PyTorch FSDP (arXiv 2304.11277).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from energy_lightning.workload.operators import Collective, CollectiveKind, Partition


@dataclass(frozen=True, slots=True)
class ShardedStage:
    """Parameters of one pipeline stage, in bytes that a GPU holds while they are gathered.

    Attributes:
        layer_bytes: of one layer.
        root_bytes: of embedding and head.
        num_layers: layers of the stage.
        num_shards: GPUs that share them.
    """

    layer_bytes: float
    root_bytes: float
    num_layers: int
    num_shards: int

    def forward(self, partitions: Iterable[Partition]) -> tuple[Partition, ...]:
        """The forward's partitions with the gathering of parameters beside and before them."""
        first = self._alone("fwd_gather", "all_gather", self.root_bytes + self.layer_bytes)
        return first, *self._beside(tuple(partitions), "all_gather", _is_layer)

    def backward(self, partitions: Iterable[Partition]) -> tuple[Partition, ...]:
        """The backward's partitions with gathering beside one part, scattering beside the other, and both ends."""
        given = tuple(partitions)
        early = "rec_" if any(p.key.startswith("rec_") for p in given) else "bwd_mlp"
        gathering = self._beside(given, "all_gather", lambda p: _is_layer(p) and p.key.startswith(early))
        both = self._beside(gathering, "reduce_scatter", lambda p: _is_layer(p) and not p.key.startswith(early))
        first = self._alone("bwd_gather", "all_gather", self.layer_bytes)
        return first, *both, self._alone("bwd_scatter", "reduce_scatter", self.layer_bytes + self.root_bytes)

    def _alone(self, key: str, kind: CollectiveKind, num_bytes: float) -> Partition:
        return Partition(key, (), Collective(kind, num_bytes, self.num_shards), 1, False)

    def _beside(
        self, partitions: tuple[Partition, ...], kind: CollectiveKind, wanted: Callable[[Partition], bool]
    ) -> tuple[Partition, ...]:
        hidden_bytes = (self.num_layers - 1) * self.layer_bytes
        if not hidden_bytes:
            return partitions
        executions = sum(p.count for p in partitions if wanted(p))
        share = Collective(kind, hidden_bytes / executions, self.num_shards)
        return tuple(part for p in partitions for part in (_with_share(p, share) if wanted(p) else (p,)))


def _is_layer(partition: Partition) -> bool:
    return bool(partition.operators) and not partition.key.endswith(("_edge", "_rest"))


def _with_share(partition: Partition, share: Collective) -> Iterator[Partition]:
    """`partition` with `share` of the parameters' traffic beside its operators."""
    own = partition.collective
    if partition.nanobatched and own is not None:
        more = 1.0 + share.wire_bytes / own.wire_bytes
        yield replace(partition, collective=replace(own, bytes=own.bytes * more))
        return
    yield replace(partition, collective=share, independent=True)
    if own is not None:  # sequential: exposed after the operators, as before
        yield Partition(f"{partition.key}_reduce", (), own, partition.count, False)
