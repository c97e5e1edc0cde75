"""The rows of the backend table: what each is on a machine, and how it is opened for a group of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from energy_lightning.collectives.base import Collectives
from energy_lightning.collectives.choice import CollectivesChoice, Machine
from energy_lightning.collectives.peers import Peers
from energy_lightning.collectives.streams import CommunicationStreams


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """For whom a backend is opened.

    Attributes:
        group: the ranks; None: the default group.
        device: where this rank's tensors are.
        streams: the communication stream of each device.
        machine: as seen from this process.
        peers: what all ranks know of each other; None where the ranks were not asked.
        speaks: whether this process writes log lines.
    """

    group: dist.ProcessGroup | None
    device: torch.device
    streams: CommunicationStreams
    machine: Machine
    peers: Peers | None = None
    speaks: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One row.

    Attributes:
        device_type: "cuda" or "cpu" tensors; None: both.
        describe: what it is on a machine; imports nothing that needs a driver.
        prepare: checks and imports what this rank needs, without talking to other ranks, and returns what makes the
            backend for the group (collective where `agreed`). Both raise CollectivesError saying why they cannot.
        agreed: whether the ranks must agree that all of them can use it (else every rank finds the same by itself).
    """

    device_type: str | None
    describe: Callable[[Machine], CollectivesChoice]
    prepare: Callable[[Opening], Callable[[], Collectives]]
    agreed: bool = False
