"""NCCL with a cap on SMs per call, through NVIDIA's nccl4py."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.choice import CollectivesChoice, CollectivesError, Machine, at_least
from energy_lightning.collectives.issuing import Launch, Operation
from energy_lightning.collectives.peers import exchange

logger = logging.getLogger(__name__)

LEAST_NCCL4PY, LEAST_NCCL = "0.6", "2.31"
MAX_SM_COUNT = 32
"""NCCL's own bound on CTAs of a call (ncclConfig_t.maxCTAs), NCCL 2.32 documentation."""


class NcclPerCallIssuer:
    """See Issuer. A communicator beside the torch group, made at once: collective over the group.

    `library` is the module nccl.core, `error` what its bindings raise for a failure; `device` the GPU of this rank.
    """

    name = "nccl4py"
    supports_sm_count = True

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        device: torch.device,
        *,
        library: Any,
        error: type[BaseException],
        overruled_sm_count: int | None = None,
    ) -> None:
        self._library = library
        self._failures = (library.NcclInvalid, error)
        self._overruled = overruled_sm_count
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        try:
            unique_id = self._shared_id(group)
            with torch.cuda.device(device if device.type == "cuda" else -1):
                self._communicator: Any = library.Communicator.init(self.size, self.rank, unique_id)
        except self._failures as failure:
            raise CollectivesError(f"NCCL refused a communicator of {self.size} ranks: {failure}") from failure

    def _shared_id(self, group: dist.ProcessGroup | None) -> Any:
        """Rank 0's id, on all ranks; its failure, too."""
        own: bytes | str | None = None
        if self.rank == 0:
            try:
                own = self._library.get_unique_id().as_bytes
            except self._failures as failure:
                own = str(failure)
        first = exchange(own, group)[0]
        if not isinstance(first, bytes):
            raise CollectivesError(f"NCCL on rank 0 of the group gave no unique id: {first}")
        return self._library.UniqueId.from_bytes(first)

    def grant(self, operation: Operation, source: Tensor, sm_count: int | None) -> int | None:
        """See Issuer."""
        if self._overruled is not None:
            return self._overruled
        return None if sm_count is None else min(sm_count, MAX_SM_COUNT)

    def issue(self, launch: Launch) -> None:
        """See Issuer."""
        config = None
        if launch.sm_count is not None:
            count = min(launch.sm_count, MAX_SM_COUNT)
            config = self._library.NCCLCollConfig(min_ctas=count, max_ctas=count)
        try:
            self._call(launch, config)
        except self._failures as error:
            source = launch.source
            raise CollectivesError(
                f"NCCL failed in {launch.operation} of {source.numel()} x {source.dtype} with {launch.sm_count} SMs: "
                f"{error}. NCCL_DEBUG=WARN says more; collectives='nccl_capped' or 'nccl' does without nccl4py"
            ) from error

    def _call(self, launch: Launch, config: Any) -> None:
        communicator, stream = self._communicator, launch.stream
        if launch.operation == "all_gather":
            communicator.allgather(launch.source, launch.output, stream=stream, config=config)
        elif launch.operation == "all_reduce":
            communicator.allreduce(launch.source, launch.output, self._library.SUM, stream=stream, config=config)
        else:
            communicator.reduce_scatter(launch.source, launch.output, self._library.SUM, stream=stream, config=config)

    def close(self, *, in_step: bool) -> None:
        """See Issuer."""
        communicator, self._communicator = self._communicator, None
        if communicator is None:
            return
        try:
            if in_step:
                communicator.finalize()
                communicator.destroy()
            else:
                communicator.abort()
        except self._failures as error:  # the training itself is over
            logger.warning(f"energy_lightning: NCCL did not release a communicator of {self.size} ranks: {error}")


def prepare(group: dist.ProcessGroup | None, device: torch.device, machine: Machine) -> Callable[[], NcclPerCallIssuer]:
    """Imports the package; what it returns makes the communicator. Raises CollectivesError where that is not there."""
    try:
        library = importlib.import_module("nccl.core")
        error = importlib.import_module("nccl.bindings.nccl").NCCLError
    except ImportError as failure:
        raise CollectivesError(f"nccl4py cannot be imported: {failure}") from failure
    overruled = machine.overruled_sm_count()
    return partial(NcclPerCallIssuer, group, device, library=library, error=error, overruled_sm_count=overruled)


def loaded_nccl() -> str | None:
    """Version of the NCCL that nccl4py would call; None if it cannot be loaded. Imports nccl4py."""
    try:
        library = importlib.import_module("nccl.core")
    except ImportError:
        return None
    found = library.get_version().libnccl
    return None if found is None else str(found.version)


def describe(machine: Machine) -> CollectivesChoice:
    """nccl4py, and the NCCL that it finds."""
    installed = machine.distributions.get("nccl4py")
    return CollectivesChoice(
        name="nccl4py",
        version=installed,
        supports_sm_count=True,
        limits=(
            f"at most {MAX_SM_COUNT} SMs",
            "block_threads is left to NCCL",
            *machine.override_limits(),
        ),
        reasons=(*machine.without_gpu(), *_missing(installed)) or _too_old(loaded_nccl()),
    )


def _missing(installed: str | None) -> tuple[str, ...]:
    if installed is None:
        return ("not installed: pip install 'energy-lightning[nccl]'",)
    if not at_least(installed, LEAST_NCCL4PY):
        return (f"nccl4py {installed} is too old: {LEAST_NCCL4PY} or later is needed",)
    return ()


def _too_old(nccl: str | None) -> tuple[str, ...]:
    if nccl is None:
        return ("nccl4py finds no libnccl: install nvidia-nccl-cu12 or nvidia-nccl-cu13, as your CUDA is",)
    if not at_least(nccl, LEAST_NCCL):
        return (f"the NCCL in this process is {nccl}: a cap per call needs {LEAST_NCCL} or later",)
    return ()
