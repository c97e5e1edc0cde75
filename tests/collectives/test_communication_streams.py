"""Ordering by events: what the CUDA seam asks of torch.cuda, which is a recording one here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from energy_lightning.collectives.streams import (
    CommunicationStreams,
    CudaCommunicationStream,
    HostCommunicationStream,
)

DEVICE = torch.device("cuda", 0)


class RecordingCuda:
    """The part of torch.cuda that orders streams, as a log. Nothing here can block: a call that would is an error."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.reached: set[int] = set()
        self._current = self._make_stream("compute")
        self._num_events = 0

    def _make_stream(self, name: str) -> Any:
        cuda = self

        class Stream:
            cuda_stream = 77

            def wait_event(self, event: Any) -> None:
                cuda.log.append((name, "waits for", event.number))

        return Stream()

    def Stream(self, device: torch.device, priority: int = 0) -> Any:
        assert priority < 0
        self.side = self._make_stream("side")
        return self.side

    def Event(self) -> Any:
        cuda = self
        number = self._num_events
        self._num_events += 1

        class Event:
            def __init__(self) -> None:
                self.number = number

            def record(self, stream: Any) -> None:
                cuda.log.append(("side" if stream is cuda.side else "compute", "records", number))

            def query(self) -> bool:
                return number in cuda.reached

        return Event()

    def current_stream(self, device: torch.device) -> Any:
        return self._current

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before


def test_a_collective_starts_at_its_launch_point_and_is_joined_by_the_consumer() -> None:
    cuda = RecordingCuda()
    stream = CudaCommunicationStream(DEVICE, cuda=cuda)
    cuda.log.append(("compute", "operator"))
    with stream.beside_compute():
        cuda.log.append(("side" if cuda.current_stream(DEVICE) is cuda.side else "compute", "collective"))
    mark = stream.mark(())
    cuda.log.append(("compute", "more operators"))
    stream.join(mark)
    cuda.log.append(("compute", "consumer"))
    assert cuda.log == [
        ("compute", "operator"),
        ("compute", "records", 0),
        ("side", "waits for", 0),
        ("side", "collective"),
        ("side", "records", 1),
        ("compute", "more operators"),
        ("compute", "waits for", 1),
        ("compute", "consumer"),
    ]
    assert stream.handle == 77


def test_tensors_live_until_joined_or_until_the_gpu_has_passed_them() -> None:
    cuda = RecordingCuda()
    stream = CudaCommunicationStream(DEVICE, cuda=cuda)

    def launch() -> tuple[Any, weakref.ref[Tensor]]:
        tensor = torch.zeros(3)
        with stream.beside_compute():
            pass
        return stream.mark((tensor,)), weakref.ref(tensor)

    joined, of_joined = launch()
    stream.join(joined)
    gc.collect()
    assert of_joined() is None
    _, of_forgotten = launch()  # events 2 and 3: nobody waits for it
    gc.collect()
    assert of_forgotten() is not None
    launch()
    assert of_forgotten() is not None, "the GPU has not passed event 3 yet"
    cuda.reached.add(3)
    launch()
    gc.collect()
    assert of_forgotten() is None


def test_a_join_from_another_stream_keeps_the_memory() -> None:
    """The allocator may hand it out again on the stream of the launch, which has not waited."""
    cuda = RecordingCuda()
    stream = CudaCommunicationStream(DEVICE, cuda=cuda)
    mark = stream.mark((torch.zeros(3),))
    with cuda.stream(cuda._make_stream("third")):
        stream.join(mark)
    assert len(mark.tensors) == 1
    stream.join(mark)
    assert mark.tensors == ()


def test_one_stream_per_device_whoever_asks() -> None:
    streams = CommunicationStreams()
    here = streams.of(torch.device("cpu"))
    assert isinstance(here, HostCommunicationStream)
    assert streams.of(torch.zeros(1).device) is here


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a CUDA build of torch")
def test_on_a_gpu_a_long_collective_holds_up_neither_compute_nor_the_host() -> None:
    """A long kernel on the communication stream: compute issued after its launch point is done first."""
    device = torch.device("cuda", 0)
    stream = CommunicationStreams().of(device)
    assert isinstance(stream, CudaCommunicationStream)
    source = torch.ones(1000, device=device)
    with stream.beside_compute():
        torch.cuda._sleep(200_000_000)  # about 0.1 s of GPU cycles
        result = source * 2
    mark = stream.mark((source, result))
    beside = source * 3
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    done.synchronize()
    assert not mark.event.query(), "compute waited for the communication stream"
    stream.join(mark)
    assert torch.equal(result + beside, source * 5)
