"""The one place that knows about CUDA streams: communication runs beside compute, ordered by events.

    compute         ... op | launch point | op   op   op | join | consumer ...
                             event: v                event: ^
    communication                   collective         mark

Between launch point and join compute goes on; nowhere does the host wait. There is one communication stream per
device, whatever number of backends and groups issue to it: all their collectives run in the order of their launches.
On a CPU a process group has threads of its own; the stand-in has nothing to order and can log the same points.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Mark:
    """A point in the communication stream, and the tensors that must live until it is reached."""

    tensors: tuple[Tensor, ...]
    event: Any = None  # torch.cuda.Event
    launched_from: Any = None  # torch.cuda.Stream of compute


class CommunicationStream(Protocol):
    """Where collectives are issued, as seen from the compute stream."""

    @property
    def handle(self) -> int:
        """The cudaStream_t as an integer; 0 on a CPU."""
        ...

    def beside_compute(self) -> AbstractContextManager[None]:
        """Work issued inside starts once the compute issued so far is done, and later compute does not wait for it."""
        ...

    def mark(self, tensors: Sequence[Tensor]) -> Mark:
        """A point after everything issued on the stream so far; `tensors` are kept alive until it is reached."""
        ...

    def join(self, mark: Mark) -> None:
        """Lets compute issued from now on start only after `mark`; the calling thread does not block."""
        ...

    def drain(self) -> None:
        """Blocks the calling thread until all that was issued is done: before buffers are freed, never in a step."""
        ...


class CudaCommunicationStream:
    """A side stream of one CUDA device, of high priority: a collective's few blocks get the next free SMs.

    `cuda` is torch.cuda; tests give a recording one.
    """

    def __init__(self, device: torch.device, *, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._device = device
        self._stream = cuda.Stream(device, priority=-1)
        self._pending: deque[Mark] = deque()

    @property
    def handle(self) -> int:
        """See CommunicationStream."""
        return int(self._stream.cuda_stream)

    @contextmanager
    def beside_compute(self) -> Iterator[None]:
        """See CommunicationStream."""
        launch_point = self._cuda.Event()
        launch_point.record(self._cuda.current_stream(self._device))
        self._stream.wait_event(launch_point)
        with self._cuda.stream(self._stream):
            yield

    def mark(self, tensors: Sequence[Tensor]) -> Mark:
        """See CommunicationStream."""
        event = self._cuda.Event()
        event.record(self._stream)
        mark = Mark(tuple(tensors), event, self._cuda.current_stream(self._device))
        self._release_reached()
        self._pending.append(mark)
        return mark

    def join(self, mark: Mark) -> None:
        """See CommunicationStream."""
        compute = self._cuda.current_stream(self._device)
        compute.wait_event(mark.event)
        if compute == mark.launched_from:  # whatever reuses their memory on this stream comes after the event
            mark.tensors = ()

    def drain(self) -> None:
        """See CommunicationStream."""
        self._stream.synchronize()
        self._release_reached()

    def _release_reached(self) -> None:
        """Forget marks that were joined, and those that nobody waited for once the GPU has passed them."""
        while self._pending and (not self._pending[0].tensors or self._pending[0].event.query()):
            self._pending.popleft().tensors = ()


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One point of the ordering; `number` counts the collectives of the stream."""

    kind: Literal["launch point", "mark", "join"]
    number: int


class HostCommunicationStream:
    """The stand-in for tensors on the CPU. `log`: a list that gets a StreamEvent at each point."""

    def __init__(self, log: list[Any] | None = None) -> None:
        self._log = log
        self._numbers: dict[Mark, int] = {}
        self._num_launched = 0

    @property
    def handle(self) -> int:
        """See CommunicationStream."""
        return 0

    def beside_compute(self) -> AbstractContextManager[None]:
        """See CommunicationStream."""
        if self._log is not None:
            self._log.append(StreamEvent("launch point", self._num_launched))
        return nullcontext()

    def mark(self, tensors: Sequence[Tensor]) -> Mark:
        """See CommunicationStream."""
        mark = Mark(tuple(tensors))
        if self._log is not None:
            self._log.append(StreamEvent("mark", self._num_launched))
            self._numbers[mark] = self._num_launched
            self._num_launched += 1
        return mark

    def join(self, mark: Mark) -> None:
        """See CommunicationStream."""
        if self._log is not None:
            self._log.append(StreamEvent("join", self._numbers[mark]))
        mark.tensors = ()

    def drain(self) -> None:
        """See CommunicationStream."""


class CommunicationStreams:
    """The communication stream of each device, made when it is first asked for. `log` as in the CPU stand-in."""

    def __init__(self, log: list[Any] | None = None) -> None:
        self._log = log
        self._streams: dict[torch.device, CommunicationStream] = {}

    def of(self, device: torch.device) -> CommunicationStream:
        """The same stream for every backend and group on `device`."""
        if device not in self._streams:
            cuda = device.type == "cuda"
            self._streams[device] = CudaCommunicationStream(device) if cuda else HostCommunicationStream(self._log)
        return self._streams[device]

    def drain(self) -> None:
        """`CommunicationStream.drain` on every device."""
        for stream in self._streams.values():
            stream.drain()
