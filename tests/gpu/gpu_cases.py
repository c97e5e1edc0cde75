"""What the tests for GPUs share. Where their code can run without a GPU it does, on a CPU or an emulated NVML."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from energy_lightning.device.guard import HardwareGuard
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator

TESTS = Path(__file__).parents[1]
for _folder in (TESTS / "partition", TESTS / "collectives", TESTS.parent / "benchmarks"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")
REAL, EMULATED = "GPU", "emulated NVML"
ON_GPU = pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])
REAL_GPU = pytest.param(REAL, marks=[pytest.mark.gpu, NEEDS_GPU])


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[NvidiaDevice]:
    """The first GPU, or a busy emulated board; given back afterwards."""
    if kind == REAL:
        gpu = NvidiaDevice(torch.device("cuda", 0))
        try:
            yield gpu
        finally:
            gpu.close()
        return
    with (
        NvmlEmulator([EmulatedBoard(counter_refresh_s=0.02, clock_lag_s=0.01)]) as nvml,
        HardwareGuard(folder) as guard,
    ):
        nvml.load(0, 1.0)
        gpu = NvidiaDevice(0, guard=guard)
        try:
            yield gpu
        finally:
            gpu.close()


def work_for(kind: str, time_s: float) -> None:
    """Matrix products for about this long; the emulated board is busy anyway."""
    end_s = time.perf_counter() + time_s
    if kind == EMULATED:
        time.sleep(time_s)
        return
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    while time.perf_counter() < end_s:
        for _ in range(20):
            a = torch.mm(a, a).clamp_(-1.0, 1.0)
        torch.cuda.synchronize()


def may_set_clocks(kind: str, config: pytest.Config, gpu: NvidiaDevice) -> None:
    """Skip unless the clocks are nobody's, or --allow-clocks was given and the driver permits it."""
    if kind == REAL and not config.getoption("--allow-clocks"):
        pytest.skip("locks clocks: give --allow-clocks")
    if not gpu.can_lock_frequency:
        pytest.skip(f"clocks may not be locked: {gpu.mode_reason}")
