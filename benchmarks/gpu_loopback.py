"""A collective of one GPU with itself, for machines that have a single one: the memory traffic of a ring, on n SMs.

Every element is read and written `passes` times by a kernel of n blocks of 1024 threads, one block an SM, and keeps its
value. Links are not used: what is seen is how compute suffers from lending SMs and memory bandwidth, and how long the
traffic takes on so few SMs. The kernel is Triton's, which comes with CUDA builds of torch; without it (on a CPU) the
tensor is multiplied by one, and no SM count is honoured.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from energy_lightning.collectives.issuing import IssuedCollectives, Launch, Operation
from energy_lightning.collectives.streams import CommunicationStreams

DEFAULT_SM_COUNT = 16
_CHUNK = 16384  # elements a block moves at a time: 16 a thread, enough to be under way at once
_WARPS = 32  # 1024 threads: an SM holds two such blocks at most, and the hardware fills empty SMs first


def has_kernel() -> bool:
    """Whether Triton is there."""
    return importlib.util.find_spec("triton") is not None


def make_kernel() -> Callable[[Tensor, int, int], None]:
    """(tensor, SMs, passes) -> the traffic on torch's current stream. ImportError without Triton."""
    from gpu_triton_kernel import touch

    def run(tensor: Tensor, sm_count: int, passes: int) -> None:
        touch[(sm_count,)](tensor, tensor.numel(), passes, chunk=_CHUNK, num_warps=_WARPS)

    return run


class LoopbackIssuer:
    """A backend of one rank; see Issuer.

    Args:
        use_kernel: honour SM counts with the Triton kernel.
        passes: reads and writes of the tensor; 2 is the traffic of an all-reduce in a ring of many ranks.
    """

    name, size, rank = "loopback", 1, 0

    def __init__(self, *, use_kernel: bool, passes: int = 2) -> None:
        self.supports_sm_count = use_kernel
        self._kernel = make_kernel() if use_kernel else None
        self._passes = passes

    def grant(self, operation: Operation, source: Tensor, sm_count: int | None) -> int | None:
        """What was asked for, with the kernel."""
        return (sm_count or DEFAULT_SM_COUNT) if self._kernel is not None else None

    def issue(self, launch: Launch) -> None:
        """On torch's current stream, which is the communication stream."""
        if launch.operation != "all_reduce":
            launch.output.view(-1).copy_(launch.source.view(-1))
        if self._kernel is not None:
            self._kernel(launch.output, launch.sm_count or DEFAULT_SM_COUNT, self._passes)
        else:
            for _ in range(self._passes):
                launch.output.mul_(1)

    def close(self, *, in_step: bool) -> None:
        """Nothing is held."""


def loopback(device: torch.device, streams: CommunicationStreams | None = None) -> IssuedCollectives:
    """The loop-back backend for tensors on `device`, with the kernel where it can run."""
    issuer = LoopbackIssuer(use_kernel=device.type == "cuda" and has_kernel())
    return IssuedCollectives(issuer, streams, speaks=False)
