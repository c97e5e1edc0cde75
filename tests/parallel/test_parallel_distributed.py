"""Gradient reduction and clipping on two gloo processes against one process that sees everything."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from distributed_helpers import run_checks
from torch import Tensor, nn

from energy_lightning.collectives import ProcessGroupCollectives
from energy_lightning.parallel.batches import check_same_batch
from energy_lightning.parallel.clipping import clip_grad_norm, total_grad_norm
from energy_lightning.parallel.reducer import HELD_BACK, GradientReducer, broadcast_module
from energy_lightning.partition.sharding import Shard
from energy_lightning.types import Schedule, StrategyError


class Branching(nn.Module):
    """A branch that only some ranks take, and a layer that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.unused, self.last = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, inputs: Tensor, *, branch: bool) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        if branch:
            hidden = hidden + self.branch(hidden)
        return self.last(hidden).square().mean()


def reducer_for(module: nn.Module, group: dist.ProcessGroup) -> GradientReducer:
    collectives = ProcessGroupCollectives(group)
    return GradientReducer(module.parameters(), collectives=collectives, bucket_cap_bytes=300)


def check_means(group: dist.ProcessGroup, *, schedule: Schedule, set_to_none: bool) -> None:
    """Four steps of two microbatches; rank 1 takes the branch in all of them but the third."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    module = Branching()
    broadcast_module(module)
    reference = copy.deepcopy(module)
    reducer = reducer_for(module, group)
    reducer.schedule = schedule
    assert len(reducer.buckets) >= 4
    generator = torch.Generator().manual_seed(3)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, reference)]
    for step in range(4):
        for microbatch in range(2):
            inputs = torch.randn(2, 4, 8, generator=generator)
            loss = module(inputs[rank], branch=rank == 1 and step != 2)
            if microbatch == 1:
                reducer.prepare(loss)
            loss.backward()
            mean = sum(reference(inputs[r], branch=r == 1 and step != 2) for r in range(2)) / 2
            mean.backward()
        for (name, parameter), expected in zip(module.named_parameters(), reference.parameters(), strict=True):
            assert (parameter.grad is None) == (expected.grad is None), (name, step)
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-5, atol=1e-6)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)


def check_a_layer_thawed_later_is_reduced(group: dist.ProcessGroup) -> None:
    rank = dist.get_rank()
    module = Branching()
    broadcast_module(module)
    module.first.requires_grad_(False)
    reducer = reducer_for(module, group)
    module.first.requires_grad_(True)
    inputs = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    reference = copy.deepcopy(module)
    loss = module(inputs[rank], branch=False)
    reducer.prepare(loss)
    loss.backward()
    (sum(reference(inputs[r], branch=False) for r in range(2)) / 2).backward()
    torch.testing.assert_close(module.first.weight.grad, reference.first.weight.grad, rtol=1e-5, atol=1e-7)


def check_reentrant_checkpointing_is_refused(group: dist.ProcessGroup) -> None:
    """A layer used in two reentrant segments gets its gradient in two parts, the second after it was reduced."""
    layer = nn.Linear(8, 8)
    reducer = reducer_for(layer, group)
    inputs = torch.randn(4, 8, requires_grad=True)
    hidden = torch.utils.checkpoint.checkpoint(layer, inputs, use_reentrant=True)
    loss = torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=True).sum()
    reducer.prepare(loss)
    with pytest.raises(StrategyError, match="use_reentrant=False"):
        loss.backward()


def check_norm_over_shards(group: dist.ProcessGroup, *, norm_type: float) -> None:
    """A (6, 4) matrix in two shards beside a replicated vector: norm and clipped gradients of the whole."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(2)
    whole, vector = torch.randn(6, 4, generator=generator), torch.randn(5, generator=generator)
    shard, replicated = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(5))
    shard.tensor_parallel_shard = Shard(0)  # type: ignore[attr-defined]
    shard.grad, replicated.grad = whole.chunk(2)[rank].clone(), vector.clone()
    expected = torch.cat([whole.flatten(), vector]).norm(norm_type)
    torch.testing.assert_close(total_grad_norm([shard, replicated], group=group, norm_type=norm_type), expected)
    clip_grad_norm([shard, replicated, nn.Parameter(torch.zeros(1))], 0.5, group=group, norm_type=norm_type)
    torch.testing.assert_close(shard.grad, whole.chunk(2)[rank] * 0.5 / expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(replicated.grad, vector * 0.5 / expected, rtol=1e-4, atol=1e-6)


def check_batches_of_peers(group: dist.ProcessGroup) -> None:
    same = {"input_ids": torch.arange(6).reshape(2, 3)}
    check_same_batch(same, group=group, device=torch.device("cpu"))
    with pytest.raises(StrategyError, match="ranks 0, 1"):
        check_same_batch({"input_ids": same["input_ids"] + dist.get_rank()}, group=group, device=torch.device("cpu"))


CHECKS = {
    "means": partial(check_means, schedule=Schedule(), set_to_none=True),
    "means kept zeros": partial(check_means, schedule=Schedule(sm_count=4), set_to_none=False),
    "means held back": partial(check_means, schedule=Schedule(launch=HELD_BACK), set_to_none=True),
    "thawed": check_a_layer_thawed_later_is_reduced,
    "reentrant": check_reentrant_checkpointing_is_refused,
    "norm 2": partial(check_norm_over_shards, norm_type=2.0),
    "norm 3": partial(check_norm_over_shards, norm_type=3.0),
    "peers": check_batches_of_peers,
}


@pytest.fixture(scope="module")
def failures(quick_python: str) -> dict[str, str]:
    return run_checks(CHECKS, num_processes=2, python=quick_python)


@pytest.mark.distributed
@pytest.mark.parametrize("name", CHECKS)
def test_two_processes(name: str, failures: dict[str, str]) -> None:
    assert not failures.get(name), failures[name]
