"""A stand-in for the module mscclpp 0.10: its names and arguments, its rules on sizes and addresses, sums over gloo.

The signatures are those of the library's public sources. Works on CPU memory, by address.
"""

from __future__ import annotations

import ctypes
import uuid
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.peers import exchange

SUM, MIN = object(), object()
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8)


def tensor_at(address: int, num_bytes: int, dtype: torch.dtype) -> Tensor:
    memory = (ctypes.c_uint8 * num_bytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def torch_dtype_to_mscclpp_dtype(dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        raise ValueError(f"Unknown data type: {dtype}")
    return str(dtype).removeprefix("torch.")


class Bootstrap:
    def __init__(self, rank: int, n: int, group: Any, per_node: int | None) -> None:
        self.rank, self.size, self._group, self._per_node = rank, n, group, per_node or n
        self.initialized = False

    def create_unique_id(self) -> str:
        return uuid.uuid4().hex

    def initialize(self, unique_id: Any, timeout_sec: int = 30) -> None:
        assert isinstance(unique_id, str)
        assert exchange(unique_id, self._group) == [unique_id] * self.size, "the ranks have different ids"
        self.initialized = True

    def get_n_ranks_per_node(self) -> int:
        return self._per_node


class Algorithm:
    def __init__(self, collective: str, name: str, group: Any, calls: list[Any]) -> None:
        self.collective, self.name = collective, name
        self._group, self._calls = group, calls
        self._bound: Any = None
        self.failing_with = 0
        self.freed = False

    def execute(
        self,
        comm: Any,
        input_buffer: int,
        output_buffer: int,
        input_size: int,
        output_size: int,
        dtype: str,
        op: Any = None,
        stream: int = 0,
        executor: Any = None,
        nblocks: int = 0,
        nthreads_per_block: int = 0,
        symmetric_memory: bool = False,
        extras: Any = None,
        accum_dtype: Any = None,
    ) -> int:
        self._calls.append((self.name, input_size, output_size, dtype, nblocks, nthreads_per_block, stream))
        assert not self.freed
        assert self._bound in (None, comm), "an algorithm stays with its first communicator"
        self._bound = comm
        assert input_buffer % 16 == output_buffer % 16 == input_size % 16 == 0
        assert (nblocks == 0) == (nthreads_per_block == 0), "either at zero means both at their defaults"
        assert nthreads_per_block % 32 == 0
        assert nthreads_per_block <= 1024
        self._same_everywhere(self.name, input_size, output_size, dtype, nblocks, nthreads_per_block)
        if self.failing_with:
            return self.failing_with
        source = tensor_at(input_buffer, input_size, getattr(torch, dtype))
        output = tensor_at(output_buffer, output_size, getattr(torch, dtype))
        (self._reduce if self.collective == "allreduce" else self._gather)(source, output, op, nblocks)
        return 0

    def _same_everywhere(self, *call: Any) -> None:
        assert exchange(call, self._group) == [call] * dist.get_world_size(self._group), "the ranks make other calls"

    def _reduce(self, source: Tensor, output: Tensor, op: Any, nblocks: int) -> None:
        assert op is SUM
        assert 0 <= nblocks <= 64
        assert len(source) == len(output)
        assert len(source) % dist.get_world_size(self._group) == 0
        total = source.clone()
        dist.all_reduce(total, group=self._group)
        output.copy_(total)

    def _gather(self, source: Tensor, output: Tensor, op: Any, nblocks: int) -> None:
        assert 0 <= nblocks <= 56
        rows = [torch.empty_like(source) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, source, group=self._group)
        output.copy_(torch.cat(rows))

    def reset(self) -> None:
        self.freed, self._bound = True, None


def library(group: Any, *, names: tuple[str, ...] = ("rsag", "nvls_packet"), ranks_per_node: int | None = None) -> Any:
    """A module for one group of ranks (None: all on one node), with `calls` and `algorithms` for tests to look at."""
    fake = SimpleNamespace(calls=[], algorithms=[], builder_resets=0)

    class RawGpuBuffer:
        def __init__(self, nelems: int) -> None:
            self._memory = torch.empty(nelems, dtype=torch.uint8)

        def data(self) -> int:
            return self._memory.data_ptr()

    class TcpBootstrap:
        @staticmethod
        def create(rank: int, n: int) -> Bootstrap:
            return Bootstrap(rank, n, group, ranks_per_node)

    class Communicator:
        def __init__(self, bootstrap: Bootstrap) -> None:
            assert bootstrap.initialized
            self.bootstrap = bootstrap

    class AlgorithmCollectionBuilder:
        def build_default_algorithms(self, *, scratch_buffer: int, scratch_buffer_size: int, rank: int) -> list[Any]:
            assert scratch_buffer
            assert rank == dist.get_rank(group)
            made = [Algorithm("allreduce", f"default_allreduce_{name}", group, fake.calls) for name in names]
            made.append(Algorithm("allgather", "default_allgather_fullmesh", group, fake.calls))
            fake.algorithms.extend(made)
            return made

        @staticmethod
        def reset() -> None:
            fake.builder_resets += 1

    fake.TcpBootstrap, fake.Communicator, fake.RawGpuBuffer = TcpBootstrap, Communicator, RawGpuBuffer
    fake.ReduceOp = SimpleNamespace(SUM=SUM, MIN=MIN)
    fake.ext = SimpleNamespace(AlgorithmCollectionBuilder=AlgorithmCollectionBuilder)
    fake.utils = SimpleNamespace(torch_dtype_to_mscclpp_dtype=torch_dtype_to_mscclpp_dtype)
    return fake
