"""Power of a GPU that waits for its peers (P2P-blocking power), measured once a GPU and kept.

A rank that waits in a send, receive or collective runs a kernel of a few blocks that reads one flag again and again:
the SM clock stays up, a few SMs issue, memory and matrix units rest. One GPU alone can do just that: here a kernel of
one block counts clock cycles (torch.cuda._sleep) while the energy counter runs. A real transfer kernel spins with more
blocks, so this is a lower bound, nearer to it than the static power. Pipeline plans price waiting with it
(instruction energy less blocking power x time; Perseus, SOSP 2024, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energy_lightning.device.blocking_cache import load_blocking_power_w, save_blocking_power_w
from energy_lightning.measure.meter import EnergyMeter
from energy_lightning.types import MeasurementError

if TYPE_CHECKING:
    from energy_lightning.device import Device

WARM_UP_S = 0.5
WINDOW_S = 2.0
MIN_REFRESHES = 20
_PIECE_S = 0.1  # of one kernel: many seconds in one would block everything else on the GPU


def blocking_power_w(device: Device, state_dir: Path, *, spin: Callable[[float], None] | None = None) -> float:
    """Power in W while blocked on a peer: as kept in `state_dir` for this GPU, else measured (3 s) and kept.

    Args:
        device: a GPU that nothing else runs on now.
        state_dir: where measurements of this machine's GPUs are kept.
        spin: keeps the GPU waiting for a time in s, returns at once; None: on torch's current CUDA device.

    Raises:
        MeasurementError: no GPU to spin on, no energy reading, or one that other slices of the GPU share (MIG).
    """
    if device.uuid is None:
        return device.blocking_power_w
    if getattr(device, "is_mig", False):
        raise MeasurementError(f"{device.name}: the energy is shared with the GPU's other slices; measure a whole GPU")
    known_w = load_blocking_power_w(state_dir, device.uuid)
    if known_w is not None:
        return known_w
    power_w = _measure_w(device, _spin_on_cuda(device) if spin is None else spin)
    save_blocking_power_w(state_dir, device.uuid, power_w, gpu=device.name)
    return power_w


def _measure_w(device: Device, spin: Callable[[float], None]) -> float:
    refresh_s = device.counter_refresh_s
    window_s = max(WINDOW_S, MIN_REFRESHES * refresh_s)
    meter = EnergyMeter(device, refresh_s=refresh_s)
    try:
        spin(WARM_UP_S + window_s + WARM_UP_S)
        device.idle(WARM_UP_S)
        meter.start()
        device.idle(window_s)
        reading = meter.stop()
        device.synchronize()
    finally:
        meter.close()
    if reading.power_w is None:
        raise MeasurementError(f"the blocking power of {device.name} cannot be measured: {reading.invalid_reason}")
    return reading.power_w


def _spin_on_cuda(device: Device) -> Callable[[float], None]:
    import torch

    if not torch.cuda.is_available():
        raise MeasurementError(
            f"torch sees no CUDA GPU to wait on; {device.name} keeps {device.blocking_power_w:g} W as blocking power"
        )
    sleep: Any = torch.cuda._sleep  # counts cycles of the SM clock on one thread
    highest_mhz = max((*device.frequencies_mhz, device.frequency_mhz()))

    def spin(time_s: float) -> None:
        with torch.cuda.device(getattr(device, "cuda_index", None)):
            for _ in range(math.ceil(time_s / _PIECE_S)):
                sleep(int(_PIECE_S * highest_mhz * 1e6))

    return spin
