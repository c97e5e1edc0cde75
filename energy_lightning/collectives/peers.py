"""What the ranks of a group must know of each other before they can choose a backend together."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One rank as the others see it.

    Attributes:
        node: names the operating system instance it runs on.
        gpu: UUID of its GPU; None on a CPU or where torch cannot tell.
        versions: of the optional packages it has.
        refusals: backend name -> why this rank cannot use it.
    """

    node: str
    gpu: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, device: torch.device, *, versions: Mapping[str, str], refusals: Mapping[str, str]) -> Peer:
        """This process."""
        return cls(node=node_name(), gpu=gpu_uuid(device), versions=dict(versions), refusals=dict(refusals))


Peers = Sequence[Peer]
"""In the order of the ranks of the group."""


def exchange(own: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """What every rank of the group gave, in rank order. Collective; `own` must pickle."""
    seen: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(seen, own, group=group)
    return seen


def refusal_of(backend: str, peers: Peers) -> str | None:
    """Why some rank cannot use a backend, or None."""
    refusing = [(rank, peer.refusals[backend]) for rank, peer in enumerate(peers) if backend in peer.refusals]
    if not refusing:
        return None
    rank, reason = refusing[0]
    return reason if len(refusing) == len(peers) else f"rank {rank} of the group: {reason}"


def shared_gpu(peers: Peers) -> str | None:
    """A GPU that two ranks share, or None."""
    gpus = [peer.gpu for peer in peers if peer.gpu is not None]
    return next((gpu for index, gpu in enumerate(gpus) if gpu in gpus[:index]), None)


def not_one_node(peers: Peers) -> str | None:
    """Says so if the ranks run on several nodes, else None."""
    nodes = list(dict.fromkeys(peer.node for peer in peers))
    return None if len(nodes) == 1 else f"its ranks run on {len(nodes)} nodes"


def unreachable_peer(own_rank: int, peers: Peers, device: torch.device, *, cuda: Any = torch.cuda) -> str | None:
    """A peer's GPU that this process sees but cannot access directly (no P2P), or None.

    GPUs hidden by CUDA_VISIBLE_DEVICES cannot be asked about and pass.
    """
    visible = {str(cuda.get_device_properties(index).uuid): index for index in range(cuda.device_count())}
    own = visible.get(peers[own_rank].gpu or "", device.index)
    for rank, peer in enumerate(peers):
        other = visible.get(peer.gpu or "")
        if rank != own_rank and other is not None and other != own and not cuda.can_device_access_peer(own, other):
            return f"no direct access (P2P) from the GPU of rank {own_rank} to that of rank {rank}"
    return None


def gpu_uuid(device: torch.device) -> str | None:
    """As torch gives it; None on a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def node_name(boot_id: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Host name with the machine's boot id, which tells apart machines that share a name."""
    return f"{platform.node()} {boot_id.read_text().strip() if boot_id.exists() else ''}"
