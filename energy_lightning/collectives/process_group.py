"""Collectives over a torch.distributed process group: gloo on CPUs, nccl on GPUs.

Neither takes an SM count per call, so what a schedule asks for is recorded and not granted.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.base import CollectivesError, Handle
from energy_lightning.collectives.streams import CommunicationStream, communication_stream


class ProcessGroupHandle:
    """A running torch.distributed operation; see Handle."""

    granted_sm_count: int | None = None

    def __init__(
        self,
        work: dist.Work,
        tensors: tuple[Tensor, ...],
        *,
        divisor: int,
        stream: CommunicationStream,
        asked_sm_count: int | None,
    ) -> None:
        self.asked_sm_count = asked_sm_count
        self._work: dist.Work | None = work
        self._result = tensors[0]
        self._tensors = tensors  # the input too: it must live until the operation has read it
        self._divisor = divisor
        self._stream = stream
        self._mark: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            self._finish_on_stream()  # nothing blocks: the side stream waits, compute goes on

    def _finish_on_stream(self) -> None:
        if self._work is None:
            return
        with self._stream.beside_compute():
            self._work.wait()
            if self._divisor > 1:
                self._result.div_(self._divisor)
        self._mark = self._stream.mark()
        self._work = None

    def wait(self) -> Tensor:
        """See Handle."""
        self._finish_on_stream()
        self._stream.join(self._mark)
        self._tensors = ()
        return self._result


class ProcessGroupCollectives:
    """See Collectives. `group` is any torch.distributed group (None: the default one)."""

    supports_sm_count = False

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise CollectivesError("torch.distributed is not initialised: call init_process_group first")
        self._group = group if group is not None else dist.group.WORLD
        self._streams: dict[torch.device, CommunicationStream] = {}
        self.name = str(dist.get_backend(self._group))

    @property
    def size(self) -> int:
        """See Collectives."""
        return dist.get_world_size(self._group)

    @property
    def rank(self) -> int:
        """See Collectives."""
        return dist.get_rank(self._group)

    def all_reduce(
        self, tensor: Tensor, *, average: bool = False, sm_count: int | None = None, block_threads: int | None = None
    ) -> Handle:
        """See Collectives."""
        _check_contiguous(tensor)
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        return self._handle(work, (tensor,), average, sm_count)

    def all_gather(self, tensor: Tensor, *, sm_count: int | None = None, block_threads: int | None = None) -> Handle:
        """See Collectives."""
        _check_contiguous(tensor)
        gathered = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        work = dist.all_gather(list(gathered.chunk(self.size)), tensor, group=self._group, async_op=True)
        return self._handle(work, (gathered, tensor), False, sm_count)

    def reduce_scatter(
        self, tensor: Tensor, *, average: bool = False, sm_count: int | None = None, block_threads: int | None = None
    ) -> Handle:
        """See Collectives."""
        _check_contiguous(tensor)
        if tensor.shape[0] % self.size:
            raise CollectivesError(
                f"reduce_scatter splits dim 0 over {self.size} ranks, got shape {tuple(tensor.shape)}: pad it first"
            )
        block = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        work = dist.reduce_scatter(block, list(tensor.chunk(self.size)), group=self._group, async_op=True)
        return self._handle(work, (block, tensor), average, sm_count)

    def _handle(
        self, work: dist.Work, tensors: tuple[Tensor, ...], average: bool, sm_count: int | None
    ) -> ProcessGroupHandle:
        device = tensors[0].device
        if device not in self._streams:
            self._streams[device] = communication_stream(device)
        divisor = self.size if average else 1
        return ProcessGroupHandle(work, tensors, divisor=divisor, stream=self._streams[device], asked_sm_count=sm_count)


def _check_contiguous(tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise CollectivesError(f"collectives take contiguous tensors, got strides {tensor.stride()}")
