"""Collectives over a torch.distributed process group: gloo on CPUs, nccl on GPUs.

Neither takes an SM count per call, so what a schedule asks for is recorded and not granted.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.choice import CollectivesError
from energy_lightning.collectives.issuing import IssuedCollectives, Launch, Operation
from energy_lightning.collectives.streams import CommunicationStreams


class ProcessGroupIssuer:
    """See Issuer. `group` is any torch.distributed group (None: the default one), `name` None: as torch calls it."""

    supports_sm_count = False

    def __init__(self, group: dist.ProcessGroup | None = None, *, name: str | None = None) -> None:
        if not dist.is_initialized():
            raise CollectivesError("torch.distributed is not initialised: call init_process_group first")
        self._group = group if group is not None else dist.group.WORLD
        self.name = name or str(dist.get_backend(self._group))

    @property
    def size(self) -> int:
        """See Issuer."""
        return dist.get_world_size(self._group)

    @property
    def rank(self) -> int:
        """See Issuer."""
        return dist.get_rank(self._group)

    def grant(self, operation: Operation, source: Tensor, sm_count: int | None) -> int | None:
        """See Issuer."""
        return None

    def issue(self, launch: Launch) -> dist.Work | None:
        """See Issuer."""
        return issue_on(self._group, launch)

    def close(self, *, in_step: bool) -> None:
        """The group belongs to whoever made it."""


# torch 2.13 renames both; the old names warn from then on
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def issue_on(group: dist.ProcessGroup | None, launch: Launch) -> dist.Work | None:
    """Issue on a torch group. nccl: on the current stream, nothing to wait for. gloo: returns the work to wait for."""
    output, source = launch.output, launch.source
    on_stream = source.is_cuda and "nccl" in str(dist.get_backend(group))
    asynchronous = not on_stream  # nccl's synchronous calls run on the current stream and do not block the host
    if launch.operation == "all_reduce":
        work = dist.all_reduce(source, group=group, async_op=asynchronous)
    elif launch.operation == "all_gather":
        work = _gather(output, source, group=group, async_op=asynchronous)
    else:
        work = _scatter(output, source, group=group, async_op=asynchronous)
    return None if on_stream else work


class ProcessGroupCollectives(IssuedCollectives):
    """See Collectives: over a torch.distributed group as it is (None: the default one)."""

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        streams: CommunicationStreams | None = None,
        *,
        speaks: bool = True,
    ) -> None:
        super().__init__(ProcessGroupIssuer(group), streams, speaks=speaks)
