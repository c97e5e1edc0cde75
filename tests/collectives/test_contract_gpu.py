"""The contract on GPUs, for every backend that the machine has: two ranks where there are two GPUs, else one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from collectives_contract import CONTRACT, Make
from distributed_helpers import run_checks

from energy_lightning.collectives import Collectives, CommunicationStreams, available_collectives, select_collectives
from energy_lightning.collectives.streams import CudaCommunicationStream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a CUDA build of torch"),
]
NUM_RANKS = min(2, torch.cuda.device_count()) if torch.cuda.is_available() else 1
NAMES = ("mscclpp", "nccl4py", "nccl_capped", "nccl")


def on_gpu(check: Make, name: str, group: dist.ProcessGroup) -> None:
    """A check with a group on nccl; it fails if another backend steps in."""
    torch.cuda.set_device(dist.get_rank())
    members = dist.new_group(dist.get_process_group_ranks(group), backend="nccl")
    assert isinstance(members, dist.ProcessGroup)
    device = torch.device("cuda", dist.get_rank())

    def make(ranks: dist.ProcessGroup) -> Collectives:
        made = select_collectives(name, members, device=device)
        assert made.name == name, f"{made.name} stepped in for {name}"
        return made

    check(make, str(device), group)  # type: ignore[call-arg, arg-type]


@pytest.fixture(scope="module", params=NAMES)
def failures(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    name: str = request.param
    found = next(choice for choice in available_collectives() if choice.name == name)
    if not found.usable:
        pytest.skip(f"{name}: {'; '.join(found.reasons)}")
    if name == "mscclpp" and NUM_RANKS < 2:
        pytest.skip("MSCCL++ needs two GPUs")
    checks = {check: partial(on_gpu, CONTRACT[check], name) for check in CONTRACT}
    return name, run_checks(checks, num_processes=NUM_RANKS)  # type: ignore[arg-type]


@pytest.mark.distributed
@pytest.mark.parametrize("check", CONTRACT)
def test_contract(check: str, failures: tuple[str, dict[str, str]]) -> None:
    name, failed = failures
    assert check not in failed, f"{name}: {failed[check]}"


def test_collectives_stream_does_not_hold_up_compute_nor_the_host() -> None:
    """A long kernel on the communication stream: compute issued after its launch point is done first."""
    device = torch.device("cuda", 0)
    stream = CommunicationStreams().of(device)
    assert isinstance(stream, CudaCommunicationStream)
    source = torch.ones(1000, device=device)
    with stream.beside_compute():
        torch.cuda._sleep(200_000_000)  # about 0.1 s of GPU cycles
        result = source * 2
    mark = stream.mark((source, result))
    beside = source * 3
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    done.synchronize()
    assert not mark.event.query(), "compute waited for the communication stream"
    stream.join(mark)
    assert torch.equal(result + beside, source * 5)
