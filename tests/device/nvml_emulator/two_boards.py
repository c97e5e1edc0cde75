"""A machine of a whole and a sliced board, and what a refusal of NVML looks like."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest
from manual_clock import ManualClock

from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator

UUIDS = ("GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-bbbbbbbb-0000-0000-0000-000000000002")
SLICES = ("MIG-11111111-0000-0000-0000-000000000001", "MIG-22222222-0000-0000-0000-000000000002")
WHOLE = EmulatedBoard(uuid=UUIDS[0], serial="1234", pci_bus_id="00000000:3B:00.0", counter_j=7.5)
SLICED = EmulatedBoard(gpu="h100-sxm", uuid=UUIDS[1], mig_uuids=SLICES)


def one(clock: ManualClock, board: EmulatedBoard) -> NvmlEmulator:
    return NvmlEmulator([board], now_s=clock)


def handle(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def refuses(code: str, function: Any, *arguments: Any) -> None:
    with pytest.raises(pynvml.NVMLError) as caught:
        function(*arguments)
    assert caught.value.value == getattr(pynvml, f"NVML_ERROR_{code}")
