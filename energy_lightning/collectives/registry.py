"""Choosing a backend: a name -> factory dict open to outside rows, and one clear line when the choice falls back."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch.distributed as dist

from energy_lightning.collectives.base import Collectives, CollectivesError
from energy_lightning.collectives.process_group import ProcessGroupCollectives

logger = logging.getLogger(__name__)

Factory = Callable[[dist.ProcessGroup | None], Collectives]
"""Makes the backend for a process group; raises CollectivesError saying why it cannot."""


def _process_group_backend(name: str) -> Factory:
    def make(group: dist.ProcessGroup | None) -> Collectives:
        collectives = ProcessGroupCollectives(group)
        if name not in collectives.name:  # a group with a backend per device calls itself "cpu:gloo,cuda:nccl"
            raise CollectivesError(f"the process group runs on {collectives.name}")
        return collectives

    return make


BACKENDS: dict[str, Factory] = {"nccl": _process_group_backend("nccl"), "gloo": _process_group_backend("gloo")}
"""Known backends, the preferred one first."""


def select_collectives(name: str = "auto", group: dist.ProcessGroup | None = None) -> Collectives:
    """The backend called `name` for `group`, or the most preferred one that can serve it.

    "auto" tries every row of BACKENDS. A named backend that cannot serve the group falls back to the others with
    one warning that says why. Raises CollectivesError for an unknown name, and when no backend can serve the group.
    """
    if name != "auto" and name not in BACKENDS:
        raise CollectivesError(f"unknown collectives backend {name!r}; known: auto, {', '.join(BACKENDS)}")
    preferred = [name] if name != "auto" else []
    refusals: list[str] = []
    for candidate in dict.fromkeys([*preferred, *BACKENDS]):
        try:
            chosen = BACKENDS[candidate](group)
        except CollectivesError as error:
            refusals.append(f"{candidate}: {error}")
            continue
        if preferred and candidate != name:
            logger.warning("Collectives run on %s, not on %s (%s)", candidate, name, "; ".join(refusals))
        return chosen
    raise CollectivesError(f"no collectives backend can serve this group ({'; '.join(refusals)})")
