"""Choosing a backend: a table open to outside rows, one clear line when the choice falls back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist

from energy_lightning.collectives import capped, mscclpp_opening, nccl_per_call
from energy_lightning.collectives.backends import Backend, Opening
from energy_lightning.collectives.base import Collectives
from energy_lightning.collectives.choice import CollectivesChoice, CollectivesError, Machine
from energy_lightning.collectives.issuing import IssuedCollectives, Issuer
from energy_lightning.collectives.peers import Peer, exchange, refusal_of, shared_gpu, unreachable_peer
from energy_lightning.collectives.process_group import ProcessGroupIssuer
from energy_lightning.collectives.streams import CommunicationStreams

logger = logging.getLogger(__name__)
_T = TypeVar("_T")


def _prepare_group(backend: str) -> Callable[[Opening], Callable[[], Collectives]]:
    """The torch group as it is, if `backend` runs it."""

    def prepare(opening: Opening) -> Callable[[], Collectives]:
        _require_backend(ProcessGroupIssuer(opening.group).name, backend)  # it may be "cpu:gloo,cuda:nccl"
        issuer = ProcessGroupIssuer(opening.group, name=backend)
        return lambda: IssuedCollectives(issuer, opening.streams, speaks=opening.speaks)

    return prepare


def _prepare_capped(opening: Opening) -> Callable[[], Collectives]:
    make_issuer = _capped_issuer(opening)
    return lambda: IssuedCollectives(make_issuer(), opening.streams, speaks=opening.speaks)


def _prepare_per_call(opening: Opening) -> Callable[[], Collectives]:
    make_issuer = _per_call_issuer(opening)
    return lambda: IssuedCollectives(make_issuer(), opening.streams, speaks=opening.speaks)


def _prepare_mscclpp(opening: Opening) -> Callable[[], Collectives]:
    peers = opening.peers or ()
    mscclpp_opening.check_group(peers)
    if obstacle := unreachable_peer(dist.get_rank(opening.group), peers, opening.device):
        raise CollectivesError(obstacle)
    library = mscclpp_opening.import_library()
    make_others = _nccl_beside(opening)

    def make() -> Collectives:
        issuer = mscclpp_opening.make_issuer(opening.group, opening.device, library=library, others=make_others())
        return IssuedCollectives(issuer, opening.streams, speaks=opening.speaks)

    return make


def _nccl_beside(opening: Opening) -> Callable[[], Issuer]:
    """What does the collectives that MSCCL++ has not: the same on every rank, from what all ranks said."""
    if refusal_of("nccl4py", opening.peers or ()) is None:
        return _per_call_issuer(opening)
    plain = ProcessGroupIssuer(opening.group)
    return (lambda: plain) if "nccl" not in plain.name else _capped_issuer(opening)


def _capped_issuer(opening: Opening) -> Callable[[], Issuer]:
    _require_backend(ProcessGroupIssuer(opening.group).name, "nccl")
    return partial(capped.CappedIssuer, opening.group, overruled_sm_count=opening.machine.overruled_sm_count())


def _per_call_issuer(opening: Opening) -> Callable[[], Issuer]:
    if gpu := shared_gpu(opening.peers or ()):
        raise CollectivesError(f"two ranks share GPU {gpu}")
    return nccl_per_call.prepare(opening.group, opening.device, opening.machine)


def _require_backend(found: str, wanted: str) -> None:
    if wanted not in found:
        raise CollectivesError(f"the process group runs on {found}")


def _describe_gloo(machine: Machine) -> CollectivesChoice:
    limits = ("takes no SM count", "the host waits for results")
    reasons = () if dist.is_available() and dist.is_gloo_available() else ("this build of torch has no gloo",)
    version = str(torch.__version__)
    return CollectivesChoice(name="gloo", version=version, supports_sm_count=False, limits=limits, reasons=reasons)


BACKENDS: dict[str, Backend] = {
    "mscclpp": Backend(device_type="cuda", describe=mscclpp_opening.describe, prepare=_prepare_mscclpp, agreed=True),
    "nccl4py": Backend(device_type="cuda", describe=nccl_per_call.describe, prepare=_prepare_per_call, agreed=True),
    "nccl_capped": Backend(device_type="cuda", describe=capped.describe, prepare=_prepare_capped, agreed=True),
    "nccl": Backend(device_type="cuda", describe=capped.describe_plain, prepare=_prepare_group("nccl")),
    "gloo": Backend(device_type=None, describe=_describe_gloo, prepare=_prepare_group("gloo")),
}
"""Known backends, the preferred one first."""


def available_collectives(machine: Machine | None = None) -> list[CollectivesChoice]:
    """Every backend as this machine has it, the preferred one first; needs no process group.

    Whether a group can use one depends on its ranks, too: `select_collectives` tells. A CPU uses "gloo".
    """
    machine = machine or Machine.read()
    return [backend.describe(machine) for backend in BACKENDS.values()]


def check_backend_name(name: str) -> None:
    """Raise CollectivesError for a name that is not in the table."""
    if name != "auto" and name not in BACKENDS:
        raise CollectivesError(f"unknown collectives backend {name!r}; known: auto, {', '.join(BACKENDS)}")


def select_collectives(
    name: str = "auto",
    group: dist.ProcessGroup | None = None,
    *,
    device: torch.device | None = None,
    streams: CommunicationStreams | None = None,
    machine: Machine | None = None,
) -> Collectives:
    """The backend called `name` for `group`, or the most preferred one that all its ranks can use.

    "auto" tries every row of BACKENDS. A named backend that cannot serve the group falls back to the others with
    one warning that says why. Collective over the group. `device` of this rank's tensors; None: the GPU where the
    group has nccl. `streams` shared by all that communicates on a device; None: of its own.

    Raises CollectivesError for an unknown name, and when no backend can serve the group.
    """
    check_backend_name(name)
    opening = Opening(
        group=group,
        device=device or _device_of(group),
        streams=streams or CommunicationStreams(),
        machine=machine or Machine.read(),
        speaks=not dist.is_initialized() or dist.get_rank() == 0,
    )
    return _Selection(name, opening).choose()


class _Selection:
    """The choice for one group: every rank makes the same one."""

    def __init__(self, name: str, opening: Opening) -> None:
        self._name = name
        self._opening = opening
        self._refusals: dict[str, str] = {}

    def choose(self) -> Collectives:
        candidates = list(dict.fromkeys([*([self._name] if self._name != "auto" else []), *BACKENDS]))
        choices = {name: BACKENDS[name].describe(self._opening.machine) for name in candidates}
        own = {name: "; ".join(choice.reasons) for name, choice in choices.items() if choice.reasons}
        if any(BACKENDS[name].agreed and self._serves_device(name) for name in candidates):
            here = Peer.here(self._opening.device, versions=self._opening.machine.distributions, refusals=own)
            self._opening = replace(self._opening, peers=exchange(here, self._opening.group))
        for candidate in candidates:
            chosen, refusal = self._try(candidate, own.get(candidate))
            if chosen is not None:
                self._say(candidate, chosen)
                return chosen
            self._refusals[candidate] = refusal or ""
        raise CollectivesError(f"no collectives backend can serve this group ({self._reasons(candidates)})")

    def _serves_device(self, candidate: str) -> bool:
        return BACKENDS[candidate].device_type in (None, self._opening.device.type)

    def _try(self, candidate: str, own_refusal: str | None) -> tuple[Collectives | None, str | None]:
        """The candidate, or None and why not; the same on all ranks."""
        row = BACKENDS[candidate]
        peers = self._opening.peers
        refusal = own_refusal if peers is None else refusal_of(candidate, peers)
        if refusal is None and not self._serves_device(candidate):
            refusal = f"it takes no {self._opening.device.type} tensors"
        if refusal is not None:
            return None, refusal
        make, refusal = self._together(row, lambda: row.prepare(self._opening))
        if make is None or refusal is not None:
            return None, refusal
        chosen, refusal = self._together(row, make)
        if chosen is not None and refusal is not None:
            chosen.close(in_step=False)
            chosen = None
        return chosen, refusal

    def _together(self, row: Backend, step: Callable[[], _T]) -> tuple[_T | None, str | None]:
        """What `step` made here, and why it failed on some rank if it did."""
        made, refusal = None, None
        try:
            made = step()
        except CollectivesError as error:
            refusal = str(error)
        if row.agreed and self._opening.peers is not None:
            refusals = exchange(refusal, self._opening.group)
            refusal = next((reason for reason in refusals if reason is not None), None)
        return made, refusal

    def _say(self, candidate: str, chosen: Collectives) -> None:
        if not self._opening.speaks:
            return
        if self._name not in ("auto", candidate):
            reason = self._reasons([self._name])
            logger.warning(f"energy_lightning: collectives run on {candidate}, not on {self._name} ({reason})")
        elif self._opening.device.type == "cuda":
            passed = f" ({self._reasons(list(self._refusals))})" if self._refusals else ""
            level = logging.INFO if chosen.supports_sm_count else logging.WARNING
            honours = "with" if chosen.supports_sm_count else "without"
            logger.log(level, f"energy_lightning: collectives run on {candidate}, {honours} SM counts{passed}")

    def _reasons(self, names: list[str]) -> str:
        return "; ".join(f"{name}: {self._refusals[name]}" for name in names)


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    if torch.cuda.is_available() and dist.is_initialized() and "nccl" in str(dist.get_backend(group)):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
