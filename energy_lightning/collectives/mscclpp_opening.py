"""Whether MSCCL++ can serve a group, and the import of it, which changes the root logger and needs a driver."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives.choice import CollectivesChoice, CollectivesError, Machine, at_least
from energy_lightning.collectives.issuing import Issuer, Launch, Operation
from energy_lightning.collectives.mscclpp_issuer import MAX_BLOCKS, MAX_RANKS, MscclppIssuer
from energy_lightning.collectives.peers import Peers, not_one_node, shared_gpu

LEAST_MSCCLPP, LEAST_CUDA, LEAST_CAPABILITY = "0.10.0", "12.0", (7, 0)
_TRIED, _TRIED_SM_COUNT = 64, 8  # numbers, and thread blocks
INSTALLATION = "https://microsoft.github.io/mscclpp/quickstart.html"


def describe(machine: Machine) -> CollectivesChoice:
    """MSCCL++ as installed; does not import it."""
    installed = machine.distributions.get("mscclpp")
    reasons = (*machine.without_gpu(), *_version_reasons(installed))
    return CollectivesChoice(
        name="mscclpp",
        version=installed,
        supports_sm_count=True,
        limits=(
            f"one node, at most {MAX_RANKS} ranks, NVLink or P2P between their GPUs",
            f"at most {MAX_BLOCKS['all_reduce']} SMs in an all-reduce, {MAX_BLOCKS['all_gather']} in an all-gather",
            "reduce-scatter, and sums of float64 and integers, go through NCCL",
        ),
        reasons=reasons or _hardware_reasons(machine),
    )


def _version_reasons(installed: str | None) -> tuple[str, ...]:
    if installed is None:
        return (f"not installed ({INSTALLATION})",)
    if not at_least(installed, LEAST_MSCCLPP):
        return (f"mscclpp {installed} is too old: {LEAST_MSCCLPP} or later is needed",)
    return ()


def _hardware_reasons(machine: Machine) -> tuple[str, ...]:
    reasons = []
    if machine.cuda_version is None or not at_least(machine.cuda_version, LEAST_CUDA):
        reasons.append(f"torch is built for CUDA {machine.cuda_version}: {LEAST_CUDA} or later is needed")
    if (oldest := min(machine.compute_capabilities)) < LEAST_CAPABILITY:
        reasons.append(f"a GPU has compute capability {oldest[0]}.{oldest[1]}: 7.0 or later is needed")
    return tuple(reasons)


def check_group(peers: Peers) -> None:
    """Raise CollectivesError for a group that MSCCL++'s algorithms cannot serve: some would return without a word."""
    if not 2 <= len(peers) <= MAX_RANKS:
        raise CollectivesError(f"the group has {len(peers)} ranks, its algorithms serve 2 to {MAX_RANKS}")
    if several := not_one_node(peers):
        raise CollectivesError(f"{several}, its algorithms serve a single one")
    if gpu := shared_gpu(peers):
        raise CollectivesError(f"two ranks share GPU {gpu}")
    versions = sorted({peer.versions.get("mscclpp", "none") for peer in peers})
    if len(versions) > 1:
        raise CollectivesError(f"the ranks have different versions: {', '.join(versions)}")


def import_library() -> Any:
    """The module mscclpp with its `ext` and `utils`; the root logger stays as it is.

    Raises CollectivesError where the package or a library that it needs, such as the driver, is missing.
    """
    try:
        with root_logger_kept():
            library = importlib.import_module("mscclpp")
            importlib.import_module("mscclpp.ext")
            importlib.import_module("mscclpp.utils")
    except (ImportError, OSError) as error:
        raise CollectivesError(f"it cannot be imported: {error}") from error
    return library


def make_issuer(
    group: dist.ProcessGroup | None, device: torch.device, *, library: Any, others: Issuer
) -> MscclppIssuer:
    """Raises CollectivesError where MSCCL++ fails, or has another interface than the one this is written for.

    Collective over the group; `others` is closed where it fails.
    """
    with ExitStack() as undo:
        undo.callback(others.close, in_step=False)
        try:
            with torch.cuda.device(device if device.type == "cuda" else -1):
                issuer = MscclppIssuer(group, library=library, others=others)
                undo.callback(issuer.close, in_step=False)
                try_out(issuer, device)
        except (RuntimeError, AttributeError, TypeError) as error:
            raise CollectivesError(
                f"MSCCL++ cannot be set up for this group: {type(error).__name__}: {error}"
            ) from error
        undo.pop_all()
    return issuer


def try_out(issuer: MscclppIssuer, device: torch.device) -> None:
    """Raise CollectivesError unless a few numbers are summed and gathered rightly.

    A training would otherwise be the first to see that the installed version has other arguments, or that a kernel
    returned without a word. Waits for the device, once.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    ranks = torch.arange(1.0, issuer.size + 1)
    expected: dict[Operation, Tensor] = {
        "all_reduce": ranks.sum().repeat(_TRIED),
        "all_gather": ranks.repeat_interleave(_TRIED),
    }
    for operation, right in expected.items():
        source = torch.full((_TRIED,), issuer.rank + 1.0, device=device)
        output = source if operation == "all_reduce" else source.new_zeros(issuer.size * _TRIED)
        issuer.issue(Launch(operation, output, source, _TRIED_SM_COUNT, None, stream))
        if not torch.equal(output.cpu(), right):
            raise CollectivesError(f"MSCCL++ came to a wrong {operation} in a trial: {output.tolist()}")


@contextmanager
def root_logger_kept() -> Iterator[None]:
    """Undo what happens to the root logger's handlers and level inside."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        for handler in [own for own in root.handlers if own not in handlers]:
            root.removeHandler(handler)
        root.setLevel(level)
