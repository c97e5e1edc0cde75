"""The contract of every backend that a machine with GPUs has, and the loop-back kernel of the benchmarks."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from distributed_helpers import run_checks
from gpu_cases import NEEDS_GPU, ON_GPU

from energy_lightning.collectives import Collectives, available_collectives, select_collectives

import gpu_loopback  # isort: skip - gpu_cases shows the way to it
from collectives_contract import CONTRACT  # isort: skip

BACKEND = "cpu:gloo,cuda:nccl"
ALONE = ("nccl", "nccl_capped", "nccl4py")  # what a single rank can use, too


def _make(name: str, group: dist.ProcessGroup) -> Collectives:
    made = select_collectives(name, group, device=torch.device("cuda", dist.get_rank()))
    expected = "nccl" if name == "nccl" else name
    assert expected in made.name, f"{name} fell back to {made.name}"
    return made


def checks_of(names: list[str]) -> dict[str, partial[None]]:
    return {
        f"{name}: {what}": partial(check, partial(_make, name), "cuda")
        for name in names
        for what, check in CONTRACT.items()
    }


def usable() -> list[str]:
    return [choice.name for choice in available_collectives() if choice.usable and choice.name != "gloo"]


@pytest.mark.gpu
@NEEDS_GPU
def test_one_process_keeps_the_contract() -> None:
    checks = checks_of([name for name in usable() if name in ALONE])
    assert run_checks(checks, num_processes=1, backend=BACKEND) == {}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs: NCCL refuses two ranks on one")
def test_two_processes_keep_the_contract() -> None:
    assert run_checks(checks_of(usable()), num_processes=2, backend=BACKEND) == {}


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("numel", [1, 4095, 4096, 100_001])
def test_the_loopback_keeps_every_value(device: str, dtype: torch.dtype, numel: int) -> None:
    collectives = gpu_loopback.loopback(torch.device(device, 0) if device == "cuda" else torch.device(device))
    tensor = torch.arange(numel, device=device).remainder(97).to(dtype)
    expected = tensor.clone()
    for sm_count in (1, 3, None):
        handle = collectives.all_reduce(tensor, sm_count=sm_count)
        assert torch.equal(handle.wait(), expected)
        if collectives.supports_sm_count:
            assert handle.granted_sm_count == (sm_count or gpu_loopback.DEFAULT_SM_COUNT)


@pytest.mark.gpu
@NEEDS_GPU
def test_the_loopback_takes_longer_on_fewer_sms() -> None:
    import gpu_common

    device = torch.device("cuda", 0)
    collectives = gpu_loopback.loopback(device)
    if not collectives.supports_sm_count:
        pytest.skip("Triton is missing: the loop-back takes no SM count")
    tensor = torch.zeros(32 * 2**20, dtype=torch.bfloat16, device=device)
    times_s = [
        gpu_common.times_of(
            lambda asked=sm_count: collectives.all_reduce(tensor, sm_count=asked).wait(), device, repeats=5
        ).median_s
        for sm_count in (1, 4, 16)
    ]
    assert times_s[0] > 2.0 * times_s[1] > 2.0 * times_s[2]
