"""What all backends share: checks, results, averages, streams and handles. A backend only issues."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.choice import CollectivesError
from energy_lightning.collectives.grants import GrantLedger
from energy_lightning.collectives.streams import CommunicationStream, CommunicationStreams, Mark

Operation = Literal["all_reduce", "all_gather", "reduce_scatter"]


class Launch(NamedTuple):
    """One collective that a backend is to issue.

    Attributes:
        operation: what to do. "all_reduce": `output` is `source`.
        output, source: contiguous, same dtype and device, not empty; with "all_gather" `output` has size times the
            elements of `source`, with "reduce_scatter" the other way round.
        sm_count, block_threads: as asked for by the schedule.
        stream: cudaStream_t to issue on, which is torch's current stream, too; 0 on a CPU.
    """

    operation: Operation
    output: Tensor
    source: Tensor
    sm_count: int | None
    block_threads: int | None
    stream: int


class Issuer(Protocol):
    """One library, bound to one group of ranks."""

    name: str
    supports_sm_count: bool

    @property
    def size(self) -> int: ...  # noqa: D102 - as in Collectives
    @property
    def rank(self) -> int: ...  # noqa: D102 - as in Collectives

    def grant(self, operation: Operation, source: Tensor, sm_count: int | None) -> int | None:
        """SMs that a collective asking for `sm_count` will get at most; None: cannot tell."""
        ...

    def issue(self, launch: Launch) -> dist.Work | None:
        """Issue the collective (sums, not means). Returns what the host must wait for, on CPUs; None: the stream does.

        Raises CollectivesError where the library reports a failure.
        """
        ...

    def close(self, *, in_step: bool) -> None:
        """As in Collectives; may be called once more."""
        ...


class IssuedHandle:
    """See Handle. `mark` None: there was nothing to do. `work`: what to wait for on the host, then divide."""

    def __init__(self, result: Tensor, *, asked_sm_count: int | None, granted_sm_count: int | None) -> None:
        self.asked_sm_count = asked_sm_count
        self.granted_sm_count = granted_sm_count
        self._result = result
        self._stream: CommunicationStream | None = None
        self._mark: Mark | None = None
        self._work: dist.Work | None = None
        self._divisor = 1

    def launched(self, stream: CommunicationStream, mark: Mark, work: dist.Work | None, divisor: int) -> None:
        """The collective is under way; with `work`, the division by `divisor` is still to be done."""
        self._stream, self._mark, self._work, self._divisor = stream, mark, work, divisor

    def wait(self) -> Tensor:
        """See Handle."""
        if self._work is not None:
            self._work.wait()
            if self._divisor > 1:
                self._result.div_(self._divisor)
            self._work = None
        if self._stream is not None and self._mark is not None:
            self._stream.join(self._mark)
        return self._result


class IssuedCollectives:
    """See Collectives: whatever `issuer` issues, on the communication stream of the tensor's device."""

    def __init__(self, issuer: Issuer, streams: CommunicationStreams | None = None, *, speaks: bool = True) -> None:
        self.name = issuer.name
        self.supports_sm_count = issuer.supports_sm_count
        self.grants = GrantLedger(issuer.name, speaks=speaks)
        self._issuer = issuer
        self._streams = streams or CommunicationStreams()
        self._size, self._rank = issuer.size, issuer.rank

    @property
    def size(self) -> int:
        """See Collectives."""
        return self._size

    @property
    def rank(self) -> int:
        """See Collectives."""
        return self._rank

    def all_reduce(
        self, tensor: Tensor, *, average: bool = False, sm_count: int | None = None, block_threads: int | None = None
    ) -> IssuedHandle:
        """See Collectives."""
        return self._start("all_reduce", tensor, tensor, average, (sm_count, block_threads))

    def all_gather(
        self, tensor: Tensor, *, sm_count: int | None = None, block_threads: int | None = None
    ) -> IssuedHandle:
        """See Collectives."""
        if tensor.dim() == 0:
            raise CollectivesError("all_gather stacks along dim 0, got a tensor without dimensions: reshape it to (1,)")
        _check(tensor, average=False)
        gathered = tensor.new_empty((self._size * tensor.shape[0], *tensor.shape[1:]))
        return self._start("all_gather", gathered, tensor, False, (sm_count, block_threads))

    def reduce_scatter(
        self, tensor: Tensor, *, average: bool = False, sm_count: int | None = None, block_threads: int | None = None
    ) -> IssuedHandle:
        """See Collectives."""
        if tensor.dim() == 0 or tensor.shape[0] % self._size:
            raise CollectivesError(
                f"reduce_scatter splits dim 0 over {self._size} ranks, got shape {tuple(tensor.shape)}: pad it first"
            )
        block = tensor.new_empty((tensor.shape[0] // self._size, *tensor.shape[1:]))
        return self._start("reduce_scatter", block, tensor, average, (sm_count, block_threads))

    def close(self, *, in_step: bool = True) -> None:
        """See Collectives."""
        if in_step:  # else a kernel may wait for a rank that is gone
            self._streams.drain()
        self._issuer.close(in_step=in_step)

    def _start(
        self,
        operation: Operation,
        output: Tensor,
        source: Tensor,
        average: bool,
        wishes: tuple[int | None, int | None],
    ) -> IssuedHandle:
        _check(source, average=average)
        sm_count, block_threads = wishes
        if sm_count is not None and sm_count < 1:
            raise CollectivesError(f"sm_count must be at least 1, or None to leave it to the backend, got {sm_count}")
        if source.numel() == 0:  # on every rank: the shapes are the same
            return IssuedHandle(output, asked_sm_count=sm_count, granted_sm_count=None)
        granted = self._issuer.grant(operation, source, sm_count)
        self._note(operation, source, sm_count, granted)
        handle = IssuedHandle(output, asked_sm_count=sm_count, granted_sm_count=granted)
        stream = self._streams.of(source.device)
        divisor = self._size if average else 1
        with stream.beside_compute():
            work = self._issuer.issue(
                Launch(
                    operation=operation,
                    output=output,
                    source=source,
                    sm_count=sm_count,
                    block_threads=block_threads,
                    stream=stream.handle,
                )
            )
            if work is None and divisor > 1:
                output.div_(divisor)
        handle.launched(stream, stream.mark((output, source)), work, divisor)
        return handle

    def _note(self, operation: Operation, source: Tensor, asked: int | None, granted: int | None) -> None:
        if source.is_cuda or granted is not None:  # a CPU has no SMs: a rehearsal's wishes are not differences
            self.grants.note(operation, asked, granted)


def _check(tensor: Tensor, *, average: bool) -> None:
    if not tensor.is_contiguous():
        raise CollectivesError(f"collectives take contiguous tensors, got strides {tensor.stride()}")
    if average and not (tensor.is_floating_point() or tensor.is_complex()):
        raise CollectivesError(
            f"a mean is not a {tensor.dtype}: sum it, or convert the tensor to a floating type first"
        )
