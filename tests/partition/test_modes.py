"""Everything around plain training: precision, frozen parts, caches, recomputation by transformers, copies, misuse."""

from __future__ import annotations

import copy
import io
import logging

import pytest
import torch
from loopback import LoopbackCollectives
from tiny_models import assert_close, gradients, loss_of, make, make_batch, plan_of, train_on
from torch import nn

from energy_lightning.partition import ExecutionError, PartitionEngine, TraceEvent, find_stacks, install
from energy_lightning.types import PhasePlan, Plan, PlanError, Schedule

KINDS = ("bert", "llama")


def _installed(kind: str, plan: Plan | None = None, *, checkpointing: bool = False, **changes):
    """A model with an engine, and the same one without."""
    model = make(kind, **changes)
    engine = install(model, activation_checkpointing=checkpointing)
    engine.apply(plan or plan_of())
    return model, engine, make(kind, **changes)


def _ran_partitioned(engine: PartitionEngine, run) -> bool:
    engine.trace = []
    run()
    return bool(engine.trace)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_is_kept_where_backward_recomputes(kind: str, checkpointing: bool) -> None:
    model, _, reference = _installed(kind, checkpointing=checkpointing)
    batch = make_batch(kind, 4)
    for each in (model, reference):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(each, batch)
        loss.backward()
    # bfloat16 rounds to 2**-8; matrix products over half the batch each round differently
    assert_close(gradients(model), gradients(reference), tolerance=6e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_recomputation_under_autocast_repeats_the_forward(kind: str) -> None:
    found = []
    for checkpointing in (False, True):
        model, _, _ = _installed(kind, checkpointing=checkpointing)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, make_batch(kind, 4))
        loss.backward()
        found.append(gradients(model))
    assert_close(found[1], found[0], tolerance=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_backward_inside_autocast_does_not_reuse_casts_made_without_a_graph(kind: str) -> None:
    model, _, reference = _installed(kind, checkpointing=True)
    batch = make_batch(kind, 4)
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(model, batch).backward()
        loss_of(reference, batch).backward()
    assert_close(gradients(model), gradients(reference), tolerance=6e-2)


def test_anomaly_mode() -> None:
    model, _, reference = _installed("llama")
    with torch.autograd.detect_anomaly(check_nan=True):
        train_on(model, [make_batch("llama", 4)])
    train_on(reference, [make_batch("llama", 4)])
    assert_close(gradients(model), gradients(reference))


def _freeze(model: nn.Module, *prefixes: str) -> None:
    for name, parameter in model.named_parameters():
        if name.startswith(prefixes):
            parameter.requires_grad_(False)


FROZEN = {
    "embeddings": ("bert.embeddings", "model.embed_tokens"),
    "embeddings and first layer": (
        *("bert.embeddings", "bert.encoder.layer.0"),
        *("model.embed_tokens", "model.layers.0", "lm_head"),
    ),
    "all but the first norm": ("bert.embeddings", "bert.encoder.layer.0.attention.self", "model.embed_tokens"),
    "a layer in the middle": ("bert.encoder.layer.1", "model.layers.1"),
    "all blocks": ("bert.encoder", "model.layers"),
    "everything below the head": ("bert.", "model."),
}


@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters(kind: str, frozen: str, checkpointing: bool, loopback: bool) -> None:
    changes = {"num_hidden_layers": 3} | ({"tie_word_embeddings": False} if kind == "llama" else {})
    model, reference = make(kind, **changes), make(kind, **changes)
    engine = PartitionEngine(
        find_stacks(model),
        collectives=LoopbackCollectives() if loopback else None,
        activation_checkpointing=checkpointing,
    )
    engine.apply(plan_of())
    for each in (model, reference):
        _freeze(each, *FROZEN[frozen])
        train_on(each, [make_batch(kind, 4)])
    assert_close(gradients(model), gradients(reference))


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("plan", [Plan.sequential(), plan_of()], ids=["sequential", "nanobatched"])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_switched_on_in_transformers(kind: str, plan: Plan, every: int) -> None:
    model, engine, reference = _installed(kind, plan)
    model._set_gradient_checkpointing(every_n_layers=every)
    model.gradient_checkpointing_enable() if every == 1 else None
    engine.trace = []
    train_on(model, [make_batch(kind, 4)])
    train_on(reference, [make_batch(kind, 4)])
    assert_close(gradients(model), gradients(reference))
    if plan.forward.nanobatched:
        recomputed = {event.layer for event in engine.trace if event.key.startswith("rec")}
        assert recomputed == set(range(0, 2, every))


def test_evaluation_without_gradients_is_plain() -> None:
    model, engine, reference = _installed("llama")
    batch = make_batch("llama", 4)
    with torch.inference_mode():
        assert not _ran_partitioned(engine, lambda: model.eval()(**batch))
        torch.testing.assert_close(model(**batch).logits, reference.eval()(**batch).logits)


def test_sharded_style_evaluation_runs_partitioned() -> None:
    model, reference = make("bert").eval(), make("bert").eval()
    engine = PartitionEngine(find_stacks(model), collectives=LoopbackCollectives(), activation_checkpointing=False)
    engine.apply(plan_of())
    batch = make_batch("bert", 5)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            engine.trace = []
            torch.testing.assert_close(model(**batch).logits, reference(**batch).logits)
            assert {event.nanobatch for event in engine.trace} == {0, 1}


@pytest.mark.parametrize("loopback", [False, True])
def test_generation_with_a_key_value_cache(loopback: bool) -> None:
    model, reference = make("llama").eval(), make("llama").eval()
    collectives = LoopbackCollectives() if loopback else None
    PartitionEngine(find_stacks(model), collectives=collectives, activation_checkpointing=True).apply(plan_of())
    ids = make_batch("llama", 2, padded=False)["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False, "use_cache": True}
    assert torch.equal(model.generate(ids, **options), reference.generate(ids, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_every_layer_come_from_the_plain_layers(kind: str) -> None:
    model, engine, reference = _installed(kind, attn_implementation="eager")
    batch = make_batch(kind, 3)
    wanted = {"output_hidden_states": True, "output_attentions": True}
    engine.trace = []
    found, expected = model(**batch, **wanted), reference(**batch, **wanted)
    assert engine.trace == []
    assert len(found.hidden_states) == len(expected.hidden_states) == 3
    torch.testing.assert_close(found.hidden_states, expected.hidden_states)
    torch.testing.assert_close(found.attentions, expected.attentions)
    assert _ran_partitioned(engine, lambda: model(**batch))  # the hooks that capture outputs stay, unused


def test_outputs_of_every_layer_are_refused_where_layers_are_shards() -> None:
    model = make("llama")
    PartitionEngine(find_stacks(model), collectives=LoopbackCollectives(), activation_checkpointing=False)
    with pytest.raises(ExecutionError, match=r"model\.layers is tensor-parallel.*hidden states of every layer"):
        model(**make_batch("llama", 2), output_hidden_states=True)


def test_a_filled_cache_in_training_runs_plain() -> None:
    model, engine, reference = _installed("llama")
    batch = make_batch("llama", 3, padded=False)
    results = []
    for each in (model, reference):
        with torch.no_grad():
            cache = each(batch["input_ids"], use_cache=True).get("cache")
        rest = each(batch["input_ids"], cache=cache, labels=batch["labels"])
        rest.loss.backward()
        results.append(gradients(each))
    assert_close(*results)
    assert not engine.trace


def test_a_user_hook_on_a_layer_is_not_left_out_silently(caplog: pytest.LogCaptureFixture) -> None:
    model, _engine, reference = _installed("bert")
    seen: list[int] = []
    for each in (model, reference):
        each.bert.encoder.layer[1].intermediate.register_forward_hook(lambda *_: seen.append(1))
    with caplog.at_level(logging.WARNING):
        train_on(model, [make_batch("bert", 4)] * 2)
    assert len(seen) == 2
    assert caplog.text.count("runs its plain layers, not nanobatches: a hook") == 1


def test_a_linear_replaced_after_installation_is_not_bypassed() -> None:
    class Scaled(nn.Linear):
        def forward(self, x):
            return 3 * super().forward(x)

    model, _engine, reference = _installed("llama")
    for each in (model, reference):
        old = each.model.layers[0].mlp.up_proj
        new = each.model.layers[0].mlp.up_proj = Scaled(old.in_features, old.out_features, bias=False)
        new.weight = old.weight
        train_on(each, [make_batch("llama", 4)])
    assert_close(gradients(model), gradients(reference))


def test_double_backward_and_partial_gradients_are_refused() -> None:
    model, _engine, _ = _installed("llama")
    batch = make_batch("llama", 4)
    with pytest.raises(ExecutionError, match="create_graph=True"):
        loss_of(model, batch).backward(create_graph=True)
    with pytest.raises(ExecutionError, match=r"torch\.autograd\.grad\(\)"):
        torch.autograd.grad(loss_of(model, batch), model.model.embed_tokens.weight)
    loss = loss_of(model, batch)
    loss.backward()
    with pytest.raises((ExecutionError, RuntimeError), match="a second time"):
        loss.backward()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_two_losses_through_one_forward(checkpointing: bool) -> None:
    model, _engine, reference = _installed("llama", checkpointing=checkpointing)
    batch = make_batch("llama", 4)
    for each in (model, reference):
        output = each(**batch)
        output.loss.backward(retain_graph=True)
        output.logits.square().mean().backward()
    assert_close(gradients(model), gradients(reference))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", [Plan.sequential(), plan_of()], ids=["sequential", "nanobatched"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_final_gradients_are_reported_once_per_layer_from_the_last(kind: str, plan: Plan, checkpointing: bool) -> None:
    model, engine, _ = _installed(kind, plan, checkpointing=checkpointing, num_hidden_layers=3)
    layers = engine.stacks[0].layers
    _freeze(model, "bert.embeddings")  # plain layers whose input wants no gradient report too
    reported: list[int] = []
    seen: dict[str, torch.Tensor] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def listen(parameters) -> None:
        reported.append(next(i for i, layer in enumerate(layers) if parameters[0] is next(layer.parameters())))
        assert {id(p) for p in parameters} == {id(p) for p in layers[reported[-1]].parameters()}
        seen.update({names[id(p)]: p.grad.clone() for p in parameters})

    engine.on_gradients_ready = listen
    train_on(model, [make_batch(kind, 4)])
    assert reported == [2, 1, 0]
    assert all(torch.equal(model.get_parameter(name).grad, gradient) for name, gradient in seen.items())


def test_layers_look_the_same_from_outside() -> None:
    model, _engine, reference = _installed("bert")
    assert list(model.state_dict()) == list(reference.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in reference.named_modules()]
    assert [type(layer) for layer in model.bert.encoder.layer] == [
        type(layer) for layer in reference.bert.encoder.layer
    ]
    train_on(model, [make_batch("bert", 4)])
    assert isinstance(model.bert.encoder.layer[:1][0], type(reference.bert.encoder.layer[0]))
    with pytest.raises(IndexError):
        model(torch.full((2, 3), 1000))  # a failing forward leaves the layers as they were
    assert len(list(model.bert.encoder.layer)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_and_a_pickle_are_plain_models(kind: str) -> None:
    model, engine, reference = _installed(kind)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for each in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert not _ran_partitioned(engine, lambda each=each: train_on(each, [make_batch(kind, 4)]))
        reference.zero_grad()
        train_on(reference, [make_batch(kind, 4)])
        assert_close(gradients(each), gradients(reference))


def test_fewer_layers_than_installed() -> None:
    model, _engine, reference = _installed("llama")
    for each in (model, reference):
        each.model.config.num_hidden_layers = 1
    with pytest.raises(ExecutionError, match="all 2 layers"):
        train_on(model, [make_batch("llama", 4)])


def test_unknown_launch_points_are_refused_and_the_plan_stays() -> None:
    model = make("bert")
    engine = PartitionEngine(find_stacks(model), collectives=LoopbackCollectives(), activation_checkpointing=False)
    before = engine.plan
    with pytest.raises(
        PlanError, match=r"'fwd_attn': bert has no operator 'rope_0'.*norm_0, linear_0, attn_0, linear_1"
    ):
        engine.apply(plan_of({"fwd_attn": "rope_0"}))
    assert engine.plan is before
    rest = {"grad_bucket": Schedule(launch="anything"), "bwd_attn": Schedule(launch="attn_0")}
    engine.apply(Plan.single_stage(PhasePlan("forward"), PhasePlan("backward", None, True, rest)))
    stages = ((PhasePlan("forward"), PhasePlan("backward")),) * 2
    with pytest.raises(PlanError, match="2 stages"):
        engine.apply(Plan(stages))


def test_events_tell_what_ran() -> None:
    event = TraceEvent("op", "fwd_attn", "norm_0", 0, 1)
    assert (event.key, event.operator, event.nanobatch, event.layer, event.beside) == ("fwd_attn", "norm_0", 0, 1, None)
