"""Collectives behind one protocol, with an SM count where the backend takes one."""

from energy_lightning.collectives.base import Collectives, CollectivesError, Handle
from energy_lightning.collectives.process_group import ProcessGroupCollectives
from energy_lightning.collectives.registry import BACKENDS, select_collectives

__all__ = [
    "BACKENDS",
    "Collectives",
    "CollectivesError",
    "Handle",
    "ProcessGroupCollectives",
    "select_collectives",
]
