"""Unmodified Zeus on emulated boards: what it measures against closed forms, what it sets, and the errors it gives."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest
from manual_clock import ManualClock

from energy_lightning.device.nvml_emulator import Code, EmulatedBoard, NvmlEmulator

zeus_gpu = pytest.importorskip("zeus.device.gpu")
zeus_energy = pytest.importorskip("zeus.monitor.energy")
zeus_power = pytest.importorskip("zeus.monitor.power")
zeus_power_limit = pytest.importorskip("zeus.optimizer.power_limit")

PASCAL = 4  # nvmlDeviceArchitecture_t: the last one without an energy counter


@pytest.fixture(autouse=True)
def _as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(zeus_energy, "sync_execution_fn", lambda *_, **__: None)  # torch here has no GPU to wait for
    warnings.simplefilter("ignore")  # Zeus warns that this process is not root


@pytest.fixture
def nvml(clock: ManualClock) -> Iterator[NvmlEmulator]:
    boards = [EmulatedBoard(uuid="GPU-a"), EmulatedBoard(gpu="a40", uuid="GPU-b", limit_granularity_w=5.0)]
    with NvmlEmulator(boards, now_s=clock) as emulator:
        yield emulator


def monitor(**options: Any) -> Any:
    return zeus_energy.ZeusMonitor(cpu_indices=[], **options)


# measuring


def test_windows_measure_what_is_drawn(nvml: NvmlEmulator, clock: ManualClock) -> None:
    zeus = monitor()
    nvml.hold_power(0, 200.0)
    nvml.hold_power(1, 75.0)
    zeus.begin_window("all")
    clock.time_s += 10.0
    zeus.begin_window("half")
    clock.time_s += 10.0
    assert zeus.end_window("half").gpu_energy == pytest.approx({0: 2000.0, 1: 750.0}, abs=2e-3)
    nvml.hold_power(0, 20.0)
    clock.time_s += 5.0
    assert zeus.end_window("all").gpu_energy == pytest.approx({0: 4100.0, 1: 1875.0}, abs=2e-3)


@pytest.mark.parametrize("start_s", [0.0, 0.03, 0.099])
@pytest.mark.parametrize("window_s", [0.35, 1.0, 3.333])
def test_windows_are_off_by_a_refresh_at_most(
    window_s: float, start_s: float, nvml: NvmlEmulator, clock: ManualClock
) -> None:
    zeus = monitor(gpu_indices=[0])
    nvml.hold_power(0, 300.0)
    clock.time_s += start_s
    zeus.begin_window("w")
    clock.time_s += window_s
    assert abs(zeus.end_window("w").total_energy - 300.0 * window_s) <= 300.0 * 0.1 + 2e-3


def test_a_window_below_the_refresh_shows_nothing(nvml: NvmlEmulator, clock: ManualClock) -> None:
    zeus = monitor(gpu_indices=[0])
    nvml.hold_power(0, 300.0)
    clock.time_s += 0.11
    zeus.begin_window("short")
    clock.time_s += 0.05
    with pytest.warns(UserWarning, match="measured as zero"):
        assert zeus.end_window("short").total_energy == 0.0


def test_a_reset_of_the_counter_shows_through(nvml: NvmlEmulator, clock: ManualClock) -> None:
    zeus = monitor(gpu_indices=[0])
    nvml.hold_power(0, 100.0)
    clock.time_s += 10.0
    zeus.begin_window("w")
    nvml.reset_counter(0)
    clock.time_s += 1.0
    assert zeus.end_window("w").total_energy == pytest.approx(100.0 - 1000.0, abs=2e-3)


def test_power_and_temperature_of_each_gpu(nvml: NvmlEmulator, clock: ManualClock) -> None:
    gpus = zeus_gpu.get_gpus()
    nvml.hold_power(0, 100.0)
    nvml.hold_power(1, 50.0)
    clock.time_s += 3.0
    nvml.hold_power(0, 300.0)
    clock.time_s += 0.5
    assert [gpus.get_instant_power_usage(index) for index in (0, 1)] == [300_000, 50_000]
    assert gpus.get_average_power_usage(0) == pytest.approx(200_000, abs=2)
    assert gpus.get_gpu_temperature(0) == round(nvml.state(0).temperature_c)
    assert gpus.get_total_energy_consumption(0) == pytest.approx(450_000, abs=2)
    with pytest.raises(zeus_gpu.ZeusGPUNotSupportedError):
        gpus.get_average_memory_power_usage(0)


def test_an_old_board_is_polled_for_its_power(clock: ManualClock) -> None:
    """Zeus's own polling loop, in a thread here and in a process there, sees each power that the board draws."""
    readings: queue.Queue[Any] = queue.Queue()
    ready, stop = threading.Event(), threading.Event()
    with NvmlEmulator([EmulatedBoard(gpu="v100", architecture=PASCAL, has_counter=False)], now_s=clock) as nvml:
        gpus = zeus_gpu.get_gpus(ensure_homogeneous=True)
        assert not gpus.supports_get_total_energy_consumption(0)
        with pytest.raises(zeus_gpu.ZeusGPUNotSupportedError):
            gpus.get_total_energy_consumption(0)
        instant = zeus_power.PowerDomain.DEVICE_INSTANT
        arguments = (instant, [0], readings, ready, stop, 0.001)
        poller = threading.Thread(target=zeus_power._domain_polling_process, args=arguments)
        poller.start()
        try:
            readings.get(timeout=30.0)  # idle
            for power_w in (200.0, 120.0, 250.0):
                nvml.hold_power(0, power_w)
                clock.time_s += 1.0
                assert readings.get(timeout=30.0).power_mw == 1e3 * power_w
        finally:
            stop.set()
            poller.join()


# which GPUs


def test_zeus_sees_the_boards(nvml: NvmlEmulator) -> None:
    gpus = zeus_gpu.get_gpus()
    assert isinstance(gpus, zeus_gpu.NVIDIAGPUs)
    assert [gpus.get_name(index) for index in range(len(gpus))] == ["NVIDIA A100-SXM4-40GB", "NVIDIA A40"]
    assert not any(gpu._is_grace_hopper for gpu in gpus.gpus)
    assert gpus.supports_get_total_energy_consumption(0)


@pytest.mark.parametrize(("visible", "names"), [("1,0", ["A40", "A100-SXM4-40GB"]), ("1", ["A40"])])
def test_zeus_follows_the_visible_devices(
    visible: str, names: list[str], nvml: NvmlEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus = zeus_gpu.get_gpus()
    assert [gpus.get_name(index) for index in range(len(gpus))] == [f"NVIDIA {name}" for name in names]


@pytest.mark.parametrize("visible", ["", "MIG-1", "7"])
def test_zeus_refuses_other_visible_devices(visible: str, nvml: NvmlEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises((zeus_gpu.ZeusGPUInitError, zeus_gpu.ZeusGPUInvalidArgError)):
        zeus_gpu.get_gpus()


def test_what_zeus_found_is_forgotten_afterwards(clock: ManualClock) -> None:
    before = zeus_gpu._gpus
    with NvmlEmulator([EmulatedBoard()], now_s=clock):
        outer = zeus_gpu.get_gpus()
        with NvmlEmulator([EmulatedBoard(gpu="a40")] * 2, now_s=clock):
            assert len(zeus_gpu.get_gpus()) == 2
        assert zeus_gpu.get_gpus() is outer
        assert outer.get_name(0) == "NVIDIA A100-SXM4-40GB"
    assert zeus_gpu._gpus is before


def test_without_a_driver_zeus_finds_no_gpu(clock: ManualClock) -> None:
    with NvmlEmulator([EmulatedBoard()], now_s=clock, init_error=Code.DRIVER_NOT_LOADED):
        with pytest.raises(zeus_gpu.ZeusGPUInitError):
            zeus_gpu.get_gpus()
        assert len(monitor().gpus) == 0


# setting

SETTERS: dict[str, Callable[[Any], None]] = {
    "set_gpu_locked_clocks": lambda gpus: gpus.set_gpu_locked_clocks(0, 900, 900),
    "reset_gpu_locked_clocks": lambda gpus: gpus.reset_gpu_locked_clocks(0),
    "set_memory_locked_clocks": lambda gpus: gpus.set_memory_locked_clocks(0, 1215, 1215),
    "reset_memory_locked_clocks": lambda gpus: gpus.reset_memory_locked_clocks(0),
    "set_power_management_limit": lambda gpus: gpus.set_power_management_limit(0, 200_000),
    "set_persistence_mode": lambda gpus: gpus.set_persistence_mode(0, False),
}


def test_zeus_sets_and_resets(nvml: NvmlEmulator, clock: ManualClock) -> None:
    gpus = zeus_gpu.get_gpus()
    for setter in SETTERS.values():
        setter(gpus)
    state = nvml.state(0)
    assert (state.locked_mhz, state.memory_locked_mhz, state.power_limit_w, state.persistence) == (
        (None, None, 200.0, False)
    )
    assert [call.function for call in state.sets] == [
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceSetMemoryLockedClocks",
        "nvmlDeviceResetMemoryLockedClocks",
        "nvmlDeviceSetPowerManagementLimit",
        "nvmlDeviceSetPersistenceMode",
    ]
    gpus.reset_power_management_limit(0)
    assert gpus.get_power_management_limit(0) == 400_000
    gpus.set_power_management_limit(1, 183_000)
    assert gpus.get_power_management_limit(1) == 185_000
    assert gpus.get_power_management_limit_constraints(1) == (100_000, 300_000)
    assert gpus.get_supported_memory_clocks(0) == [1215]
    assert gpus.get_supported_graphics_clocks(0, 1215)[:2] == [1410, 1395]
    assert gpus.get_persistence_mode(1)


@pytest.mark.parametrize("name", SETTERS)
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.NO_PERMISSION, "ZeusGPUNoPermissionError"),
        (Code.NOT_SUPPORTED, "ZeusGPUNotSupportedError"),
        (Code.GPU_IS_LOST, "ZeusGPULostError"),
        (Code.UNKNOWN, "ZeusGPUUnknownError"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_zeus_gives_its_own_error(name: str, code: Code, error: str, nvml: NvmlEmulator) -> None:
    gpus = zeus_gpu.get_gpus()
    entry = "nvmlDevice" + "".join(part.capitalize() for part in name.split("_"))
    nvml.fail(0, entry, code)
    with pytest.raises(getattr(zeus_gpu, error)):
        SETTERS[name](gpus)
    state = nvml.state(0)
    assert (state.locked_mhz, state.memory_locked_mhz, state.power_limit_w) == (None, None, 400.0)


@pytest.mark.parametrize("name", SETTERS)
def test_without_permission_zeus_says_so(name: str, nvml: NvmlEmulator) -> None:
    nvml.permit(0)
    with pytest.raises(zeus_gpu.ZeusGPUNoPermissionError):
        SETTERS[name](zeus_gpu.get_gpus())


def test_the_global_power_limit_optimizer_finds_the_limit_of_least_energy(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its choice against a sweep by hand; a step is 1e6 clock cycles of a busy GPU, so low clocks take longer."""
    monkeypatch.setattr(zeus_power_limit.atexit, "register", lambda function: None)  # no GPU is left to restore then
    limits_w = range(400, 99, -50)

    def step(nvml: NvmlEmulator) -> None:
        nvml.load(0, 1.0)
        for _ in range(20):
            clock.time_s += 100.0 / nvml.state(0).sm_mhz
        nvml.load(0, 0.0)

    def started() -> NvmlEmulator:
        return NvmlEmulator([EmulatedBoard(counter_refresh_s=0.0)], now_s=clock)

    by_hand_j = {}
    for limit_w in limits_w:
        with started() as nvml:
            pynvml.nvmlInit()
            pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), 1000 * limit_w)
            for _ in range(4):
                before_j = nvml.state(0).energy_j
                step(nvml)
            by_hand_j[limit_w] = nvml.state(0).energy_j - before_j

    with started() as nvml:
        optimizer = zeus_power_limit.GlobalPowerLimitOptimizer(
            monitor(),
            zeus_power_limit.Energy(),
            wait_steps=1,
            warmup_steps=2,
            profile_steps=3,
            pl_step=50,
            profile_path=None,
        )
        assert nvml.state(0).persistence
        tried_w = set()
        for _ in range(60):
            optimizer.on_step_begin()
            step(nvml)
            optimizer.on_step_end()
            tried_w.add(nvml.state(0).power_limit_w)
        assert tried_w == {float(limit_w) for limit_w in limits_w}
        best_w = min(by_hand_j, key=by_hand_j.__getitem__)
        assert 100 < best_w < 400
        assert nvml.state(0).power_limit_w == best_w
