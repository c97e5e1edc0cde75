"""Process-group collectives against sums worked out by hand, on two gloo processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from distributed_helpers import run_checks

from energy_lightning.collectives import CollectivesError, ProcessGroupCollectives


def check_sum_in_place(group: dist.ProcessGroup) -> None:
    collectives = ProcessGroupCollectives(group)
    tensor = torch.tensor([1.0, 2.0]) * (collectives.rank + 1)
    handle = collectives.all_reduce(tensor, sm_count=4)
    assert handle.wait() is tensor
    assert tensor.tolist() == [3.0, 6.0]
    assert handle.wait().tolist() == [3.0, 6.0]  # a second wait does not sum again
    assert (handle.asked_sm_count, handle.granted_sm_count) == (4, None)


def check_average(group: dist.ProcessGroup) -> None:
    collectives = ProcessGroupCollectives(group)
    handle = collectives.all_reduce(torch.tensor([4.0 * collectives.rank]), average=True)
    assert handle.wait().tolist() == [2.0]
    assert handle.wait().tolist() == [2.0]


def check_gather(group: dist.ProcessGroup) -> None:
    collectives = ProcessGroupCollectives(group)
    rows = torch.full((2, 3), float(collectives.rank))
    assert collectives.all_gather(rows).wait()[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]


def check_reduce_scatter(group: dist.ProcessGroup) -> None:
    collectives = ProcessGroupCollectives(group)
    rank = collectives.rank
    whole = torch.arange(4.0) + 10 * rank  # [0..3] and [10..13]; the sum is [10, 12, 14, 16]
    assert collectives.reduce_scatter(whole).wait().tolist() == [[10.0, 12.0], [14.0, 16.0]][rank]
    assert collectives.reduce_scatter(whole, average=True).wait().tolist() == [[5.0, 6.0], [7.0, 8.0]][rank]
    with pytest.raises(CollectivesError, match=r"over 2 ranks, got shape \(3,\)"):
        collectives.reduce_scatter(torch.zeros(3))


def check_half_precision(group: dist.ProcessGroup) -> None:
    collectives = ProcessGroupCollectives(group)
    for dtype in (torch.bfloat16, torch.float16):
        assert collectives.all_reduce(torch.ones(2, dtype=dtype)).wait().tolist() == [2.0, 2.0]


def check_strided_tensor_is_refused(group: dist.ProcessGroup) -> None:
    with pytest.raises(CollectivesError, match="contiguous"):
        ProcessGroupCollectives(group).all_reduce(torch.zeros(2, 3).t())


CHECKS = {
    "sum in place": check_sum_in_place,
    "average": check_average,
    "gather": check_gather,
    "reduce scatter": check_reduce_scatter,
    "half precision": check_half_precision,
    "strided tensor": check_strided_tensor_is_refused,
}


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    return run_checks(CHECKS, num_processes=2)


@pytest.mark.distributed
@pytest.mark.parametrize("name", CHECKS)
def test_on_two_processes(name: str, failures: dict[str, str]) -> None:
    assert name not in failures, failures[name]


def test_without_a_process_group_the_error_says_what_to_call() -> None:
    with pytest.raises(CollectivesError, match="init_process_group"):
        ProcessGroupCollectives()
