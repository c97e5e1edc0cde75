"""NCCL through torch with one process group per SM count: the cap belongs to the communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.choice import CollectivesChoice, CollectivesError, Machine
from energy_lightning.collectives.issuing import Launch, Operation
from energy_lightning.collectives.process_group import ProcessGroupIssuer, issue_on

MAX_SM_COUNT = 32
"""NCCL's own bound on CTAs of a communicator (ncclConfig_t.maxCTAs), NCCL 2.32 documentation."""
MAX_GROUPS = 12
"""Communicators besides the uncapped one; each holds tens of MB of buffers on every GPU."""

MakeGroup = Callable[[dist.ProcessGroup, int], dist.ProcessGroup]
"""(ranks like those of this group, SM count) -> a group whose collectives take at most that many SMs. Collective."""


class CappedIssuer:
    """See Issuer. Groups are made at the first collective with their SM count, in the order of the calls.

    All ranks make the same calls, so they make the same groups; only they take part, not the rest of the job. Making
    one blocks the host, once per SM count. After `max_groups` counts, a new count gets the nearest group that exists
    (the smaller one of two as near).
    """

    supports_sm_count = True
    name = "nccl_capped"

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        *,
        make_group: MakeGroup | None = None,
        overruled_sm_count: int | None = None,
        max_groups: int = MAX_GROUPS,
    ) -> None:
        self._plain = ProcessGroupIssuer(group)
        self._group = group if group is not None else dist.group.WORLD
        self._make_group = make_group or capped_group
        self._overruled = overruled_sm_count
        self._max_groups = max_groups
        self._groups: dict[int, dist.ProcessGroup] = {}
        self._planned: list[int] = []

    @property
    def size(self) -> int:
        """See Issuer."""
        return self._plain.size

    @property
    def rank(self) -> int:
        """See Issuer."""
        return self._plain.rank

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
        if cap not in self._groups:
            assert self._group is not None, "torch.distributed is initialised: ProcessGroupIssuer has checked it"
            self._groups[cap] = self._make_group(self._group, cap)
        return issue_on(self._groups[cap], launch)

    def _served_by(self, sm_count: int) -> int:
        """SM count of the group that serves a wish."""
        wanted = min(sm_count, MAX_SM_COUNT)
        if wanted not in self._planned and len(self._planned) < self._max_groups:
            self._planned.append(wanted)
        return min(self._planned, key=lambda count: (abs(count - wanted), count))

    def close(self, *, in_step: bool) -> None:
        """See Issuer."""
        groups, self._groups, self._planned = list(self._groups.values()), {}, []
        for group in groups:
            if dist.is_initialized():
                dist.destroy_process_group(group)


def capped_group(group: dist.ProcessGroup, sm_count: int) -> dist.ProcessGroup:
    """A group of the same ranks whose NCCL communicator runs on `sm_count` thread blocks. Collective over `group`."""
    options = capped_options(dist.ProcessGroupNCCL, sm_count)  # only in CUDA builds
    made = dist.new_group(
        dist.get_process_group_ranks(group),
        backend="nccl",
        pg_options=options,
        use_local_synchronization=True,
        group_desc=f"energy_lightning_{sm_count}_sms",
    )
    if not isinstance(made, dist.ProcessGroup):
        raise CollectivesError(f"torch made no process group of {sm_count} SMs: this rank is not in the group")
    return made


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
            f"at most {MAX_SM_COUNT} SMs and {MAX_GROUPS} different SM counts, one communicator each",
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
