"""Random numbers: the same on every rank for replicated operators, a rank's own for its own attention heads.

The default generators of the ranks of a tensor-parallel group are kept in step. What must differ between ranks is
seeded from one draw of the common generator and the rank, so that everything remains a function of the common
state: restoring that state repeats a computation exactly, which recomputation needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of the default generators that operators on one device draw from."""

    device: torch.device
    host: Tensor
    accelerator: Tensor | None

    @classmethod
    def capture(cls, device: torch.device) -> RandomState:
        """The state now."""
        accelerator = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), accelerator)

    def restore(self) -> None:
        """Continue from here."""
        torch.set_rng_state(self.host)
        if self.accelerator is not None:
            torch.cuda.set_rng_state(self.accelerator, self.device)


@contextmanager
def replayed(state: RandomState | None) -> Iterator[None]:
    """Inside, draws repeat what followed `state`; afterwards the generators are where they were (None: no-op)."""
    if state is None:
        yield
        return
    before = RandomState.capture(state.device)
    state.restore()
    try:
        yield
    finally:
        before.restore()


@contextmanager
def seeded_per_rank(rank: int, device: torch.device) -> Iterator[None]:
    """Inside, draws on `device` are the rank's own; outside, all ranks have made one common draw and stay in step."""
    seed = int(torch.randint(2**40, ()))  # from the host's generator: the same number on every rank
    generator = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed * 1024 + rank)
    try:
        yield
    finally:
        generator.set_state(before)


def put_in_step(group: dist.ProcessGroup, device: torch.device) -> None:
    """Gives every rank of `group` the generator states of its first rank. A collective."""
    states: list[RandomState | None] = [RandomState.capture(device)]
    dist.broadcast_object_list(states, src=dist.get_global_rank(group, 0), group=group, device=device)
    if states[0] is not None:
        RandomState(device, states[0].host, states[0].accelerator).restore()
