"""The collectives of one job: their backends, one communication stream per device, and what was granted."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from energy_lightning.collectives import Collectives, CommunicationStreams, select_collectives


class Communication:
    """Opens a backend for each group of ranks that this process belongs to.

    Args:
        name: as `select_collectives` knows it.
        device: of this rank's tensors; None: the GPU where a group has nccl.
    """

    def __init__(self, name: str = "auto", device: torch.device | None = None) -> None:
        self._name, self._device = name, device
        self._streams = CommunicationStreams()
        self._opened: dict[str, Collectives] = {}

    def open(self, role: str, group: dist.ProcessGroup | None) -> Collectives:
        """The backend for the group that plays `role` ("tensor_parallel", "data_parallel"). Collective."""
        made = select_collectives(self._name, group, device=self._device, streams=self._streams)
        self._opened[role] = made
        return made

    def report(self) -> list[dict[str, Any]]:
        """Plain values, one row per group: backend, and SM counts asked for and granted."""
        return [
            {
                "role": role,
                "backend": collectives.name,
                "supports_sm_count": collectives.supports_sm_count,
                "sm_counts": collectives.grants.to_rows(),
            }
            for role, collectives in self._opened.items()
        ]

    def close(self, *, in_step: bool) -> None:
        """Release what was opened, the last first. `in_step` as in Collectives. Idempotent."""
        while self._opened:
            _, collectives = self._opened.popitem()
            collectives.close(in_step=in_step)
