"""NvidiaDevice on a GPU, and the same checks on an emulated NVML."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
import torch
from gpu_cases import EMULATED, NEEDS_GPU, REAL, REAL_GPU, may_set_clocks, opened, work_for

from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.measure import EnergyMeter

KINDS = [EMULATED, REAL_GPU]
TOLERANCE_MHZ = 30


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def gpu(kind: str, tmp_path: Path) -> Iterator[NvidiaDevice]:
    with opened(kind, tmp_path) as device:
        yield device


def until(holds: Callable[[], bool], limit_s: float) -> bool:
    """Whether it comes to hold within the limit."""
    end_s = time.perf_counter() + limit_s
    while time.perf_counter() < end_s:
        if holds():
            return True
        time.sleep(0.01)
    return False


def test_a_clock_range_with_swapped_ends_is_refused_as_the_look_for_permission_counts_on(gpu: NvidiaDevice) -> None:
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    highest_mhz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    with pytest.raises((pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NoPermission)):
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, highest_mhz, highest_mhz - 1)


def test_it_tells_what_every_device_must(gpu: NvidiaDevice, kind: str) -> None:
    assert not gpu.emulated
    assert gpu.emulated_hardware == (kind == EMULATED) == ("(emulated NVML)" in gpu.name)
    assert gpu.uuid is not None
    assert gpu.uuid.startswith("GPU-")
    assert list(gpu.frequencies_mhz) == sorted(set(gpu.frequencies_mhz))
    assert gpu.frequency_mhz() > 0
    assert 0 < gpu.num_sms < 1000
    assert 0.0 < gpu.static_power_w < gpu.power_limit_w
    assert gpu.blocking_power_w > 0.0
    temperature_c = gpu.temperature_c()
    assert temperature_c is None or 0.0 < temperature_c < 120.0
    assert gpu.mode in ("full", "measure-only", "time-only")
    assert gpu.requested_frequency_mhz() is None
    if gpu.power_limit_range_w is not None:
        least_w, most_w = gpu.power_limit_range_w
        assert least_w <= gpu.power_limit_w <= most_w


@pytest.mark.gpu
@NEEDS_GPU
def test_it_is_the_gpu_that_torch_computes_on(tmp_path: Path) -> None:
    with opened(REAL, tmp_path) as gpu:
        properties = torch.cuda.get_device_properties(0)
        assert str(properties.uuid) in str(gpu.uuid)
        assert gpu.num_sms == properties.multi_processor_count


def test_the_counter_moves_as_often_as_it_says_and_never_back(gpu: NvidiaDevice) -> None:
    if gpu.energy_source != "counter":
        pytest.skip(f"{gpu.name} has no energy counter")
    refresh_s = gpu.counter_refresh_s
    assert 0.0 < refresh_s <= 0.5
    readings, end_s = [], time.perf_counter() + 12 * refresh_s
    while time.perf_counter() < end_s:
        readings.append(gpu.energy_j())
        time.sleep(refresh_s / 20)
    values = [value for value in readings if value is not None]
    assert values == sorted(values)
    assert 4 <= len(set(values)) <= 15


def test_energy_of_a_known_load_is_power_times_time(gpu: NvidiaDevice, kind: str) -> None:
    if gpu.energy_source == "none" or gpu.power_w() is None:
        pytest.skip(f"{gpu.name} has no energy or no power reading")
    seconds = 3.0 if kind == REAL else 0.4
    work_for(kind, seconds / 3)  # power settles
    meter = EnergyMeter(gpu, refresh_s=gpu.counter_refresh_s)
    powers_w: list[float] = []
    meter.start(synchronize=True)
    for _ in range(10):
        work_for(kind, seconds / 10)
        powers_w.append(gpu.power_w() or math.nan)
    reading = meter.stop(synchronize=True)
    meter.close()
    assert reading.energy_j is not None, reading.invalid_reason
    mean_w = sum(powers_w) / len(powers_w)
    assert reading.energy_j == pytest.approx(mean_w * reading.time_s, rel=0.15)
    assert mean_w > 1.2 * gpu.static_power_w


def test_a_locked_clock_is_read_back_and_given_back(gpu: NvidiaDevice, kind: str, pytestconfig: pytest.Config) -> None:
    may_set_clocks(kind, pytestconfig, gpu)
    clock = gpu.frequencies_mhz[len(gpu.frequencies_mhz) // 2]
    work_for(kind, 0.2)
    free_mhz = gpu.frequency_mhz()
    gpu.lock_frequency(clock)
    assert gpu.requested_frequency_mhz() == clock

    def shows() -> bool:
        work_for(kind, 0.02)
        return abs(gpu.frequency_mhz() - clock) <= TOLERANCE_MHZ

    assert until(shows, 2.0), f"asked for {clock} MHz, seen {gpu.frequency_mhz()} MHz"
    gpu.reset_frequency()
    assert gpu.requested_frequency_mhz() is None

    def is_back() -> bool:
        work_for(kind, 0.02)
        return gpu.frequency_mhz() > (clock + free_mhz) / 2

    assert until(is_back, 2.0), f"{free_mhz} MHz before, {gpu.frequency_mhz()} MHz after"


LOCK_AND_WAIT = """
import sys, time, torch
from energy_lightning.device.nvidia import NvidiaDevice
gpu = NvidiaDevice(torch.device("cuda", 0))
gpu.lock_frequency(gpu.frequencies_mhz[len(gpu.frequencies_mhz) // 2])
print("locked", flush=True)
time.sleep(60)
"""


@pytest.mark.gpu
@NEEDS_GPU
def test_a_killed_process_leaves_no_locked_clock(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    with opened(REAL, tmp_path) as gpu:
        may_set_clocks(REAL, pytestconfig, gpu)
        middle = gpu.frequencies_mhz[len(gpu.frequencies_mhz) // 2]
        work_for(REAL, 0.5)
        free_mhz = gpu.frequency_mhz()
        gpu.close()  # the GPU is the child's
        child = subprocess.Popen([sys.executable, "-c", LOCK_AND_WAIT], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "locked"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()

        def is_back() -> bool:
            work_for(REAL, 0.05)
            return gpu.frequency_mhz() > (middle + free_mhz) / 2

        assert until(is_back, 2.0), f"{free_mhz} MHz before, {gpu.frequency_mhz()} MHz 2 s after SIGKILL"
