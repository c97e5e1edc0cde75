"""Every backend on ranks 1 and 2 of three gloo processes. GPU libraries run as stand-ins over gloo.

What their stand-ins do not show (kernels, real streams) is for tests/gpu.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import fake_mscclpp
import fake_nccl4py
import pytest
import torch
import torch.distributed as dist
from collectives_contract import CONTRACT, Make
from distributed_helpers import Check, run_checks
from selection_checks import SELECTION

from energy_lightning.collectives import Collectives, CollectivesError, ProcessGroupCollectives
from energy_lightning.collectives.capped import CappedIssuer
from energy_lightning.collectives.issuing import IssuedCollectives
from energy_lightning.collectives.mscclpp_issuer import MscclppIssuer
from energy_lightning.collectives.nccl_per_call import NcclPerCallIssuer
from energy_lightning.collectives.process_group import ProcessGroupIssuer

SCRATCH_BYTES = 4096  # small, so that most tensors of the contract are cut
CPU = torch.device("cpu")


def make_gloo(group: dist.ProcessGroup) -> Collectives:
    return ProcessGroupCollectives(group)


def make_mscclpp(group: dist.ProcessGroup) -> Collectives:
    others = ProcessGroupIssuer(group)
    library = fake_mscclpp.library(group)
    return IssuedCollectives(MscclppIssuer(group, library=library, others=others, scratch_bytes=SCRATCH_BYTES))


def make_nccl4py(group: dist.ProcessGroup) -> Collectives:
    library = fake_nccl4py.library(group)
    return IssuedCollectives(NcclPerCallIssuer(group, CPU, library=library, error=fake_nccl4py.NCCLError))


def gloo_backend(store: dist.Store, rank: int, size: int, sm_count: int) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=30))


def make_capped(group: dist.ProcessGroup) -> Collectives:
    return IssuedCollectives(CappedIssuer(group, make_backend=gloo_backend))


MAKERS: dict[str, Make] = {
    "gloo": make_gloo,
    "mscclpp": make_mscclpp,
    "nccl4py": make_nccl4py,
    "nccl_capped": make_capped,
}


# beyond the contract: what each library is called with


def check_mscclpp_calls(group: dist.ProcessGroup) -> None:
    library = fake_mscclpp.library(group)
    issuer = MscclppIssuer(group, library=library, others=ProcessGroupIssuer(group), scratch_bytes=2**20)
    collectives = IssuedCollectives(issuer)
    rsag, fullmesh = "default_allreduce_rsag", "default_allgather_fullmesh"
    collectives.all_reduce(torch.ones(64), sm_count=7, block_threads=500).wait()  # 480: whole warps
    collectives.all_reduce(torch.ones(63, dtype=torch.bfloat16), sm_count=99, block_threads=4096).wait()
    collectives.all_reduce(torch.ones(64)).wait()
    collectives.all_gather(torch.ones(64, dtype=torch.float64), sm_count=60).wait()
    collectives.all_gather(torch.ones(3, dtype=torch.uint8)).wait()
    assert library.calls == [
        (rsag, 256, 256, "float32", 7, 480, 0),
        (rsag, 128, 128, "bfloat16", 64, 1024, 0),  # 126 bytes and padding
        (rsag, 256, 256, "float32", 0, 0, 0),
        (fullmesh, 512, 1024, "uint8", 56, 1024, 0),
        (fullmesh, 16, 32, "uint8", 0, 0, 0),
    ]
    for numel, dtype in ((10, torch.float64), (10, torch.int64)):
        assert collectives.all_reduce(torch.ones(numel, dtype=dtype), sm_count=3).granted_sm_count is None
    assert collectives.reduce_scatter(torch.ones(2), sm_count=3).granted_sm_count is None
    assert len(library.calls) == 5, "these go through the other backend"
    big = torch.ones(2**20 // 4 + 2**15 + 1)  # scratch, half a scratch and one element
    collectives.all_reduce(big).wait()
    assert [call[1] for call in library.calls[5:]] == [2**20, 2**17, 32]
    collectives.close()
    assert all(algorithm.freed for algorithm in library.algorithms if algorithm.name in (rsag, fullmesh))
    collectives.close()
    assert library.builder_resets == 1


def check_mscclpp_failure(group: dist.ProcessGroup) -> None:
    library = fake_mscclpp.library(group)
    collectives = IssuedCollectives(MscclppIssuer(group, library=library, others=ProcessGroupIssuer(group)))
    for algorithm in library.algorithms:
        algorithm.failing_with = 3
    with pytest.raises(
        CollectivesError,
        match=r"code 3 in default_allreduce_rsag: 256 bytes of .*float32, 5 blocks .*collectives='nccl",
    ):
        collectives.all_reduce(torch.ones(64), sm_count=5)
    with pytest.raises(CollectivesError, match="finds 1 of 2 ranks on this node"):
        MscclppIssuer(group, library=fake_mscclpp.library(group, ranks_per_node=1), others=ProcessGroupIssuer(group))
    with pytest.raises(CollectivesError, match=r"no algorithm 'default_allreduce_rsag'; it has: .*nvls_packet"):
        MscclppIssuer(
            group, library=fake_mscclpp.library(group, names=("nvls_packet",)), others=ProcessGroupIssuer(group)
        )


def check_nccl4py_calls(group: dist.ProcessGroup) -> None:
    library = fake_nccl4py.library(group)
    collectives = IssuedCollectives(NcclPerCallIssuer(group, CPU, library=library, error=fake_nccl4py.NCCLError))
    tensor = torch.ones(4)
    assert collectives.all_reduce(tensor, sm_count=6).granted_sm_count == 6
    assert collectives.all_reduce(tensor, sm_count=99).granted_sm_count == 32
    assert collectives.all_gather(tensor).granted_sm_count is None
    collectives.reduce_scatter(tensor, sm_count=2).wait()
    config = fake_nccl4py.NCCLCollConfig
    expected = [config(min_ctas=n, max_ctas=n) if n else None for n in (6, 32, None, 2)]
    assert [keywords["config"] for _, _, keywords in library.calls[1:]] == expected
    assert [name for name, _, _ in library.calls] == ["init", "allreduce", "allreduce", "allgather", "reduce_scatter"]
    for failure in (fake_nccl4py.NCCLError("unhandled cuda error"), fake_nccl4py.NcclInvalid("wrong device")):
        library.failing = failure
        with pytest.raises(
            CollectivesError, match=rf"all_reduce of 4 x torch.float32 with 2 SMs: {failure}.*nccl_capp"
        ):
            collectives.all_reduce(tensor, sm_count=2)
    communicator = library.communicator
    collectives.close()
    assert communicator.state == "finalized, destroyed"
    other = NcclPerCallIssuer(group, CPU, library=library, error=fake_nccl4py.NCCLError, overruled_sm_count=8)
    assert other.grant("all_reduce", tensor, 4) == 8
    other.close(in_step=False)
    assert library.communicator.state == "aborted"


def check_capped_communicators(group: dist.ProcessGroup) -> None:
    made: list[int] = []

    def make_backend(store: dist.Store, rank: int, size: int, sm_count: int) -> Any:
        made.append(sm_count)
        return gloo_backend(store, rank, size, sm_count)

    collectives = IssuedCollectives(CappedIssuer(group, make_backend=make_backend, max_communicators=3))
    wishes = (None, 8, 2, 8, 20, 40, 5, 6, 3)
    granted = [collectives.all_reduce(torch.ones(1), sm_count=wish).granted_sm_count for wish in wishes]
    # 40 is more than NCCL has; then there are three communicators: 5 is as near to 2 as to 8, 6 is nearer to 8
    assert granted == [None, 8, 2, 8, 20, 20, 2, 8, 2]
    assert made == [8, 2, 20]
    collectives.close()
    overruled = CappedIssuer(group, overruled_sm_count=4)
    assert overruled.grant("all_reduce", torch.ones(1), 16) == 4


def on_ranks_1_and_2(check: Check, group: dist.ProcessGroup) -> None:
    """Rank 0 of the job is not in the group and has nothing to do."""
    members = dist.new_group([1, 2], timeout=timedelta(seconds=30))
    if dist.get_rank() in (1, 2):
        assert isinstance(members, dist.ProcessGroup)
        check(members)


ON_TWO: dict[str, Check] = {
    "mscclpp: calls": check_mscclpp_calls,
    "mscclpp: failure": check_mscclpp_failure,
    "nccl4py: calls": check_nccl4py_calls,
    "nccl_capped: communicators": check_capped_communicators,
}
for kind, maker in MAKERS.items():
    ON_TWO |= {f"{kind}: {name}": partial(check, maker, "cpu") for name, check in CONTRACT.items()}
CHECKS: dict[str, Check] = {name: partial(on_ranks_1_and_2, check) for name, check in ON_TWO.items()}
CHECKS |= {f"selection: {name}": check for name, check in SELECTION.items()}


@pytest.fixture(scope="module")
def failures(quick_python: str) -> dict[str, str]:
    return run_checks(CHECKS, num_processes=3, python=quick_python)


@pytest.mark.distributed
@pytest.mark.parametrize("name", CHECKS)
def test_on_processes(name: str, failures: dict[str, str]) -> None:
    assert name not in failures, failures[name]


def test_without_a_process_group_the_error_says_what_to_call() -> None:
    with pytest.raises(CollectivesError, match="init_process_group"):
        ProcessGroupCollectives()
