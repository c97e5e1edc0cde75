"""The schedule of `grad_bucket` reaches the backend: SM count, threads, and the moment of launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from energy_lightning.collectives.issuing import IssuedCollectives, Launch, Operation
from energy_lightning.parallel.comm_hook import GradBucketState, grad_bucket_hook
from energy_lightning.parallel.reducer import HELD_BACK, GradientReducer
from energy_lightning.types import Schedule


class RecordingIssuer:
    """One rank alone, on a backend that lends at most 16 SMs."""

    name, supports_sm_count, size, rank = "recording", True, 1, 0

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def grant(self, operation: Operation, source: Tensor, sm_count: int | None) -> int | None:
        return None if sm_count is None else min(sm_count, 16)

    def issue(self, launch: Launch) -> None:
        self._log.append((launch.operation, launch.sm_count, launch.block_threads))

    def close(self, *, in_step: bool) -> None:
        pass


class Layers(nn.Module):
    """Three layers that say when backward leaves them."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self._log = log

    def forward(self, hidden: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden)
            hidden.register_hook(lambda _, index=index: self._log.append(f"backward {index}"))
        return hidden.square().sum()


@pytest.mark.parametrize(("launch", "early"), [(None, True), (HELD_BACK, False)])
def test_reducer(launch: str | None, early: bool) -> None:
    log: list[Any] = []
    model = Layers(log)
    collectives = IssuedCollectives(RecordingIssuer(log))  # type: ignore[arg-type]
    reducer = GradientReducer(model.parameters(), collectives=collectives, bucket_cap_bytes=80)
    assert len(reducer.buckets) == 3
    reducer.schedule = Schedule(sm_count=20, launch=launch, block_threads=512)
    loss = model(torch.ones(2, 4, requires_grad=True))
    reducer.prepare(loss)
    loss.backward()
    reduction = ("all_reduce", 20, 512)
    assert [entry for entry in log if entry == reduction] == [reduction] * 3
    assert (log.index(reduction) < log.index("backward 0")) == early
    assert collectives.grants.to_rows() == [
        {"operation": "all_reduce", "asked_sm_count": 20, "granted_sm_count": 16, "count": 3}
    ]


class Bucket:
    """As much of dist.GradBucket as the hook takes."""

    def __init__(self, index: int, buffer: Tensor) -> None:
        self._index, self._buffer = index, buffer

    def index(self) -> int:
        return self._index

    def buffer(self) -> Tensor:
        return self._buffer

    def is_last(self) -> bool:
        return self._index == 2


@pytest.mark.parametrize(("launch", "launched_by_then"), [(None, [1, 2, 3]), (HELD_BACK, [0, 0, 3])])
def test_hook_of_distributed_data_parallel(launch: str | None, launched_by_then: list[int]) -> None:
    log: list[Any] = []
    state = GradBucketState(IssuedCollectives(RecordingIssuer(log)))  # type: ignore[arg-type]
    state.schedule = Schedule(sm_count=3, launch=launch)
    seen = []
    for index in range(3):
        future = grad_bucket_hook(state, Bucket(index, torch.full((2,), float(index))))
        seen.append(len(log))
    assert seen == launched_by_then
    assert future.done()
    assert future.value().tolist() == [2.0, 2.0]
    assert set(log) == {("all_reduce", 3, 1024)}
