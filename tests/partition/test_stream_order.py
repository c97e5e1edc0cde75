"""The engine's launches and waits as points on the two streams, recorded by the CPU's communication stream."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import make, make_batch, plan_of, train_on
from torch import Tensor

from energy_lightning.collectives import CommunicationStreams
from energy_lightning.collectives.issuing import IssuedCollectives, Launch, Operation
from energy_lightning.collectives.streams import StreamEvent
from energy_lightning.partition import PartitionEngine, TraceEvent, find_stacks
from energy_lightning.types import Plan


class DoublingIssuer:
    """One rank that plays a second one with the same numbers."""

    name, supports_sm_count, size, rank = "doubling", True, 2, 0

    def grant(self, operation: Operation, source: Tensor, sm_count: int | None) -> int | None:
        return sm_count

    def issue(self, launch: Launch) -> None:
        if launch.operation == "all_reduce":
            launch.source.mul_(2)

    def close(self, *, in_step: bool) -> None:
        pass


@pytest.mark.parametrize("plan", [plan_of(), Plan.sequential()], ids=["overlapped", "sequential"])
def test_the_engine_launches_after_the_operators_before_and_joins_before_the_consumer(plan: Plan) -> None:
    """Engine and stream write into one list: its order is the order of events on the two streams."""
    log: list[Any] = []
    model = make("llama", num_hidden_layers=2)
    collectives = IssuedCollectives(DoublingIssuer(), CommunicationStreams(log))  # type: ignore[arg-type]
    engine = PartitionEngine(find_stacks(model), collectives=collectives, activation_checkpointing=False)
    engine.apply(plan)
    engine.trace = log
    train_on(model, [make_batch("llama", 4)])
    launches = [event for event in log if isinstance(event, TraceEvent) and event.kind == "launch"]
    points = [event for event in log if isinstance(event, StreamEvent)]
    assert len(launches) == sum(event.kind == "launch point" for event in points) > 0
    assert len({event.number for event in points}) == len(launches)
    for number, launch in enumerate(launches):
        at = {event.kind: log.index(event) for event in points if event.number == number}
        assert at["launch point"] < at["mark"] < at["join"], "never joined, or in another order"
        assert at["mark"] + 1 == log.index(launch), "the engine's launch is this collective"
        made_by = [i for i, e in enumerate(log) if _is_operator(e, launch) and i < at["launch point"]]
        assert made_by, "launched before the operators whose output it sums"
        wait = max(i for i, e in enumerate(log) if _is_wait(e, launch) and i < at["join"])
        assert at["join"] == wait + 1, "the engine waits exactly where compute is made to"
        beside = [e for e in log[at["mark"] : at["join"]] if isinstance(e, TraceEvent) and e.kind == "op"]
        assert beside or launch.beside is None, "what is to hide it runs between launch and join"


def _is_operator(event: Any, launch: TraceEvent) -> bool:
    same = ("op", launch.key, launch.layer, launch.nanobatch)
    return isinstance(event, TraceEvent) and (event.kind, event.key, event.layer, event.nanobatch) == same


def _is_wait(event: Any, launch: TraceEvent) -> bool:
    same = ("wait", launch.key, launch.layer, launch.nanobatch)
    return isinstance(event, TraceEvent) and (event.kind, event.key, event.layer, event.nanobatch) == same
