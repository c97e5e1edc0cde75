"""What NVML tells about a product beyond what the GPU models hold: names, architectures, memory clocks.

Memory clocks: the highest that nvidia-smi lists as supported on such a board (NVIDIA data sheets give the same as
bandwidth / bus width / 2); idle memory clocks are left out. Architectures and compute capabilities: CUDA C++
programming guide. Taken 2026-11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL = 5, 6, 7, 8, 9, 10  # nvmlDeviceArchitecture_t


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product line as NVML describes it.

    architecture: nvmlDeviceArchitecture_t. memory_mhz: memory clocks that can be locked. sm_cores: FP32
    cores of one SM. has_mig: it can be sliced, the smallest slice having `slice_sms` SMs (MIG user guide).
    averages_power: nvmlDeviceGetPowerUsage gives the mean over a second (NVML's documentation: Ampere and newer except
    GA100), not the power now.
    """

    architecture: int = AMPERE
    sm_cores: int = 64
    slice_sms: int = 14
    compute_capability: tuple[int, int] = (8, 0)
    memory_mhz: tuple[int, ...] = (1215,)
    has_mig: bool = False
    averages_power: bool = True


def _hopper(memory_mhz: int) -> Product:
    return Product(
        architecture=HOPPER,
        compute_capability=(9, 0),
        memory_mhz=(memory_mhz,),
        sm_cores=128,
        has_mig=True,
        slice_sms=16,
    )


PRODUCTS: Mapping[str, Product] = {
    "a100-sxm4-40gb": Product(has_mig=True, averages_power=False),
    "a100-sxm4-80gb": Product(memory_mhz=(1593,), has_mig=True, averages_power=False),
    "a100-pcie-80gb": Product(memory_mhz=(1512,), has_mig=True, averages_power=False),
    "a40": Product(sm_cores=128, compute_capability=(8, 6), memory_mhz=(7251,)),
    "h100-sxm": _hopper(memory_mhz=2619),
    "h200-sxm": _hopper(memory_mhz=3201),
    "v100": Product(architecture=VOLTA, compute_capability=(7, 0), memory_mhz=(877,), averages_power=False),
    "rtx2080ti": Product(architecture=TURING, compute_capability=(7, 5), memory_mhz=(7000,), averages_power=False),
}
"""Packaged GPU model -> its product."""
