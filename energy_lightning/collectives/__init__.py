"""Collectives behind one protocol, with an SM count where the backend takes one."""

from energy_lightning.collectives.backends import Backend, Opening
from energy_lightning.collectives.base import Collectives, Handle
from energy_lightning.collectives.choice import CollectivesChoice, CollectivesError, Machine
from energy_lightning.collectives.process_group import ProcessGroupCollectives
from energy_lightning.collectives.registry import (
    BACKENDS,
    available_collectives,
    check_backend_name,
    select_collectives,
)
from energy_lightning.collectives.streams import CommunicationStreams

__all__ = [
    "BACKENDS",
    "Backend",
    "Collectives",
    "CollectivesChoice",
    "CollectivesError",
    "CommunicationStreams",
    "Handle",
    "Machine",
    "Opening",
    "ProcessGroupCollectives",
    "available_collectives",
    "check_backend_name",
    "select_collectives",
]
