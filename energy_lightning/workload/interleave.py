"""How segments become partitions: one after the other, or two nanobatches interleaved.

Nanobatched, with segments A (closed by collective a), M (closed by m) and nanobatches 0 and 1, one layer after another:

    compute stream   A0   A1   M0   M1   A0'  A1'  ...  M0"  M1"
    beside it             a0   a1   m0   m1   a0'  ...  a1"  m0"  m1" (trails)

Every segment is computed twice a layer beside a collective: once the one that closes the segment before it (of
nanobatch 1), once its own (of nanobatch 0). Where the two are alike, both are one partition type, else the key
gets the collective's suffix ("_alone" where there is none). The first compute and the trailing collective of a phase
form the "edge".
Source: partitioned overlap, Kareus (arXiv 2601.17654).
"""

from __future__ import annotations

from collections.abc import Sequence

from energy_lightning.workload.layers import Segment
from energy_lightning.workload.operators import Collective, Partition

_SUFFIX = {"all_reduce": "ar", "all_gather": "ag", "reduce_scatter": "rs"}


def _suffix(collective: Collective | None, both: bool) -> str:
    if collective is None:
        return "_alone"
    return f"_{_SUFFIX[collective.kind]}" if both else ""


def sequential_partitions(segments: Sequence[Segment], num_layers: int, prefix: str) -> tuple[Partition, ...]:
    """Each segment of the whole microbatch, its collective exposed after it."""
    return tuple(Partition(s.key, s.operators, s.collective, num_layers, nanobatched=False) for s in segments)


def nanobatched_partitions(segments: Sequence[Segment], num_layers: int, prefix: str) -> tuple[Partition, ...]:
    """Partitions of two interleaved nanobatches; `segments` hold half a microbatch each. See the module's picture."""
    partitions: list[Partition] = []
    for i, segment in enumerate(segments):
        before, own = segments[i - 1].collective, segment.collective  # i = 0: the previous layer's last
        first_count = num_layers - 1 if i == 0 else num_layers  # the phase's very first compute has nothing beside it
        if before == own:
            partitions.append(Partition(segment.key, segment.operators, own, first_count + num_layers, True))
            continue
        for collective, count in ((before, first_count), (own, num_layers)):
            if count:
                key = segment.key + _suffix(collective, before is not None and own is not None)
                partitions.append(Partition(key, segment.operators, collective, count, True))
    edge = Partition(f"{prefix}_edge", segments[0].operators, segments[-1].collective, 1, True)
    return (*partitions, edge)
