"""The one place that knows about CUDA streams: communication runs beside compute, ordered by events.

On a CPU a process group has threads of its own, so the stand-in has nothing to order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class CommunicationStream(Protocol):
    """Where collectives are issued, as seen from the compute stream."""

    def beside_compute(self) -> AbstractContextManager[None]:
        """Work issued inside starts once the compute issued so far is done, and later compute does not wait for it."""
        ...

    def mark(self) -> torch.cuda.Event | None:
        """A point after everything issued on the stream so far."""
        ...

    def join(self, mark: torch.cuda.Event | None) -> None:
        """Lets compute issued from now on start only after `mark`; the calling thread does not block."""
        ...


class CudaCommunicationStream:
    """A side stream of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside_compute(self) -> Iterator[None]:
        """See CommunicationStream."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> torch.cuda.Event | None:
        """See CommunicationStream."""
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(self._stream)
        return mark

    def join(self, mark: torch.cuda.Event | None) -> None:
        """See CommunicationStream."""
        if mark is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(mark)


class HostCommunicationStream:
    """The stand-in for tensors on the CPU."""

    @contextmanager
    def beside_compute(self) -> Iterator[None]:
        """See CommunicationStream."""
        yield

    def mark(self) -> torch.cuda.Event | None:
        """See CommunicationStream."""
        return None

    def join(self, mark: torch.cuda.Event | None) -> None:
        """See CommunicationStream."""


def communication_stream(device: torch.device) -> CommunicationStream:
    """The stream for collectives on tensors of `device`."""
    return CudaCommunicationStream(device) if device.type == "cuda" else HostCommunicationStream()
