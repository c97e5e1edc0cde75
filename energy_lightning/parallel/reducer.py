"""Data-parallel averaging of gradients, overlapped with the backward that makes them.

A bucket is reduced as soon as the gradients of all its parameters are final, but never before an earlier bucket: every
rank thus issues the same collectives in the same order, even where ranks use different parameters.

    backward:  ... layer 3 | layer 2 | layer 1 | embedding | end: fill what is missing, wait, divide
    buckets:               | 0 ->    | 1 ->              | 2 ->
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from energy_lightning.collectives import Collectives, Handle
from energy_lightning.parallel.buckets import GradientBucket, make_buckets
from energy_lightning.types import Schedule, StrategyError

HELD_BACK = "end"
"""`Schedule.launch` of a `grad_bucket`: reduce when backward is over. Any other value: as soon as a bucket is full."""


class GradientReducer:
    """Averages the gradients of `parameters` over the ranks of `collectives`.

    Args:
        parameters: those that may get gradients, in forward order; the same on every rank.
        announced: those among them whose gradients are announced by `mark_ready` (the engine's blocks); the others
            announce themselves when autograd has accumulated their gradient.
        collectives: over the replicas.
        bucket_cap_bytes: size of a bucket; larger parameters get one of their own.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        announced: Iterable[nn.Parameter] = (),
        collectives: Collectives,
        bucket_cap_bytes: int,
    ) -> None:
        self._parameters = tuple(dict.fromkeys(parameters))
        self._announced = frozenset(announced)
        self.collectives = collectives
        self._cap_bytes = bucket_cap_bytes
        self.schedule = Schedule()
        """SMs that a reduction gets, and whether it waits for the end of backward (`HELD_BACK`)."""
        self._active = False
        self._hooks: list[RemovableHandle] = []
        self._build()

    def _build(self) -> None:
        """(Re)distribute the parameters that need gradients now over buckets, last layers first."""
        self.close()
        trainable = [p for p in self._parameters if p.requires_grad]
        self._frozen = [p for p in self._parameters if not p.requires_grad]
        self.buckets: list[GradientBucket] = make_buckets(reversed(trainable), cap_bytes=self._cap_bytes)
        self._bucket_index = {p: index for index, bucket in enumerate(self.buckets) for p in bucket.parameters}
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._mark_one)  # type: ignore[no-untyped-call]
            for p in trainable
            if p not in self._announced
        ]

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def prepare(self, loss: Tensor) -> None:
        """Reduce during the next backward through `loss`; its gradients are means when that backward returns."""
        if any(p.requires_grad for p in self._frozen):  # unfrozen since: it has no place in any bucket yet
            self._build()
        if not loss.requires_grad:
            return

        def begin(_: Tensor) -> None:
            handle.remove()
            self._begin()

        handle: RemovableHandle = loss.register_hook(begin)  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        self._active = True
        self._num_launched = 0
        self._handles: list[Handle] = []
        self._ready: set[nn.Parameter] = set()
        self._num_missing = [len(bucket) for bucket in self.buckets]
        Variable._execution_engine.queue_callback(self._finish)  # as DDP and FSDP do

    def _mark_one(self, parameter: Tensor) -> None:
        self.mark_ready((parameter,))  # type: ignore[arg-type]

    def mark_ready(self, parameters: Sequence[nn.Parameter]) -> None:
        """The gradients of `parameters` are final for this backward. Does nothing while gradients accumulate."""
        if not self._active:
            return
        for parameter in parameters:
            index = self._bucket_index.get(parameter)
            if index is None:
                continue
            if index < self._num_launched:
                raise StrategyError(
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} changed after it was reduced. Is "
                    "it used in several checkpointed segments? Pass use_reentrant=False to torch.utils.checkpoint."
                )
            if parameter not in self._ready:
                self._ready.add(parameter)
                self._num_missing[index] -= 1
        if self.schedule.launch != HELD_BACK:
            self._launch_full()

    def _launch_full(self) -> None:
        while self._num_launched < len(self.buckets) and self._num_missing[self._num_launched] == 0:
            self._launch_next()

    def _launch_next(self) -> None:
        bucket = self.buckets[self._num_launched]
        bucket.fill()
        self._handles.append(start_mean(self.collectives, bucket.buffer, self.schedule))
        self._num_launched += 1

    def _finish(self) -> None:
        """End of backward: reduce what nobody announced, wait, and expose the means."""
        while self._num_launched < len(self.buckets):
            self._launch_next()
        for bucket, handle in zip(self.buckets, self._handles, strict=True):
            handle.wait()
            bucket.expose()
        self._active = False


def start_mean(collectives: Collectives, buffer: Tensor, schedule: Schedule) -> Handle:
    """Start the averaging of a flat tensor over the replicas, in place, under a schedule."""
    return collectives.all_reduce(
        buffer, average=True, sm_count=schedule.sm_count, block_threads=schedule.block_threads
    )


@torch.no_grad()
def broadcast_module(module: nn.Module, *, source: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank of `group` (default: all) the parameters and buffers of global rank `source`."""
    for tensor in (*module.parameters(), *module.buffers()):
        contiguous = tensor.detach().contiguous()
        dist.broadcast(contiguous, source, group=group)
        if contiguous.data_ptr() != tensor.data_ptr():
            tensor.copy_(contiguous)
