"""The `grad_bucket` partition of models without recognised blocks: a communication hook for DistributedDataParallel.

DDP takes one hook per instance, so a new schedule is set on the hook's state. (No postponed annotations here: DDP
compares the hook's annotations with classes.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.types import Schedule

HELD_BACK = "end"
"""`Schedule.launch` of a `grad_bucket`: reduce when backward is over. Any other value: as soon as a bucket is full."""


@dataclass
class GradBucketState:
    """What the hook needs besides the bucket.

    Attributes:
        group: the data-parallel process group (None: all ranks).
        schedule: how the buckets are reduced from the next backward on.
        start: starts a summing all-reduce of a flat tensor under a schedule and returns its future.
    """

    group: dist.ProcessGroup | None = None
    schedule: Schedule = field(default_factory=Schedule)
    start: Callable[[Tensor, Schedule], "torch.futures.Future[list[Tensor]]"] | None = None
    _held: list[tuple[Tensor, "torch.futures.Future[Tensor]"]] = field(default_factory=list)

    def reduce(self, buffer: Tensor) -> "torch.futures.Future[Tensor]":
        """Start the averaging of `buffer` in place; the future gives `buffer`."""
        num_ranks = dist.get_world_size(self.group)
        if self.start is not None:
            summed = self.start(buffer, self.schedule)
        else:
            summed = dist.all_reduce(buffer, group=self.group, async_op=True).get_future()
        return summed.then(lambda _: buffer.div_(num_ranks))


def grad_bucket_hook(
    state: GradBucketState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks this parameter up by its name
) -> torch.futures.Future[Tensor]:
    """Average one bucket over the replicas, at the time that the state's schedule asks for."""
    if state.schedule.launch != HELD_BACK:
        return state.reduce(bucket.buffer())
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    state._held.append((bucket.buffer(), future))
    if bucket.is_last():
        held, state._held = state._held, []
        for buffer, waiting in held:
            reduced = state.reduce(buffer)
            waiting.set_result(reduced.wait())
    return future
