"""A stand-in for nccl.core of nccl4py 0.6: its names and arguments, sums over gloo, every call recorded."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.peers import exchange

SUM = object()


class NcclInvalid(Exception):
    pass


class NCCLError(Exception):
    pass


@dataclass(kw_only=True)
class NCCLCollConfig:
    min_ctas: int | None = None
    max_ctas: int | None = None


class UniqueId:
    def __init__(self, content: bytes) -> None:
        self.as_bytes = content

    @staticmethod
    def from_bytes(b: bytes) -> UniqueId:
        return UniqueId(b)


def library(group: Any) -> Any:
    """A module for one group of ranks. `calls`: (name, positional, keyword arguments); `failing`: raise this next."""
    fake = SimpleNamespace(calls=[], failing=None, SUM=SUM, NcclInvalid=NcclInvalid, NCCLCollConfig=NCCLCollConfig)

    class Communicator:
        def __init__(self) -> None:
            self.state = "running"

        @classmethod
        def init(cls, nranks: int, rank: int, unique_id: UniqueId, config: Any = None) -> Communicator:
            fake.calls.append(("init", (nranks, rank, unique_id), {}))
            assert (nranks, rank) == (dist.get_world_size(group), dist.get_rank(group))
            assert exchange(unique_id.as_bytes, group) == [unique_id.as_bytes] * nranks
            fake.communicator = cls()
            return fake.communicator

        def allreduce(
            self, sendbuf: Tensor, recvbuf: Tensor, op: Any, *, stream: int | None = None, config: Any = None
        ) -> None:
            self._begin("allreduce", (sendbuf, recvbuf, op), stream, config)
            recvbuf.copy_(sendbuf)
            dist.all_reduce(recvbuf, group=group)

        def allgather(self, sendbuf: Tensor, recvbuf: Tensor, *, stream: int | None = None, config: Any = None) -> None:
            self._begin("allgather", (sendbuf, recvbuf), stream, config)
            dist.all_gather(list(recvbuf.chunk(dist.get_world_size(group))), sendbuf, group=group)

        def reduce_scatter(
            self, sendbuf: Tensor, recvbuf: Tensor, op: Any, *, stream: int | None = None, config: Any = None
        ) -> None:
            self._begin("reduce_scatter", (sendbuf, recvbuf, op), stream, config)
            dist.reduce_scatter(recvbuf, list(sendbuf.clone().chunk(dist.get_world_size(group))), group=group)

        def _begin(self, name: str, args: tuple[Any, ...], stream: Any, config: Any) -> None:
            assert self.state == "running"
            fake.calls.append((name, args, {"stream": stream, "config": config}))
            assert exchange(config, group) == [config] * dist.get_world_size(group), "the caps differ between ranks"
            if fake.failing is not None:
                raise fake.failing

        def finalize(self) -> None:
            self.state = "finalized"

        def destroy(self) -> None:
            self.state = f"{self.state}, destroyed"

        def abort(self) -> None:
            self.state = "aborted"

    def get_unique_id(empty: bool = False) -> UniqueId:
        return UniqueId(uuid.uuid4().bytes)

    fake.Communicator, fake.UniqueId, fake.get_unique_id = Communicator, UniqueId, get_unique_id
    return fake
