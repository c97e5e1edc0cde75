"""What every backend must do, whatever runs it. Expected values are worked out from the ranks alone.

Each check is called with `make` (group -> Collectives), the device of the tensors and the group; ranks 0 .. size - 1
hold (rank + 1) times a pattern of small whole numbers, so that sums are exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.collectives import Collectives, CollectivesError

Make = Callable[[dist.ProcessGroup], Collectives]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.float64, torch.int64, torch.int32)
SIZES = (1, 3, 8, 255, 5001)


def pattern(numel: int, dtype: torch.dtype, device: str, *, times: int = 1, start: int = 0) -> Tensor:
    return ((torch.arange(start, start + numel) % 5) * times).to(device, dtype)


def check_sums(make: Make, device: str, group: dist.ProcessGroup) -> None:
    collectives = make(group)
    factor = sum(rank + 1 for rank in range(collectives.size))
    for dtype in DTYPES:
        for numel in SIZES:
            tensor = pattern(numel, dtype, device, times=collectives.rank + 1)
            handle = collectives.all_reduce(tensor)
            assert handle.wait() is tensor
            assert torch.equal(tensor, pattern(numel, dtype, device, times=factor)), (dtype, numel)
            assert torch.equal(handle.wait(), pattern(numel, dtype, device, times=factor)), "a second wait sums again"
    collectives.close()


def check_sums_of_parts_of_a_tensor(make: Make, device: str, group: dist.ProcessGroup) -> None:
    """Any address, and nothing beside the part is touched."""
    collectives = make(group)
    factor = sum(rank + 1 for rank in range(collectives.size))
    for dtype in FLOATS:
        for start in (1, 2, 8):
            for numel in (5, 2003):
                whole = torch.full((start + numel + 9,), -1.0, dtype=dtype, device=device)
                part = whole[start : start + numel]
                part.copy_(pattern(numel, dtype, device, times=collectives.rank + 1))
                collectives.all_reduce(part.view(-1)).wait()
                assert torch.equal(part, pattern(numel, dtype, device, times=factor)), (dtype, start, numel)
                assert (whole[:start] == -1).all()
                assert (whole[start + numel :] == -1).all()
    collectives.close()


def check_parts_that_lie_differently_on_each_rank(make: Make, device: str, group: dist.ProcessGroup) -> None:
    collectives = make(group)
    factor = sum(rank + 1 for rank in range(collectives.size))
    for dtype in FLOATS:
        for numel in (64, 2003, 40_001):
            start = 8 if collectives.rank else 1  # aligned on all ranks but the first
            part = torch.zeros(start + numel, dtype=dtype, device=device)[start:]
            part.copy_(pattern(numel, dtype, device, times=collectives.rank + 1))
            gathered = collectives.all_gather(part).wait()
            own = [pattern(numel, dtype, device, times=rank + 1) for rank in range(collectives.size)]
            assert torch.equal(gathered, torch.cat(own)), (dtype, numel)
            collectives.all_reduce(part).wait()
            assert torch.equal(part, pattern(numel, dtype, device, times=factor)), (dtype, numel)
    collectives.close()


def check_means(make: Make, device: str, group: dist.ProcessGroup) -> None:
    collectives = make(group)
    size, rank = collectives.size, collectives.rank
    for dtype in FLOATS:
        handle = collectives.all_reduce(torch.full((3, 5), 4.0 * rank, dtype=dtype, device=device), average=True)
        assert (handle.wait() == 4.0 * sum(range(size)) / size).all()
        assert (handle.wait() == 4.0 * sum(range(size)) / size).all(), "a second wait divides again"
        scattered = collectives.reduce_scatter(
            torch.full((size, 6), 4.0 * rank, dtype=dtype, device=device), average=True
        )
        assert (scattered.wait() == 4.0 * sum(range(size)) / size).all()
    with pytest.raises(CollectivesError, match=r"a mean is not a torch\.int64"):
        collectives.all_reduce(torch.ones(2, dtype=torch.int64, device=device), average=True)
    collectives.close()


def check_gathers(make: Make, device: str, group: dist.ProcessGroup) -> None:
    collectives = make(group)
    for dtype in DTYPES:
        for rows, columns in ((1, 1), (2, 3), (5, 1001)):
            own = pattern(rows * columns, dtype, device, times=collectives.rank + 1).view(rows, columns)
            gathered = collectives.all_gather(own).wait()
            expected = torch.cat(
                [
                    pattern(rows * columns, dtype, device, times=r + 1).view(rows, columns)
                    for r in range(collectives.size)
                ]
            )
            assert torch.equal(gathered, expected), (dtype, rows, columns)
    part = pattern(12, torch.float16, device)[1:]
    assert torch.equal(collectives.all_gather(part).wait(), part.repeat(collectives.size))
    collectives.close()


def check_scattered_sums(make: Make, device: str, group: dist.ProcessGroup) -> None:
    collectives = make(group)
    size, rank = collectives.size, collectives.rank
    factor = sum(r + 1 for r in range(size))
    for dtype in DTYPES:
        for rows in (1, 500):
            whole = pattern(size * rows * 2, dtype, device, times=rank + 1).view(size * rows, 2)
            before = whole.clone()
            block = collectives.reduce_scatter(whole).wait()
            expected = pattern(rows * 2, dtype, device, times=factor, start=rank * rows * 2).view(rows, 2)
            assert torch.equal(block, expected), (dtype, rows)
            assert torch.equal(whole, before)
    if size > 1:
        with pytest.raises(CollectivesError, match=rf"over {size} ranks, got shape \(1,\)"):
            collectives.reduce_scatter(torch.zeros(1, device=device))
    collectives.close()


def check_nothing_at_all(make: Make, device: str, group: dist.ProcessGroup) -> None:
    collectives = make(group)
    empty = torch.empty(0, 3, device=device)
    assert collectives.all_reduce(empty, average=True, sm_count=2).wait() is empty
    assert collectives.all_gather(empty).wait().shape == (0, 3)
    assert collectives.reduce_scatter(empty).wait().shape == (0, 3)
    collectives.close()


def check_refusals(make: Make, device: str, group: dist.ProcessGroup) -> None:
    collectives = make(group)
    strided = torch.zeros(2, 3, device=device).t()
    for call in (collectives.all_reduce, collectives.all_gather):
        with pytest.raises(CollectivesError, match="contiguous"):
            call(strided)
    with pytest.raises(CollectivesError, match=r"at least 1, or None .*got 0"):
        collectives.all_reduce(torch.zeros(2, device=device), sm_count=0)
    with pytest.raises(CollectivesError, match=r"reshape it to \(1,\)"):
        collectives.all_gather(torch.tensor(1.0, device=device))
    collectives.close()


def check_sm_counts(make: Make, device: str, group: dist.ProcessGroup) -> None:
    """What is asked is kept; a backend that honours counts grants an ordinary one, and never more than asked."""
    collectives = make(group)
    factor = sum(rank + 1 for rank in range(collectives.size))
    for count in (4, 1, 16, 4, 1000):
        tensor = pattern(300, torch.float32, device, times=collectives.rank + 1)
        handle = collectives.all_reduce(tensor, sm_count=count, block_threads=512)
        assert torch.equal(handle.wait(), pattern(300, torch.float32, device, times=factor))
        assert handle.asked_sm_count == count
        if not collectives.supports_sm_count:
            assert handle.granted_sm_count is None
        else:
            assert handle.granted_sm_count is not None
            assert handle.granted_sm_count == count or (count == 1000 and 1 <= handle.granted_sm_count < 1000)
    differences = collectives.grants.differences()
    if collectives.supports_sm_count:
        assert len(differences) == 1
        assert "asked for 1000 SMs" in differences[0]
    else:  # a CPU has no SMs, so nothing is missing there
        assert len(differences) == (4 if device.startswith("cuda") else 0)
    collectives.close()


def check_several_at_once(make: Make, device: str, group: dist.ProcessGroup) -> None:
    """Results do not depend on the order of the waits, nor on what happens to other tensors in between."""
    collectives = make(group)
    factor = sum(rank + 1 for rank in range(collectives.size))
    tensors = [pattern(999, torch.float32, device, times=collectives.rank + 1) for _ in range(4)]
    handles = [collectives.all_reduce(tensor, sm_count=1 + index) for index, tensor in enumerate(tensors)]
    torch.zeros(1000, device=device).add_(1)
    for handle in reversed(handles):
        assert torch.equal(handle.wait(), pattern(999, torch.float32, device, times=factor))
    collectives.all_reduce(torch.ones(99, device=device))  # nobody waits
    collectives.close()


def check_closing(make: Make, device: str, group: dist.ProcessGroup) -> None:
    """Twice, and the group itself still works; so does a second backend made for it."""
    for _ in range(2):
        collectives = make(group)
        collectives.all_reduce(torch.ones(3, device=device), sm_count=2).wait()
        collectives.close()
        collectives.close()
        collectives.close(in_step=False)
    alive = torch.ones(1)
    dist.all_reduce(alive, group=group)
    assert alive.item() == collectives.size


def check_sharing_a_stream(make: Make, device: str, group: dist.ProcessGroup) -> None:
    """Two backends for the same ranks, calls interleaved."""
    first, second = make(group), make(group)
    for _ in range(3):
        a, b = torch.ones(5, device=device), torch.full((5,), 2.0, device=device)
        handles = first.all_reduce(a, sm_count=2), second.all_reduce(b, sm_count=3)
        assert (handles[1].wait() == 2 * first.size).all()
        assert (handles[0].wait() == first.size).all()
    first.close()
    second.close()


CONTRACT = {
    name.removeprefix("check_").replace("_", " "): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
