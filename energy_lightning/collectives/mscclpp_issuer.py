"""MSCCL++: collectives on exactly as many thread blocks as a schedule asks for, on one node.

Two of its algorithms honour their number of blocks (microsoft/mscclpp 0.10 sources): "default_allreduce_rsag" and
"default_allgather_fullmesh". It has no reduce-scatter and no float64 sums: another backend does those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.choice import CollectivesError
from energy_lightning.collectives.issuing import Issuer, Launch, Operation
from energy_lightning.collectives.peers import exchange
from energy_lightning.collectives.pieces import Piece, Rules

SCRATCH_BYTES = 128 * 2**20
TIMEOUT_S = 120
MAX_RANKS = 8
ALGORITHMS = {
    "all_reduce": ("allreduce", "default_allreduce_rsag"),
    "all_gather": ("allgather", "default_allgather_fullmesh"),
}
"""Operation -> (collective, name) of the algorithm."""
MAX_BLOCKS = {"all_reduce": 64, "all_gather": 56}
BLOCK_THREADS = 1024
"""Threads per block where a schedule gives blocks only: with either at 0, MSCCL++ chooses both."""
SUMMED = (torch.float32, torch.float16, torch.bfloat16)
_ALIGNED_BYTES = 16
_WARP = 32


class MscclppIssuer:
    """See Issuer. Collective over the group when made and at the first collective of each kind.

    Args:
        group: ranks of one node.
        library: the module mscclpp, with mscclpp.ext and mscclpp.utils imported.
        others: for what MSCCL++ cannot do; closed together with this.
        scratch_bytes: what MSCCL++ works in; larger tensors go in several calls.
    """

    name = "mscclpp"
    supports_sm_count = True

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        *,
        library: Any,
        others: Issuer,
        scratch_bytes: int = SCRATCH_BYTES,
    ) -> None:
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self._library, self._others = library, others
        unit_bytes = _ALIGNED_BYTES * self.size  # every rank reduces a part of the same aligned size
        self._rules = {
            "all_reduce": Rules(limit_bytes=scratch_bytes, unit_bytes=unit_bytes),
            "all_gather": Rules(limit_bytes=scratch_bytes // self.size, unit_bytes=_ALIGNED_BYTES),
        }
        bootstrap = library.TcpBootstrap.create(self.rank, self.size)
        unique_id = exchange(bootstrap.create_unique_id() if self.rank == 0 else None, group)[0]
        bootstrap.initialize(unique_id, TIMEOUT_S)
        self._check_node(bootstrap)
        self._sum, self._dtype_of = library.ReduceOp.SUM, library.utils.torch_dtype_to_mscclpp_dtype
        self._communicator: Any = library.Communicator(bootstrap)
        self._scratch: Any = library.RawGpuBuffer(scratch_bytes)
        self._algorithms: dict[str, Any] = self._build(scratch_bytes)

    def _check_node(self, bootstrap: Any) -> None:
        """Its kernels return without a word where ranks are on other nodes, as MSCCL++ itself tells nodes apart."""
        on_this_node = bootstrap.get_n_ranks_per_node() if hasattr(bootstrap, "get_n_ranks_per_node") else self.size
        if on_this_node != self.size:
            raise CollectivesError(
                f"MSCCL++ finds {on_this_node} of {self.size} ranks on this node; it serves one node"
            )

    def _build(self, scratch_bytes: int) -> dict[str, Any]:
        collection = self._library.ext.AlgorithmCollectionBuilder().build_default_algorithms(
            scratch_buffer=self._scratch.data(), scratch_buffer_size=scratch_bytes, rank=self.rank
        )
        found = {(algorithm.collective, algorithm.name): algorithm for algorithm in collection}
        for wanted in ALGORITHMS.values():
            if wanted not in found:
                names = ", ".join(sorted(name for _, name in found)) or "none"
                raise CollectivesError(f"MSCCL++ has no algorithm {wanted[1]!r}; it has: {names}")
        return {operation: found[wanted] for operation, wanted in ALGORITHMS.items()}

    def _serves(self, operation: Operation, source: Tensor) -> bool:
        return operation == "all_gather" or (operation == "all_reduce" and source.dtype in SUMMED)

    def grant(self, operation: Operation, source: Tensor, sm_count: int | None) -> int | None:
        """See Issuer."""
        if not self._serves(operation, source):
            return self._others.grant(operation, source, sm_count)
        return None if sm_count is None else min(sm_count, MAX_BLOCKS[operation])

    def issue(self, launch: Launch) -> dist.Work | None:
        """See Issuer."""
        if not self._serves(launch.operation, launch.source):
            return self._others.issue(launch)
        run = self._all_reduce if launch.operation == "all_reduce" else self._all_gather
        run(launch, lambda output, source: self._execute(launch, output, source))
        return None

    def _all_reduce(self, launch: Launch, execute: Callable[[Tensor, Tensor], None]) -> None:
        flat = launch.source.view(-1)
        for piece, staged in self._pieces(launch, flat):
            part = flat[piece.start : piece.start + piece.numel]
            if not piece.staged:
                execute(part, part)
                continue
            staged[: piece.numel].copy_(part)
            execute(staged, staged)
            part.copy_(staged[: piece.numel])

    def _all_gather(self, launch: Launch, execute: Callable[[Tensor, Tensor], None]) -> None:
        flat = launch.source.view(-1).view(torch.uint8)  # bytes: any dtype can be gathered
        rows = launch.output.view(-1).view(torch.uint8).view(self.size, -1)
        for piece, staged in self._pieces(launch, flat):
            part = flat[piece.start : piece.start + piece.numel]
            if not piece.staged and piece.numel == flat.numel() and rows.data_ptr() % _ALIGNED_BYTES == 0:
                execute(rows, part)
                continue
            source = part if not piece.staged else staged
            if piece.staged:
                staged[: piece.numel].copy_(part)
            gathered = flat.new_empty((self.size, source.numel()))
            execute(gathered, source)
            rows[:, piece.start : piece.start + piece.numel].copy_(gathered[:, : piece.numel])

    def _pieces(self, launch: Launch, flat: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """Each piece with its buffer if it is staged, padding zeroed; allocated on the communication stream."""
        rules = self._rules[launch.operation]
        for piece in rules.pieces(address=flat.data_ptr(), numel=flat.numel(), item_bytes=flat.element_size()):
            padded = rules.padded(piece.numel, flat.element_size()) if piece.staged else 0
            yield piece, flat.new_zeros(padded)

    def _execute(self, launch: Launch, output: Tensor, source: Tensor) -> None:
        operation = launch.operation
        blocks, threads = self._size_of_grid(launch)
        code = self._algorithms[operation].execute(
            self._communicator,
            source.data_ptr(),
            output.data_ptr(),
            source.nbytes,
            output.nbytes,
            self._dtype_of(source.dtype),
            **({"op": self._sum} if operation == "all_reduce" else {}),
            stream=launch.stream,
            nblocks=blocks,
            nthreads_per_block=threads,
        )
        if code != 0:
            raise CollectivesError(
                f"MSCCL++ failed with code {code} in {ALGORITHMS[operation][1]}: {source.nbytes} bytes of "
                f"{source.dtype}, {blocks or 'its own number of'} blocks of {threads or 'its own number of'} threads, "
                f"{self.size} ranks. MSCCLPP_DEBUG=INFO says more; collectives='nccl4py' or 'nccl' does without MSCCL++"
            )

    def _size_of_grid(self, launch: Launch) -> tuple[int, int]:
        """(blocks, threads per block); zeros leave both to MSCCL++."""
        if launch.sm_count is None:
            return 0, 0
        threads = min(launch.block_threads or BLOCK_THREADS, BLOCK_THREADS)
        return min(launch.sm_count, MAX_BLOCKS[launch.operation]), max(threads - threads % _WARP, _WARP)

    def close(self, *, in_step: bool) -> None:
        """See Issuer."""
        algorithms, self._algorithms = self._algorithms, {}
        if algorithms:
            for algorithm in algorithms.values():
                algorithm.reset()
            self._library.ext.AlgorithmCollectionBuilder.reset()
            self._communicator, self._scratch = None, None
        self._others.close(in_step=in_step)
