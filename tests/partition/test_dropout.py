"""Dropout: recomputation repeats it, execution modes draw from the same distribution."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from test_tensor_parallel import DROPOUT
from tiny_models import assert_close, gradients, make, make_batch, plan_of, train_on

from energy_lightning.partition import install
from energy_lightning.partition.random import RandomState, replayed, seeded_per_rank
from energy_lightning.types import Plan


@pytest.mark.parametrize("kind", DROPOUT)
def test_recomputation_repeats_the_forward(kind: str) -> None:
    found = []
    for checkpointing in (False, True):
        model = make(kind, **DROPOUT[kind])
        torch.manual_seed(3)
        install(model, activation_checkpointing=checkpointing).apply(plan_of())
        train_on(model, [make_batch(kind, 4, seed=seed) for seed in range(2)])
        found.append(gradients(model) | {"generator": torch.get_rng_state().float()})
    assert_close(found[1], found[0], tolerance=1e-6)


@pytest.mark.parametrize("kind", DROPOUT)
def test_the_loss_curve_is_statistically_that_of_the_plain_model(kind: str) -> None:
    """Mean loss over 8 steps, 12 seeds each: Welch's statistic of the difference stays within 3 deviations."""
    curves = {}
    for name, plan in (("plain", Plan.sequential()), ("nanobatched", plan_of())):
        curves[name] = []
        for seed in range(12):
            model = make(kind, **DROPOUT[kind])
            install(model, activation_checkpointing=name == "nanobatched").apply(plan)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            torch.manual_seed(100 * seed + len(name))
            losses = []
            for step in range(8):
                optimizer.zero_grad()
                losses += train_on(model, [make_batch(kind, 4, seed=step)])
                optimizer.step()
            curves[name].append(statistics.mean(losses))
    plain, ours = curves["plain"], curves["nanobatched"]
    assert statistics.stdev(ours) > 0  # dropout was on
    deviation = math.sqrt((statistics.variance(plain) + statistics.variance(ours)) / 12)
    assert abs(statistics.mean(plain) - statistics.mean(ours)) < 3 * deviation


def test_replayed_draws_repeat_and_leave_no_trace() -> None:
    torch.manual_seed(0)
    state = RandomState.capture(torch.device("cpu"))
    first = torch.rand(3)
    after = torch.get_rng_state()
    with replayed(state):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), after)
    with replayed(None):
        assert not torch.equal(torch.rand(3), first)


def test_ranks_draw_their_own_and_stay_in_step() -> None:
    draws, states = [], []
    for rank in (0, 1, 0):
        torch.manual_seed(0)
        with seeded_per_rank(rank, torch.device("cpu")):
            draws.append(torch.rand(4))
        states.append(torch.get_rng_state())
        with seeded_per_rank(rank, torch.device("cpu")):
            assert not torch.equal(torch.rand(4), draws[-1])
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])
    assert torch.equal(states[0], states[1])
