"""Partitions run alone: exactly what training runs, as often as asked, and nothing of the model is touched."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from loopback import LoopbackCollectives
from tiny_models import loss_of, make, make_batch

from energy_lightning.partition import ExecutionError, PartitionEngine
from energy_lightning.partition.profiling import PartitionKind, PartitionSettings, PreparedPartition, StackCall
from energy_lightning.partition.recognition import find_stacks
from energy_lightning.partition.tracing import TraceEvent
from energy_lightning.types import PhasePlan, Plan, Schedule

BATCH_SIZE = 4


def engine_for(kind: str, *, checkpointing: bool = False, collectives: Any = None, **changes: Any) -> Any:
    """(model, engine, what its stack was called with), after one step of training with gradients."""
    model = make(kind, num_hidden_layers=3, **changes)
    engine = PartitionEngine(
        find_stacks(model), collectives=collectives or LoopbackCollectives(), activation_checkpointing=checkpointing
    )
    return model, engine, call_of(model, engine, kind)


def call_of(model: Any, engine: PartitionEngine, kind: str) -> StackCall:
    calls: list[StackCall] = []
    engine.on_call = lambda stack, hidden, call: calls.append(StackCall.of(hidden, call))
    loss_of(model, make_batch(kind, BATCH_SIZE)).backward()
    engine.on_call = None
    return calls[0]


def prepared(
    engine: PartitionEngine,
    call: StackCall,
    name: str,
    schedule: Schedule | None = None,
    *,
    nanobatched: bool = True,
    has_collective: bool = True,
    **settings: Any,
) -> PreparedPartition:
    settings = {"collectives": LoopbackCollectives(), **settings}
    kind = PartitionKind.parse(
        name,
        nanobatched=nanobatched,
        has_collective=has_collective,
        checkpointing=settings.get("checkpointing", False),
    )
    return PreparedPartition(engine.stacks[0], call, kind, schedule, PartitionSettings(**settings))


def one_run(
    name: str, schedule: Schedule | None, engine: PartitionEngine, call: StackCall, **options: Any
) -> list[Any]:
    """What one execution does, in order: operators, launches and waits."""
    trace: list[TraceEvent] = []
    partition = prepared(engine, call, name, schedule, trace=trace, **options)
    trace.clear()
    partition.run(1)
    return [_told(event) for event in trace]


def _told(event: TraceEvent) -> tuple[Any, ...]:
    if event.kind == "op":
        return ("op", event.key, event.operator)
    return (event.kind, event.operator if event.kind == "launch" else None, event.beside, event.asked_sm_count)


def in_training(
    model: Any, engine: PartitionEngine, kind: str, key: str, plan: Plan, layer: int, nanobatch: int
) -> list[Any]:
    """What training does from the beginning of one partition to that of the next one."""
    engine.apply(plan)
    engine.trace = []
    loss_of(model, make_batch(kind, BATCH_SIZE)).backward()
    trace, engine.trace = engine.trace, None
    mine = [
        i for i, e in enumerate(trace) if e.kind == "op" and (e.key, e.layer, e.nanobatch) == (key, layer, nanobatch)
    ]
    first, last = mine[0], mine[-1]
    while first and trace[first - 1].kind != "op":
        first -= 1
    return [_told(event) for event in trace[first : last + 1]]


POINTS = [
    *(("fwd_attn", point) for point in ("norm_0", "linear_0", "attn_0", None)),
    *(("fwd_mlp", point) for point in ("norm_0", "activation_0", None)),
    *(("bwd_mlp", point) for point in ("norm_0", "activation_0", None)),
    *(("bwd_attn", point) for point in ("norm_0", "linear_1", "attn_0", None)),
]


@pytest.mark.parametrize(("key", "point"), POINTS, ids=lambda value: str(value))
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_partition_alone_does_what_it_does_in_training(kind: str, key: str, point: str | None) -> None:
    model, engine, call = engine_for(kind)
    schedule = Schedule(5, point)
    phases = [PhasePlan(phase, None, True, {key: schedule}) for phase in ("forward", "backward")]  # type: ignore[arg-type]
    # of the second nanobatch: the collective beside it is that of the first one's same partition, as it is alone
    expected = in_training(model, engine, kind, key, Plan.single_stage(*phases), 1, 1)
    assert one_run(key, schedule, engine, call) == expected
    assert sum(event[0] == "launch" for event in expected) == 1


@pytest.mark.parametrize(("key", "point"), [("rec_attn", "rope_0"), ("rec_mlp", "linear_0"), ("bwd_mlp", "linear_1")])
def test_recomputation_alone_does_what_it_does_in_training(key: str, point: str) -> None:
    model, engine, call = engine_for("llama", checkpointing=True)
    schedule = Schedule(5, point)
    phases = [PhasePlan(phase, None, True, {key: schedule}) for phase in ("forward", "backward")]  # type: ignore[arg-type]
    nanobatch = 0 if key == "rec_mlp" else 1  # beside its second one nothing runs
    expected = in_training(model, engine, "llama", key, Plan.single_stage(*phases), 1, nanobatch)
    found = one_run(key, schedule, engine, call, checkpointing=True)
    assert [event for event in found if event[0] != "wait"] == [event for event in expected if event[0] != "wait"]
    assert sum(event[0] == "launch" for event in expected) == 1


@pytest.mark.parametrize("key", ["fwd_attn", "fwd_mlp", "bwd_mlp", "bwd_attn"])
def test_sequential_partitions_end_with_their_collective_exposed(key: str) -> None:
    _, engine, call = engine_for("llama")
    found = one_run(key, Schedule(7), engine, call, nanobatched=False)
    operators = [("op", key, name) for name in engine.operator_names(key)]
    assert found == [*operators, ("launch", None, None, 7), ("wait", None, None, None)]


@pytest.mark.parametrize(
    ("name", "checkpointing", "runs"),
    [("fwd_edge", False, "fwd_attn"), ("bwd_edge", False, "bwd_mlp"), ("bwd_edge", True, "rec_attn")],
)
def test_edges_are_the_first_compute_and_a_trailing_collective(name: str, checkpointing: bool, runs: str) -> None:
    _, engine, call = engine_for("llama", checkpointing=checkpointing)
    found = one_run(name, None, engine, call, checkpointing=checkpointing)
    assert [event[1] for event in found if event[0] == "op"] == [runs] * 5 if runs.endswith("attn") else [runs] * 4
    assert [event[0] for event in found[-2:]] == ["launch", "wait"]


@pytest.mark.parametrize("name", ["rec_mlp_alone", "bwd_mlp_alone"])
def test_what_has_nothing_beside_it_runs_no_collective(name: str) -> None:
    _, engine, call = engine_for("llama", checkpointing=True)
    found = one_run(name, None, engine, call, checkpointing=True, has_collective=False)
    assert {event[0] for event in found} == {"op"}


class TwoAlike(LoopbackCollectives):
    """Sums as if there were a second rank with the same values. Counts, and keeps the largest value it was given."""

    size = 2

    def __init__(self) -> None:
        self.num_calls, self.largest = 0, 0.0

    def all_reduce(self, tensor: torch.Tensor, **options: Any) -> Any:
        self.num_calls += 1
        self.largest = max(self.largest, tensor.abs().max().item())
        return super().all_reduce(tensor.mul_(2), **options)


@pytest.mark.parametrize("name", ["fwd_attn", "rec_mlp", "bwd_attn"])
def test_every_execution_makes_one_collective_and_values_stay_finite(name: str) -> None:
    _, engine, call = engine_for("llama", checkpointing=True)
    collectives = TwoAlike()
    partition = prepared(engine, call, name, Schedule(launch="norm_0"), collectives=collectives, checkpointing=True)
    collectives.num_calls = 0
    partition.run(1)
    partition.run(6)
    assert collectives.num_calls == 7
    first = collectives.largest
    partition.run(150)  # 2**75 where a sum is summed again
    # rec_mlp ends in no sum: what runs beside it is filled anew every so often
    assert 0.0 < collectives.largest <= (1e20 if name == "rec_mlp" else 1.001) * first


class Observed:
    """All of a model that measuring must leave alone: weights, gradients (the same objects, too), buffers, states."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.before = {
            name: (p, p.detach().clone(), p.grad, None if p.grad is None else p.grad.clone())
            for name, p in model.named_parameters()
        }
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self.random = torch.get_rng_state()

    def assert_untouched(self) -> None:
        for name, parameter in self.model.named_parameters():
            same, value, gradient, gradient_value = self.before[name]
            assert parameter is same
            assert torch.equal(parameter, value), name
            assert parameter.grad is gradient, name
            assert gradient_value is None or torch.equal(gradient, gradient_value), name
        for name, buffer in self.model.named_buffers():
            assert torch.equal(buffer, self.buffers[name]), name
        assert torch.equal(torch.get_rng_state(), self.random)


@pytest.mark.parametrize("name", ["fwd_attn", "fwd_mlp", "rec_attn", "rec_mlp", "bwd_mlp", "bwd_attn", "bwd_edge"])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_weights_gradients_and_random_state_are_bit_identical_afterwards(kind: str, name: str) -> None:
    dropout = {"attention_dropout": 0.1} if kind == "llama" else {"hidden_dropout_prob": 0.1}
    model, engine, call = engine_for(kind, checkpointing=True, **dropout)
    seen = Observed(model)
    prepared(engine, call, name, Schedule(launch="norm_0"), checkpointing=True).run(3)
    seen.assert_untouched()


def test_hooks_of_the_model_do_not_hear_of_it() -> None:
    model, engine, call = engine_for("llama")
    heard: list[str] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: heard.append("gradient"))
        parameter.register_hook(lambda _: heard.append("tensor"))
    for module in model.modules():
        module.register_forward_hook(lambda *_: heard.append("forward"))
    engine.on_gradients_ready = lambda _: heard.append("ready")
    engine.on_call = lambda *_: heard.append("call")
    for name in ("fwd_mlp", "bwd_mlp"):
        prepared(engine, call, name).run(2)
    assert heard == []


def test_gradients_start_anew_as_often_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two backwards a step, of two nanobatches each: every fourth execution finds no gradient."""
    _, engine, call = engine_for("llama")
    partition = prepared(engine, call, "bwd_mlp", backwards_per_step=2)
    twin = partition._twin
    found = []
    for _ in range(8):
        partition.run(1)
        found.append(twin.mlp.up_proj.weight.grad.clone())
    for index in range(8):
        assert torch.allclose(found[index], found[0] * (index % 4 + 1), rtol=1e-4), index


def test_autocast_is_on_where_it_is_in_training() -> None:
    _, engine, _ = engine_for("llama")
    model = engine.stacks[0].owner
    context = partial(torch.autocast, "cpu", torch.bfloat16)
    with context():
        calls: list[StackCall] = []
        engine.on_call = lambda stack, hidden, call: calls.append(StackCall.of(hidden, call))
        model(input_ids=make_batch("llama", BATCH_SIZE)["input_ids"])
    dtypes: set[torch.dtype] = set()

    class Watching(LoopbackCollectives):
        def all_reduce(self, tensor: torch.Tensor, **options: Any) -> Any:
            dtypes.add(tensor.dtype)
            return super().all_reduce(tensor, **options)

    for made, expected in ((context, torch.bfloat16), (nullcontext, torch.float32)):
        partition = prepared(engine, calls[0], "fwd_mlp", context=made, collectives=Watching())
        dtypes.clear()
        partition.run(3)
        assert dtypes == {expected}


def test_its_memory_is_freed_when_it_is_closed_and_it_says_so() -> None:
    _, engine, call = engine_for("llama")
    partition = prepared(engine, call, "bwd_attn")
    partition.run(3)
    weights = [weakref.ref(parameter) for parameter in partition._twin.parameters()]
    partition.close()
    partition.close()
    assert all(weight() is None for weight in weights)
    with pytest.raises(ExecutionError, match="released"):
        partition.run(1)


@pytest.mark.parametrize(
    ("name", "checkpointing"), [("fwd_qkv", True), ("rec_attn", False), ("optimizer", False), ("fwd_rest", False)]
)
def test_partitions_that_the_engine_lacks_are_refused_by_name(name: str, checkpointing: bool) -> None:
    with pytest.raises(ExecutionError, match=f"'{name}'.*fwd_attn"):
        PartitionKind.parse(name, nanobatched=True, has_collective=True, checkpointing=checkpointing)


def test_a_batch_of_one_cannot_be_cut() -> None:
    model, engine, _ = engine_for("llama")
    calls: list[StackCall] = []
    engine.on_call = lambda stack, hidden, call: calls.append(StackCall.of(hidden, call))
    loss_of(model, make_batch("llama", 1)).backward()
    with pytest.raises(ExecutionError, match=r"\(1, 7, 16\)"):
        prepared(engine, calls[0], "fwd_attn")
