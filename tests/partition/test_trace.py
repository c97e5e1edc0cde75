"""Collectives are launched beside the operator that the schedule names, and waited for where they are needed."""

from __future__ import annotations

import pytest
from loopback import LoopbackCollectives
from test_equivalence import LAUNCH_POINTS
from tiny_models import make, make_batch, plan_of, train_on

from energy_lightning.partition import PartitionEngine, TraceEvent, find_stacks
from energy_lightning.types import PhasePlan, Plan, Schedule


def _trace(kind: str, plan: Plan, *, checkpointing: bool = False, num_layers: int = 1, batch_size: int = 4):
    model = make(kind, num_hidden_layers=num_layers)
    engine = PartitionEngine(
        find_stacks(model), collectives=LoopbackCollectives(), activation_checkpointing=checkpointing
    )
    engine.apply(plan)
    engine.trace = []
    train_on(model, [make_batch(kind, batch_size)])
    return engine.trace


def _written(events: list[TraceEvent]) -> list[str]:
    """`attn.0 linear_0` for an operator of nanobatch 0; launches and waits with the partition they belong to."""
    marks = {"op": "", "launch": "launch ", "wait": "wait "}
    return [
        f"{marks[event.kind]}{event.key}.{event.nanobatch}{f' {event.operator}' if event.kind == 'op' else ''}"
        for event in events
    ]


def test_forward_of_one_llama_layer() -> None:
    plan = plan_of({"fwd_attn": "rope_0", "fwd_mlp": "activation_0"})
    events = [event for event in _trace("llama", plan) if event.key.startswith("fwd")]
    assert _written(events) == [
        *(f"fwd_attn.0 {name}" for name in ("norm_0", "linear_0", "rope_0", "attn_0", "linear_1")),
        *("fwd_attn.1 norm_0", "fwd_attn.1 linear_0"),
        *("launch fwd_attn.0", "fwd_attn.1 rope_0", "fwd_attn.1 attn_0", "fwd_attn.1 linear_1"),
        *("wait fwd_attn.0", "fwd_mlp.0 norm_0", "fwd_mlp.0 linear_0"),
        *("launch fwd_attn.1", "fwd_mlp.0 activation_0", "fwd_mlp.0 linear_1"),
        *("wait fwd_attn.1", "fwd_mlp.1 norm_0", "fwd_mlp.1 linear_0"),
        *("launch fwd_mlp.0", "fwd_mlp.1 activation_0", "fwd_mlp.1 linear_1"),
        "launch fwd_mlp.1",  # trailing: nothing hides it
        *("wait fwd_mlp.0", "fwd_rest.0 norm_0", "wait fwd_mlp.1", "fwd_rest.1 norm_0"),
    ]


def test_backward_of_one_bert_layer() -> None:
    plan = plan_of(None, {"bwd_mlp": "linear_0", "bwd_attn": "attn_0"})
    events = [event for event in _trace("bert", plan) if event.key.startswith("bwd")]
    assert _written(events) == [
        *(f"bwd_mlp.0 {name}" for name in ("norm_0", "linear_1", "activation_0", "linear_0")),
        *("bwd_mlp.1 norm_0", "bwd_mlp.1 linear_1", "bwd_mlp.1 activation_0"),
        *("launch bwd_mlp.0", "bwd_mlp.1 linear_0"),
        *("wait bwd_mlp.0", "bwd_attn.0 norm_0", "bwd_attn.0 linear_1"),
        *("launch bwd_mlp.1", "bwd_attn.0 attn_0", "bwd_attn.0 linear_0"),
        *("wait bwd_mlp.1", "bwd_attn.1 norm_0", "bwd_attn.1 linear_1"),
        *("launch bwd_attn.0", "bwd_attn.1 attn_0", "bwd_attn.1 linear_0"),
        "launch bwd_attn.1",
        *("wait bwd_attn.0", "bwd_rest.0 norm_0", "wait bwd_attn.1", "bwd_rest.1 norm_0"),
    ]


def test_recomputation_is_overlapped_too_and_does_not_repeat_the_last_sum() -> None:
    plan = plan_of(None, {"rec_attn": "attn_0", "rec_mlp": "linear_0", "bwd_mlp": "linear_0", "bwd_attn": "linear_0"})
    events = _trace("llama", plan, checkpointing=True, num_layers=2)
    sums = [
        f"{event.key}.{event.nanobatch} beside {event.beside} {event.operator}"
        for event in events
        if event.kind == "launch" and event.key[:3] != "fwd"
    ]
    assert sums == [
        "rec_attn.0 beside rec_attn attn_0",
        "rec_attn.1 beside rec_mlp linear_0",
        "bwd_mlp.0 beside bwd_mlp linear_0",
        "bwd_mlp.1 beside bwd_attn linear_0",
        "bwd_attn.0 beside bwd_attn linear_0",
        "bwd_attn.1 beside rec_attn attn_0",
        "rec_attn.0 beside rec_attn attn_0",
        "rec_attn.1 beside rec_mlp linear_0",
        "bwd_mlp.0 beside bwd_mlp linear_0",
        "bwd_mlp.1 beside bwd_attn linear_0",
        "bwd_attn.0 beside bwd_attn linear_0",
        "bwd_attn.1 beside None None",
    ]


@pytest.mark.parametrize(
    ("kind", "key", "launch"),
    [(kind, key, launch) for (kind, key), points in LAUNCH_POINTS.items() for launch in points if launch],
)
def test_every_launch_point(kind: str, key: str, launch: str) -> None:
    """The event before each named operator of the partition is a launch; there are no others beside this key."""
    plan = plan_of({key: launch}) if key.startswith("fwd") else plan_of(None, {key: launch})
    events = _trace(kind, plan, checkpointing=key.startswith("rec"), num_layers=2)
    launches = [i for i, event in enumerate(events) if event.kind == "launch" and event.beside == key]
    assert launches
    for i in launches:
        beside, launched = events[i + 1], events[i]
        assert (beside.kind, beside.key, beside.operator) == ("op", key, launch)
        assert beside.nanobatch != launched.nanobatch
        own = (launched.key, launched.layer, launched.nanobatch)
        assert ("wait", *own) in [(e.kind, e.key, e.layer, e.nanobatch) for e in events[i:]]


def test_not_overlapped_means_complete_before_the_compute_begins() -> None:
    events = _written(_trace("bert", plan_of({"fwd_mlp": None, "fwd_attn": None})))
    at = events.index("launch fwd_attn.1")
    assert events[at : at + 3] == ["launch fwd_attn.1", "wait fwd_attn.1", "fwd_mlp.0 norm_0"]


def test_one_nanobatch_exposes_every_collective() -> None:
    for plan, batch_size in ((Plan.sequential(), 4), (plan_of(), 1)):
        events = _trace("llama", plan, num_layers=2, batch_size=batch_size)
        launches = [i for i, event in enumerate(events) if event.kind == "launch"]
        assert len(launches) == 8
        for i in launches:
            assert events[i].beside is None
            assert events[i + 1].kind == "wait"


def test_a_launch_carries_the_sm_count_of_its_schedule() -> None:
    schedules = {"fwd_attn": Schedule(3, "linear_0"), "fwd_mlp": Schedule(6, "linear_0")}
    plan = Plan.single_stage(PhasePlan("forward", None, True, schedules), PhasePlan("backward", None, True))
    events = [event for event in _trace("llama", plan) if event.kind == "launch" and event.key.startswith("fwd")]
    assert [(event.key, event.beside, event.asked_sm_count, event.granted_sm_count) for event in events] == [
        ("fwd_attn", "fwd_attn", 3, None),
        ("fwd_attn", "fwd_mlp", 6, None),
        ("fwd_mlp", "fwd_mlp", 6, None),
        ("fwd_mlp", None, 6, None),
    ]
