"""The `grad_bucket` partition of models without recognised blocks: a communication hook for DistributedDataParallel.

DDP takes one hook per instance, so a new schedule is set on the hook's state. (No postponed annotations here: DDP
compares the hook's annotations with classes.)
"""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives import Collectives, Handle
from energy_lightning.parallel.reducer import HELD_BACK, start_mean
from energy_lightning.types import Schedule

_Future = torch.futures.Future[Tensor]


@dataclass
class GradBucketState:
    """What the hook needs besides the bucket.

    Attributes:
        collectives: over all replicas.
        schedule: how the buckets are reduced from the next backward on.
    """

    collectives: Collectives
    schedule: Schedule = field(default_factory=Schedule)
    _running: list[tuple[Handle, _Future]] = field(default_factory=list)
    _held: list[tuple[Tensor, _Future]] = field(default_factory=list)

    def begin(self) -> None:
        """A new backward: forget what one that failed has left."""
        self._running, self._held = [], []

    def add(self, buffer: Tensor, future: _Future) -> None:
        """A full bucket: start its reduction, or hold it back."""
        if self.schedule.launch == HELD_BACK:
            self._held.append((buffer, future))
        else:
            self._running.append((start_mean(self.collectives, buffer, self.schedule), future))

    def finish(self) -> None:
        """The last bucket is full: start what was held back, and complete every future."""
        for buffer, future in self._held:
            self._running.append((start_mean(self.collectives, buffer, self.schedule), future))
        for handle, future in self._running:
            future.set_result(handle.wait())
        self.begin()


def grad_bucket_hook(
    state: GradBucketState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks this parameter up by its name
) -> _Future:
    """Average one bucket over the replicas, at the time that the state's schedule asks for.

    The futures are completed together with the last bucket's, when DDP would wait for them anyway.
    """
    buffer: Tensor = bucket.buffer()
    future: _Future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
    if bucket.index() == 0:
        state.begin()
    state.add(buffer, future)
    if bucket.is_last():
        state.finish()
    return future
