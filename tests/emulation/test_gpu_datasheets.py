"""Packaged GPU models against what their datasheets say, by another route: cores x clock instead of the quoted peak."""

from __future__ import annotations

import pytest

from energy_lightning.emulation import GPU, emulate_phase
from energy_lightning.types import DeviceError, PhasePlan
from energy_lightning.workload import Workload

# SMs, float32 lanes a SM, tensor-core FLOPs a SM and cycle (16-bit inputs, float32 sums), clock it is quoted at (MHz),
# memory bus (bits) and its rate (Gbit/s a pin), memory (GB, as sold), board power (W).
DATASHEETS = {
    "a100-sxm4-40gb": (108, 64, 2048, 1410, 5120, 2.43, 40, 400),
    "a100-sxm4-80gb": (108, 64, 2048, 1410, 5120, 3.19, 80, 400),
    "a100-pcie-80gb": (108, 64, 2048, 1410, 5120, 3.02, 80, 300),
    "a40": (84, 128, 1024, 1740, 384, 14.5, 48, 300),
    "h100-sxm": (132, 128, 4096, 1830, 5120, 5.23, 80, 700),
    "h200-sxm": (132, 128, 4096, 1830, 6144, 6.25, 141, 700),
    "v100": (80, 64, 1024, 1530, 4096, 1.755, 16, 300),
    "rtx2080ti": (68, 64, 512, 1545, 352, 14.0, 11, 250),
}


def test_every_packaged_model_is_in_the_table() -> None:
    assert set(DATASHEETS) == set(GPU.names())


@pytest.mark.parametrize("name", DATASHEETS)
def test_peaks_follow_from_cores_and_clock(name: str) -> None:
    num_sms, lanes, tensor_flops, quoted_mhz, bus_bits, pin_gbit, memory_gb, board_w = DATASHEETS[name]
    gpu = GPU.load(name)
    assert gpu.num_sms == num_sms
    assert gpu.peak_flops_per_s("fp16") == pytest.approx(num_sms * tensor_flops * quoted_mhz * 1e6, rel=0.005)
    assert gpu.peak_flops_per_s("fp32") == pytest.approx(num_sms * lanes * 2 * gpu.max_frequency_mhz * 1e6, rel=0.01)
    assert gpu.memory.bandwidth_bytes_per_s == pytest.approx(bus_bits * pin_gbit * 1e9 / 8, rel=0.01)
    assert memory_gb * 0.99e9 <= gpu.memory_bytes <= memory_gb * 2**30
    assert gpu.power_limit_w == board_w
    assert quoted_mhz in gpu.frequencies_mhz


@pytest.mark.parametrize("name", DATASHEETS)
def test_blocked_power_is_static_power_and_clock_tree(name: str) -> None:
    power = GPU.load(name).power
    assert power.static_w + power.idle_clock_w == pytest.approx(power.blocking_w, rel=0.15)


@pytest.mark.parametrize("name", ["v100", "rtx2080ti"])
def test_gpus_before_ampere_refuse_bf16_and_say_what_they_have(name: str) -> None:
    job = Workload.preset("bert_base", dtype="bf16")
    message = f"{GPU.load(name).display_name} has no bf16 tensor cores.*choose fp16 or fp32"
    with pytest.raises(DeviceError, match=message):
        emulate_phase(job, GPU.load(name), PhasePlan("forward"))
    assert emulate_phase(job.with_sizes(dtype="fp16"), GPU.load(name), PhasePlan("forward")).time_s > 0.0


@pytest.mark.parametrize("name", ["a100-sxm4-40gb", "a100-sxm4-80gb", "a40", "h100-sxm"])
def test_ampere_and_later_do_bf16_as_fast_as_fp16(name: str) -> None:
    gpu = GPU.load(name)
    assert gpu.peak_flops_per_s("bf16") == gpu.peak_flops_per_s("fp16")
