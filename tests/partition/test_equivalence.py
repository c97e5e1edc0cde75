"""Loss and gradients equal those of the untouched model, in one process."""

from __future__ import annotations

import pytest
import torch
from loopback import LoopbackCollectives
from tiny_models import MODELS, assert_close, gradients, make, make_batch, plan_of, train_on

from energy_lightning.partition import PartitionEngine, find_stacks, install
from energy_lightning.types import Plan

PLANS = {"sequential": Plan.sequential(), "nanobatched": plan_of()}


def _compare(model, kind, batches, **changes) -> None:
    reference = make(kind, **changes)
    assert train_on(model, batches) == pytest.approx(train_on(reference, batches), rel=1e-5)
    assert_close(gradients(model), gradients(reference))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mode", PLANS)
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_over_accumulated_batches(kind: str, mode: str, checkpointing: bool) -> None:
    model = make(kind)
    install(model, activation_checkpointing=checkpointing).apply(PLANS[mode])
    _compare(model, kind, [make_batch(kind, 4, seed=seed) for seed in range(4)])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_batches_that_do_not_split_evenly(kind: str, batch_size: int) -> None:
    model = make(kind)
    install(model).apply(plan_of())
    _compare(model, kind, [make_batch(kind, batch_size)])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["bert", "llama", "llama_classifier"])
def test_masks_of_every_attention_implementation(kind: str, padded: bool, implementation: str) -> None:
    changes = {"attn_implementation": implementation}
    model = make(kind, **changes)
    install(model).apply(plan_of())
    _compare(model, kind, [make_batch(kind, 3, padded=padded)], **changes)


def test_positions_given_by_the_user() -> None:
    batch = make_batch("llama", 3, padded=False)
    for positions in (torch.arange(7)[None] + 2, torch.arange(7)[None] + torch.tensor([[0], [3], [5]])):
        model = make("llama")
        install(model).apply(plan_of())
        _compare(model, "llama", [{**batch, "position_ids": positions}])


def test_mask_of_four_dimensions_given_by_the_user() -> None:
    batch = make_batch("bert", 3)
    allowed = batch["attention_mask"].bool()[:, None, None, :].expand(-1, 1, 7, -1)
    for mask in (allowed, allowed[:1]):
        model = make("bert")
        install(model).apply(plan_of())
        _compare(model, "bert", [{**batch, "attention_mask": mask}])


LAUNCH_POINTS = {
    ("bert", "fwd_attn"): ("norm_0", "linear_0", "attn_0", "linear_1", None),
    ("llama", "fwd_attn"): ("norm_0", "linear_0", "rope_0", "attn_0", "linear_1", None),
    ("bert", "fwd_mlp"): ("norm_0", "linear_0", "activation_0", "linear_1", None),
    ("llama", "fwd_mlp"): ("norm_0", "linear_0", "activation_0", "linear_1", None),
    ("bert", "bwd_mlp"): ("norm_0", "linear_1", "activation_0", "linear_0", None),
    ("llama", "bwd_mlp"): ("norm_0", "linear_1", "activation_0", "linear_0", None),
    ("bert", "bwd_attn"): ("norm_0", "linear_1", "attn_0", "linear_0", None),
    ("llama", "bwd_attn"): ("norm_0", "linear_1", "attn_0", "rope_0", "linear_0", None),
    ("bert", "rec_attn"): ("norm_0", "linear_0", "attn_0", "linear_1", None),
    ("llama", "rec_attn"): ("norm_0", "linear_0", "rope_0", "attn_0", "linear_1", None),
    ("bert", "rec_mlp"): ("norm_0", "linear_0", "activation_0", "linear_1", None),
    ("llama", "rec_mlp"): ("norm_0", "linear_0", "activation_0", "linear_1", None),
}


@pytest.mark.parametrize(
    ("kind", "key", "launch"),
    [(kind, key, launch) for (kind, key), points in LAUNCH_POINTS.items() for launch in points],
)
def test_no_launch_point_reads_a_sum_before_it_is_complete(kind: str, key: str, launch: str | None) -> None:
    """The loopback backend makes a tensor NaN from its launch to its wait."""
    model = make(kind)
    engine = PartitionEngine(
        find_stacks(model), collectives=LoopbackCollectives(), activation_checkpointing=key.startswith("rec")
    )
    engine.apply(plan_of({key: launch}) if key.startswith("fwd") else plan_of(None, {key: launch}))
    _compare(model, kind, [make_batch(kind, 3)])


@pytest.mark.parametrize(("forward", "backward"), [(True, False), (False, True)])
def test_phases_in_different_modes(forward: bool, backward: bool) -> None:
    model = make("llama")
    engine = PartitionEngine(find_stacks(model), collectives=LoopbackCollectives(), activation_checkpointing=False)
    sequential, nanobatched = Plan.sequential(), plan_of()
    engine.apply(
        Plan.single_stage(
            (nanobatched if forward else sequential).forward, (nanobatched if backward else sequential).backward
        )
    )
    engine.trace = []
    _compare(model, "llama", [make_batch("llama", 4)])
    launches = [event for event in engine.trace if event.kind == "launch"]
    hidden = {event.key[:3] for event in launches if event.beside is not None}
    assert hidden == {"fwd" if forward else "bwd"}
