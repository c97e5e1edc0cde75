"""The engine on two gloo processes, against the untouched model in each of them."""

from __future__ import annotations

import copy
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from distributed_helpers import run_checks
from test_equivalence import LAUNCH_POINTS
from tiny_models import MODELS, assert_close, gradients, loss_of, make, make_batch, plan_of, train_on
from torch import Tensor, nn

from energy_lightning.partition import TensorParallelError, install
from energy_lightning.partition.sharding import (
    full_optimizer_state_dict,
    full_state_dict,
    full_tensor,
    load_full_state_dict,
    local_optimizer_state_dict,
    shard_of,
)
from energy_lightning.types import Plan


def full_gradients(model: nn.Module, group: dist.ProcessGroup) -> dict[str, Tensor | None]:
    full = {}
    for name, parameter in model.named_parameters():
        shard = shard_of(parameter)
        gradient = parameter.grad
        full[name] = gradient if shard is None or gradient is None else full_tensor(gradient, shard, group)
    return full


def _compare(model: nn.Module, kind: str, batches: list, group: dist.ProcessGroup, **changes) -> None:
    reference = make(kind, **changes)
    assert train_on(model, batches) == pytest.approx(train_on(reference, batches), rel=1e-5)
    assert_close(full_gradients(model, group), gradients(reference))


def check_gradients(
    group: dist.ProcessGroup, *, kind: str, plan: Plan, checkpointing: bool, num_batches: int = 1, batch_size: int = 3
) -> None:
    model = make(kind)
    install(model, tensor_parallel_group=group, activation_checkpointing=checkpointing).apply(plan)
    _compare(model, kind, [make_batch(kind, batch_size, seed=seed) for seed in range(num_batches)], group)


def check_trace(group: dist.ProcessGroup) -> None:
    """Real collectives, launched where the schedule says: the oracle is in test_trace."""
    model = make("llama")
    engine = install(model, tensor_parallel_group=group)
    engine.apply(plan_of({"fwd_attn": "rope_0"}, {"bwd_attn": "attn_0"}))
    engine.trace = []
    train_on(model, [make_batch("llama", 4)])
    for key, operator in (("fwd_attn", "rope_0"), ("bwd_attn", "attn_0")):
        places = [i for i, event in enumerate(engine.trace) if event.kind == "launch" and event.beside == key]
        # the first partition of a phase hides nothing; each other one of this key hides one collective
        assert len(places) == (3 if key == "fwd_attn" else 4)
        following = [engine.trace[i + 1] for i in places]
        assert {(event.kind, event.key, event.operator) for event in following} == {("op", key, operator)}


def check_shards(group: dist.ProcessGroup) -> None:
    model, reference = make("llama_bias"), make("llama_bias")
    install(model, tensor_parallel_group=group)
    rank = dist.get_rank(group)
    attention, plain = model.model.layers[0].self_attn, reference.model.layers[0].self_attn
    assert torch.equal(attention.q_proj.weight, plain.q_proj.weight[8 * rank : 8 * rank + 8])  # 2 of 4 heads of 4
    assert torch.equal(attention.k_proj.bias, plain.k_proj.bias[4 * rank : 4 * rank + 4])  # 1 of 2 key-value heads
    assert torch.equal(attention.o_proj.weight, plain.o_proj.weight[:, 8 * rank : 8 * rank + 8])
    assert torch.equal(attention.o_proj.bias, plain.o_proj.bias)
    assert (attention.q_proj.in_features, attention.q_proj.out_features) == (16, 8)
    assert shard_of(attention.o_proj.bias) is None
    full = full_state_dict(model, group)
    assert list(full) == list(reference.state_dict())
    assert all(torch.equal(full[name], value) for name, value in reference.state_dict().items())


def check_loading_full_weights(group: dist.ProcessGroup) -> None:
    other = make("bert")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.01)
    model = make("bert")
    install(model, tensor_parallel_group=group)
    load_full_state_dict(model, other.state_dict(), group)
    batch = make_batch("bert", 3)
    torch.testing.assert_close(loss_of(model, batch), loss_of(other, batch))


def check_optimizer_states(group: dist.ProcessGroup) -> None:
    """Three steps, saved, continued in the plain model; and the plain model's states continued in shards."""
    sharded, plain = make("llama"), make("llama")
    install(sharded, tensor_parallel_group=group).apply(plan_of())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (sharded, plain)]

    def steps(pairs, seeds) -> None:
        for seed, (model, optimizer) in product(seeds, pairs):
            optimizer.zero_grad()
            train_on(model, [make_batch("llama", 3, seed=seed)])
            optimizer.step()

    steps(zip((sharded, plain), optimizers, strict=True), range(3))
    full = full_optimizer_state_dict(optimizers[0], group)
    expected = optimizers[1].state_dict()
    assert full["param_groups"] == expected["param_groups"]
    for index, values in expected["state"].items():
        for name, value in values.items():
            torch.testing.assert_close(full["state"][index][name], value, rtol=1e-3, atol=1e-6)

    fresh = make("llama")
    install(fresh, tensor_parallel_group=group)
    load_full_state_dict(fresh, plain.state_dict(), group)
    optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.01)
    optimizer.load_state_dict(local_optimizer_state_dict(optimizer, copy.deepcopy(expected), group))
    steps([(fresh, optimizer), (plain, optimizers[1])], [5])
    for name, value in full_state_dict(fresh, group).items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-4, atol=1e-6)


def check_sizes_that_do_not_fit(group: dist.ProcessGroup) -> None:
    model = make("llama", num_key_value_heads=1, num_attention_heads=4)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        TensorParallelError, match=r"tensor_parallel_size=2 does not divide num_key_value_heads=1.*: 1$"
    ):
        install(model, tensor_parallel_group=group)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    train_on(model, [make_batch("llama", 2)])  # untouched


def check_layer_alone_is_refused(group: dist.ProcessGroup) -> None:
    model = make("bert")
    install(model, tensor_parallel_group=group)
    with pytest.raises(TensorParallelError, match="BertLayer holds one rank's shard"):
        model.bert.encoder.layer[0](torch.zeros(1, 2, 16))
    duplicate = copy.deepcopy(model)  # its layers are shards too, but no engine runs them
    with pytest.raises(TensorParallelError):
        duplicate(**make_batch("bert", 2))


def check_generation(group: dist.ProcessGroup) -> None:
    model, reference = make("llama").eval(), make("llama").eval()
    install(model, tensor_parallel_group=group).apply(plan_of())
    ids = make_batch("llama", 2, padded=False)["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False, "use_cache": True}
    assert torch.equal(model.generate(ids, **options), reference.generate(ids, **options))


def check_evaluation(group: dist.ProcessGroup) -> None:
    model, reference = make("bert").eval(), make("bert").eval()
    engine = install(model, tensor_parallel_group=group)
    for plan in (Plan.sequential(), plan_of()):
        engine.apply(plan)
        with torch.inference_mode():
            batch = make_batch("bert", 5)
            torch.testing.assert_close(model(**batch).logits, reference(**batch).logits)


def check_autocast(group: dist.ProcessGroup, *, checkpointing: bool) -> None:
    model, reference = make("llama"), make("llama")
    install(model, tensor_parallel_group=group, activation_checkpointing=checkpointing).apply(plan_of())
    for each in (model, reference):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(each, make_batch("llama", 4))
        loss.backward()
    assert_close(full_gradients(model, group), gradients(reference), tolerance=6e-2)


DROPOUT = {
    "bert": {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2},
    "llama": {"attention_dropout": 0.2},
}


def check_dropout_is_in_step(group: dist.ProcessGroup, *, kind: str, checkpointing: bool) -> None:
    """Replicated activations and gradients stay equal on all ranks, whatever the ranks' generators were before."""
    model = make(kind, **DROPOUT[kind])
    torch.manual_seed(1000 + dist.get_rank(group))
    engine = install(model, tensor_parallel_group=group, activation_checkpointing=checkpointing)
    engine.apply(plan_of())
    losses = torch.tensor(train_on(model, [make_batch(kind, 4, seed=seed) for seed in range(2)]))
    replicated = [p.grad.flatten() for p in model.parameters() if shard_of(p) is None and p.grad is not None]
    values = torch.cat([losses, torch.get_rng_state().float(), *replicated])
    everywhere = [torch.empty_like(values) for _ in range(2)]
    dist.all_gather(everywhere, values, group=group)
    torch.testing.assert_close(everywhere[0], everywhere[1], rtol=0, atol=0)


def check_recomputed_dropout_is_the_same(group: dist.ProcessGroup, *, kind: str) -> None:
    found = []
    for checkpointing in (False, True):
        model = make(kind, **DROPOUT[kind])
        torch.manual_seed(5)
        install(model, tensor_parallel_group=group, activation_checkpointing=checkpointing).apply(plan_of())
        train_on(model, [make_batch(kind, 4, seed=seed) for seed in range(2)])
        found.append(gradients(model) | {"generator": torch.get_rng_state().float()})
    assert_close(found[1], found[0], tolerance=1e-6)


def check_ranks_drop_different_attention_weights(group: dist.ProcessGroup) -> None:
    """Both ranks get the same heads, so only dropout can tell their outputs apart."""
    model = make("llama", attention_dropout=0.5)
    with torch.no_grad():
        for layer in model.model.layers:
            for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                linear.weight.copy_(linear.weight[: len(linear.weight) // 2].repeat(2, 1))
            layer.self_attn.o_proj.weight.copy_(layer.self_attn.o_proj.weight[:, :8].repeat(1, 2))
    install(model, tensor_parallel_group=group)
    train_on(model, [make_batch("llama", 4)])
    own = model.model.layers[0].self_attn.v_proj.weight.grad
    both = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(both, own, group=group)
    assert not torch.allclose(both[0], both[1])


def _launch_point_checks() -> dict:
    checks = {}
    for (kind, key), launches in LAUNCH_POINTS.items():
        for launch in launches:
            plan = plan_of({key: launch}) if key.startswith("fwd") else plan_of(None, {key: launch})
            checks[f"launch {kind} {key} {launch}"] = partial(
                check_gradients, kind=kind, plan=plan, checkpointing=key.startswith("rec")
            )
    return checks


MODES = {"sequential": Plan.sequential(), "nanobatched": plan_of()}
CHECKS = {
    **{
        f"gradients {kind} {mode}{' checkpointing' * checkpointing}": partial(
            check_gradients, kind=kind, plan=MODES[mode], checkpointing=checkpointing, num_batches=4
        )
        for kind, mode, checkpointing in product(MODELS, MODES, (False, True))
    },
    **{
        f"batch of {size} {kind}": partial(
            check_gradients, kind=kind, plan=plan_of(), checkpointing=False, batch_size=size
        )
        for kind, size in product(("bert", "llama"), (1, 2, 5))
    },
    **_launch_point_checks(),
    "trace": check_trace,
    "shards": check_shards,
    "loading full weights": check_loading_full_weights,
    "optimizer states": check_optimizer_states,
    "sizes that do not fit": check_sizes_that_do_not_fit,
    "layer alone": check_layer_alone_is_refused,
    "generation": check_generation,
    "evaluation": check_evaluation,
    "autocast": partial(check_autocast, checkpointing=False),
    "autocast checkpointing": partial(check_autocast, checkpointing=True),
    **{
        f"dropout in step {kind}{' checkpointing' * checkpointing}": partial(
            check_dropout_is_in_step, kind=kind, checkpointing=checkpointing
        )
        for kind, checkpointing in product(DROPOUT, (False, True))
    },
    **{f"recomputed dropout {kind}": partial(check_recomputed_dropout_is_the_same, kind=kind) for kind in DROPOUT},
    "dropout differs between heads": check_ranks_drop_different_attention_weights,
}


@pytest.fixture(scope="module")
def failures(quick_python: str) -> dict[str, str]:
    return run_checks(CHECKS, num_processes=2, python=quick_python)


@pytest.mark.distributed
@pytest.mark.parametrize("name", CHECKS)
def test_on_two_processes(name: str, failures: dict[str, str]) -> None:
    assert name not in failures, failures[name]
