import pytest
import torch
from torch import nn

from energy_lightning.parallel.buckets import GradientBucket, make_buckets
from energy_lightning.types import StrategyError


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def test_buckets_keep_the_order_and_the_cap() -> None:
    small, large, tail = parameters(10, 100, 10)
    buckets = make_buckets([small, large, tail], cap_bytes=200)
    assert [bucket.parameters for bucket in buckets] == [(small,), (large,), (tail,)]
    assert [len(bucket) for bucket in make_buckets([small, large, tail], cap_bytes=480)] == [3]


def test_a_bucket_holds_one_dtype() -> None:
    single, double = parameters(4), parameters(4, dtype=torch.float64)
    buckets = make_buckets([single[0], double[0]], cap_bytes=10**6)
    assert sorted(str(bucket.buffer.dtype) for bucket in buckets) == ["torch.float32", "torch.float64"]


def test_mean_over_ranks_becomes_the_gradient_without_a_copy() -> None:
    first, second = parameters(3, 5)
    bucket = GradientBucket([first, second])
    first.grad, second.grad = torch.full((3,), 2.0), torch.arange(5.0)
    bucket.fill()
    bucket.expose()
    assert torch.equal(first.grad, torch.full((3,), 2.0))
    assert torch.equal(second.grad, torch.arange(5.0))
    first.grad.add_(1)
    bucket.fill()  # the gradient lives in the buffer: nothing to copy, nothing lost
    assert torch.equal(bucket.buffer[:3], torch.full((3,), 3.0))


@pytest.mark.parametrize("used_elsewhere", [False, True])
def test_unused_parameter_gets_a_gradient_only_if_another_rank_used_it(used_elsewhere: bool) -> None:
    used, unused = parameters(2, 2)
    bucket = GradientBucket([used, unused])
    used.grad = torch.ones(2)
    bucket.fill()
    other = torch.zeros_like(bucket.buffer)
    if used_elsewhere:
        alone = GradientBucket(parameters(2, 2))
        for parameter in alone.parameters:
            parameter.grad = torch.ones(2)
        alone.fill()
        other = alone.buffer
    bucket.buffer.add_(other).div_(2)
    bucket.expose()
    assert (unused.grad is not None) == used_elsewhere
    if unused.grad is not None:
        assert torch.equal(unused.grad, torch.full((2,), 0.5))


def test_sparse_gradient_is_refused_with_a_remedy() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(StrategyError, match="sparse=False"):
        GradientBucket([embedding.weight]).fill()
