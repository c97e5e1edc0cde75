"""The NVIDIA device under a benchmark: the real one, or for a rehearsal an emulated NVML with a busy board."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from energy_lightning.device.guard import HardwareGuard
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator


@contextmanager
def open_gpu(device: torch.device) -> Iterator[NvidiaDevice]:
    """Opened for measuring and setting; given back as it was found."""
    with ExitStack() as stack:
        options = {}
        if device.type != "cuda":
            board = EmulatedBoard(counter_refresh_s=1e-3, clock_lag_s=0.0)
            stack.enter_context(NvmlEmulator([board])).load(0, 1.0)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options["guard"] = stack.enter_context(HardwareGuard(folder))
        gpu = NvidiaDevice(device if device.type == "cuda" else 0, **options)
        stack.callback(gpu.close)
        yield gpu
