"""Several processes choose a backend together: the same one on every rank, whatever fails on one of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from energy_lightning.collectives import (
    BACKENDS,
    Backend,
    Collectives,
    CollectivesChoice,
    CollectivesError,
    Machine,
    Opening,
    ProcessGroupCollectives,
    select_collectives,
)


def _row(open_: Callable[[Opening], Callable[[], Collectives]], *reasons: str, device: str | None = None) -> Backend:
    def describe(machine: Machine) -> CollectivesChoice:
        return CollectivesChoice(name="?", version="1", supports_sm_count=True, reasons=reasons)

    return Backend(device_type=device, describe=describe, prepare=open_, agreed=True)


def _gloo(opening: Opening) -> Callable[[], Collectives]:
    return lambda: ProcessGroupCollectives(opening.group)


def _fails(message: str) -> Callable[[Opening], Any]:
    def prepare(opening: Opening) -> Any:
        raise CollectivesError(message)

    return prepare


def _fails_late(message: str) -> Callable[[Opening], Any]:
    def make() -> Any:
        raise CollectivesError(message)

    return lambda opening: make


def _chosen(name: str, group: dist.ProcessGroup, rows: dict[str, Backend]) -> tuple[str, list[str]]:
    """Name of what is chosen with `rows` in front of the table, and what rank 0 of the job says."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("energy_lightning.collectives.registry")
    logger.addHandler(handler)
    before = dict(BACKENDS)
    BACKENDS.clear()
    BACKENDS.update({**rows, **before})
    try:
        return select_collectives(name, group).name, [record.getMessage() for record in records]
    finally:
        BACKENDS.clear()
        BACKENDS.update(before)
        logger.removeHandler(handler)


def check_plain_choices(group: dist.ProcessGroup) -> None:
    assert _chosen("auto", group, {}) == ("gloo", [])
    assert _chosen("gloo", group, {}) == ("gloo", [])
    name, lines = _chosen("nccl", group, {})
    assert name == "gloo"
    assert len(lines) == (dist.get_rank() == 0)
    assert all("collectives run on gloo, not on nccl (nccl: " in line for line in lines)
    with pytest.raises(CollectivesError, match="unknown collectives backend 'mpi'; known: auto, mscclpp, nccl4py"):
        select_collectives("mpi", group)


def check_one_rank_cannot(group: dist.ProcessGroup) -> None:
    """Whatever fails on rank 1, at whatever stage: both ranks take the next row and say the same reason."""
    here = dist.get_rank(group) == 1
    rows = {
        "described": _row(_gloo, *(["too old"] if here else [])),
        "prepared": _row(_fails("no import") if here else _gloo),
        "made": _row(_fails_late("no memory") if here else _gloo),
    }
    for name, reason in (
        ("described", "rank 1 of the group: too old"),
        ("prepared", "no import"),
        ("made", "no memory"),
    ):
        chosen, lines = _chosen(name, group, {name: rows[name]})
        assert chosen == "gloo"
        line = f"energy_lightning: collectives run on gloo, not on {name} ({name}: {reason})"
        assert lines == ([line] if dist.get_rank() == 0 else [])
    assert _chosen("fine", group, {"fine": _row(_gloo)}) == ("gloo", [])


def check_nothing_can(group: dist.ProcessGroup) -> None:
    before = dict(BACKENDS)
    BACKENDS.clear()
    BACKENDS.update({"first": _row(_fails("no")), "second": _row(_gloo, device="cuda")})
    try:
        with pytest.raises(CollectivesError, match=r"first: no; second: it takes no cpu tensors"):
            select_collectives("auto", group)
    finally:
        BACKENDS.clear()
        BACKENDS.update(before)


SELECTION = {"plain": check_plain_choices, "one rank cannot": check_one_rank_cannot, "nothing can": check_nothing_can}
