"""NCCL through torch with one communicator per SM count: the cap belongs to the communicator.

The communicators are made from ProcessGroupNCCL itself, not by dist.new_group: that needs every rank of the job, or
names the group by the number of groups that this rank has, which other ranks and earlier groups may share.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from energy_lightning.collectives.choice import CollectivesChoice, Machine
from energy_lightning.collectives.issuing import Launch, Operation
from energy_lightning.collectives.peers import exchange
from energy_lightning.collectives.process_group import ProcessGroupIssuer

c10d: Any = distributed_c10d  # names that torch's type stubs leave out

MAX_SM_COUNT = 32
"""NCCL's own bound on CTAs of a communicator (ncclConfig_t.maxCTAs), NCCL 2.32 documentation."""
MAX_COMMUNICATORS = 12
"""Communicators besides the uncapped one; each holds tens of MB of buffers on every GPU."""

MakeBackend = Callable[[Any, int, int, int], Any]
"""(store, rank, size, SM count) -> torch's backend object for that many SMs. Ranks meet in the store."""


class CappedIssuer:
    """See Issuer. Collective over the group when made.

    A communicator is made at the first collective with its SM count, in the order of the calls: all ranks of the group
    make the same calls, and only they take part. It blocks the host, once per SM count. After `max_communicators`
    counts, a new one gets the nearest communicator that exists (the smaller of two as near).
    """

    supports_sm_count = True
    name = "nccl_capped"

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        *,
        make_backend: MakeBackend | None = None,
        overruled_sm_count: int | None = None,
        max_communicators: int = MAX_COMMUNICATORS,
    ) -> None:
        self._plain = ProcessGroupIssuer(group)
        self.size, self.rank = self._plain.size, self._plain.rank
        token = exchange(uuid.uuid4().hex, group)[0]  # no two issuers meet in the store
        self._store = c10d.PrefixStore(f"energy_lightning/{token}", group_store(group))
        self._make_backend = make_backend or capped_nccl
        self._overruled = overruled_sm_count
        self._max_communicators = max_communicators
        self._planned: list[int] = []
        self._backends: dict[int, Any] = {}

    def grant(self, operation: Operation, source: Tensor, sm_count: int | None) -> int | None:
        """See Issuer."""
        if self._overruled is not None:
            return self._overruled
        return None if sm_count is None else self._served_by(sm_count)

    def issue(self, launch: Launch) -> dist.Work | None:
        """See Issuer."""
        if launch.sm_count is None:
            return self._plain.issue(launch)
        cap = self._served_by(launch.sm_count)
        if cap not in self._backends:
            store = c10d.PrefixStore(str(cap), self._store)
            self._backends[cap] = self._make_backend(store, self.rank, self.size, cap)
        return _issue(self._backends[cap], launch)

    def _served_by(self, sm_count: int) -> int:
        """SM count of the communicator that serves a wish."""
        wanted = min(sm_count, MAX_SM_COUNT)
        if wanted not in self._planned and len(self._planned) < self._max_communicators:
            self._planned.append(wanted)
        return min(self._planned, key=lambda count: (abs(count - wanted), count))

    def close(self, *, in_step: bool) -> None:
        """See Issuer."""
        backends, self._backends = list(self._backends.values()), {}
        for backend in backends:
            (backend.shutdown if in_step else backend.abort)()


def _issue(backend: Any, launch: Launch) -> dist.Work | None:
    """As `process_group.issue_on`, on a backend object that is no registered group."""
    on_stream = launch.source.is_cuda
    options: Any
    if launch.operation == "all_reduce":
        options, call = dist.AllreduceOptions(), partial(backend.allreduce, [launch.source])
    elif launch.operation == "all_gather":
        options, call = c10d.AllgatherOptions(), partial(backend._allgather_base, launch.output, launch.source)
    else:
        options, call = dist.ReduceScatterOptions(), partial(backend._reduce_scatter_base, launch.output, launch.source)
    options.asyncOp = not on_stream  # False: on the current stream
    work: dist.Work = call(options)
    if not on_stream:
        return work
    work.wait()  # orders streams where there is something to order; the host does not block
    return None


def group_store(group: Any) -> Any:
    """A key-value store that all ranks of the torch group (None: the default one) reach."""
    group = group if group is not None else dist.group.WORLD
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return c10d._get_default_store()  # an older torch


def capped_nccl(store: Any, rank: int, size: int, sm_count: int) -> Any:
    """torch's NCCL backend whose kernels run on `sm_count` thread blocks."""
    options = capped_options(dist.ProcessGroupNCCL, sm_count)
    return dist.ProcessGroupNCCL(store, rank, size, options)


def capped_options(process_group_type: Any, sm_count: int) -> Any:
    """ProcessGroupNCCL.Options whose communicator uses exactly `sm_count` CTAs."""
    options = process_group_type.Options()
    options.config.max_ctas = sm_count
    options.config.min_ctas = sm_count
    return options


def describe(machine: Machine) -> CollectivesChoice:
    """NCCL as torch brings it, capped per communicator."""
    return CollectivesChoice(
        name="nccl_capped",
        version=machine.nccl_version,
        supports_sm_count=True,
        limits=(
            f"at most {MAX_SM_COUNT} SMs and {MAX_COMMUNICATORS} different SM counts, one communicator each",
            "block_threads is left to NCCL",
            *machine.override_limits(),
        ),
        reasons=machine.without_gpu() or _without_nccl(machine),
    )


def describe_plain(machine: Machine) -> CollectivesChoice:
    """NCCL as torch brings it, uncapped."""
    return CollectivesChoice(
        name="nccl",
        version=machine.nccl_version,
        supports_sm_count=False,
        limits=("takes no SM count", *machine.override_limits()),
        reasons=machine.without_gpu() or _without_nccl(machine),
    )


def _without_nccl(machine: Machine) -> tuple[str, ...]:
    return () if machine.nccl_version is not None else ("this build of torch has no NCCL",)
