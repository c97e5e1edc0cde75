"""Energy windows on an NVIDIA board, emulated under unmodified pynvml and Zeus: resets, short windows, power only."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from zeus.monitor.energy import ZeusMonitor

from energy_lightning.device import has_emulated_figures
from energy_lightning.device.host import Host
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import PERMISSIONS, Code, EmulatedBoard, NvmlEmulator
from energy_lightning.measure import (
    CallableRunner,
    EnergyMeter,
    EnergyTotal,
    MeasurementStore,
    PartitionConfig,
    PartitionMeter,
    PowerSampler,
    WindowReading,
    WindowSettings,
    describe_run,
    sum_over_gpus,
)
from energy_lightning.workload import Partition, Workload

AAAA, BBBB = "GPU-aaaa0000-0000-0000-0000-000000000001", "GPU-bbbb0000-0000-0000-0000-000000000002"

SLICES = "MIG-11110000-0000-0000-0000-000000000001", "MIG-22220000-0000-0000-0000-000000000002"


class Bench:
    """One clock for boards and devices, which moves when told to."""

    def __init__(self, *boards: EmulatedBoard) -> None:
        self.time_s = 0.0
        self.nvml = NvmlEmulator(boards, now_s=lambda: self.time_s)

    def wait(self, time_s: float) -> None:
        self.time_s += time_s

    def open(self, index: int, state_dir: Path, visible: str | None = None) -> NvidiaDevice:
        environment = {"XDG_STATE_HOME": str(state_dir)}
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        host = Host(environment=environment, torch=None, clock_s=lambda: self.time_s, sleep=self.wait)
        return NvidiaDevice(index, host=host)


def board(uuid: str = AAAA, **options: object) -> EmulatedBoard:
    return EmulatedBoard(uuid=uuid, **{"permissions": (), "counter_refresh_s": 0.0, **options})  # type: ignore[arg-type]


def test_counter_readings_of_1000_1800_300_900_millijoules(tmp_path: Path) -> None:
    bench = Bench(board())
    with bench.nvml as nvml:
        nvml.hold_power(0, 0.0)
        meter, total, readings = EnergyMeter(bench.open(0, tmp_path)), EnergyTotal(), []
        nvml.reset_counter(0, 1.0)
        meter.start()
        for counter_j in (1.8, 0.3, 0.9):
            bench.wait(1.0)
            nvml.reset_counter(0, counter_j)
            readings.append(meter.lap())
            total.add(readings[-1])
        assert [reading.energy_j for reading in readings] == [pytest.approx(0.8), None, pytest.approx(0.6)]
        assert "reset" in str(readings[1].invalid_reason)
        assert (total.energy_j, total.time_s, total.complete) == (pytest.approx(1.4), 3.0, False)


def test_a_window_shorter_than_the_refresh_is_invalid_and_not_zero(tmp_path: Path) -> None:
    bench = Bench(board(counter_refresh_s=0.010))
    with bench.nvml as nvml:
        nvml.load(0, 1.0)
        device = bench.open(0, tmp_path)
        assert device.counter_refresh_s == pytest.approx(0.010, rel=0.15)
        meter = EnergyMeter(device, refresh_s=device.counter_refresh_s)
        meter.start()
        bench.wait(0.001)
        reading = meter.stop()
        assert reading.energy_j is None
        assert str(reading.invalid_reason).startswith("too short")
        meter.start()
        bench.wait(1.0)
        assert meter.stop().energy_j is not None


def test_without_a_counter_constant_power_is_integrated(tmp_path: Path) -> None:
    bench = Bench(board(has_counter=False))
    with bench.nvml as nvml:
        nvml.hold_power(0, 200.0)
        bench.wait(1.0)
        meter = EnergyMeter(bench.open(0, tmp_path))
        meter.start()
        bench.wait(10.0)
        reading = meter.stop()
        meter.close()
        assert reading == WindowReading(10.0, pytest.approx(2000.0), "power")


def test_power_that_changes_is_integrated_by_the_trapezoid_rule(tmp_path: Path) -> None:
    bench = Bench(board(has_counter=False))
    with bench.nvml as nvml:
        sampler = PowerSampler(bench.open(0, tmp_path))
        for time_s, power_w in ((5.0, 100.0), (6.0, 200.0), (8.0, 200.0)):
            nvml.hold_power(0, power_w)
            bench.time_s = time_s  # the board tells the power of the time up to now
            seen_s, energy_j = sampler.sample()
        assert (seen_s, energy_j) == (8.0, pytest.approx(550.0))


def test_what_an_emulated_board_gives_is_described_as_emulated(tmp_path: Path) -> None:
    with Bench(board()).nvml:
        host = Host(environment={"XDG_STATE_HOME": str(tmp_path)}, torch=None)
        device = NvidiaDevice(0, host=host)
        run = describe_run(device, Workload.preset("bert_base"))
        assert (device.emulated, has_emulated_figures(device), run["emulated"]) == (False, True, True)
        assert run["gpu"] == "A100-SXM4-40GB (emulated NVML)"
        assert "gpu_constants" not in run


def test_neither_counter_nor_power_is_no_energy_with_a_reason(tmp_path: Path) -> None:
    bench = Bench(board(has_counter=False, has_power=False, has_power_fields=False))
    with bench.nvml:
        device = bench.open(0, tmp_path)
        meter = EnergyMeter(device)
        meter.start()
        bench.wait(1.0)
        reading = meter.stop()
        assert (reading.time_s, reading.energy_j, reading.source) == (1.0, None, "none")
        assert "reports no energy" in str(reading.invalid_reason)


def test_a_counter_that_fails_in_a_window_voids_it_and_power_does_not_fill_in(tmp_path: Path) -> None:
    bench = Bench(board())
    with bench.nvml as nvml:
        meter = EnergyMeter(bench.open(0, tmp_path))
        meter.start()
        bench.wait(1.0)
        nvml.fail(0, "nvmlDeviceGetTotalEnergyConsumption", Code.GPU_IS_LOST)
        reading = meter.stop()
        assert (reading.energy_j, reading.source) == (None, "counter")


def test_two_ranks_on_two_gpus_add_and_on_one_count_once(tmp_path: Path) -> None:
    bench = Bench(board(AAAA), board(BBBB, mig_uuids=SLICES))
    with bench.nvml as nvml:
        nvml.hold_power(0, 30.0)
        nvml.hold_power(1, 40.0)

        def energies(*visible: str) -> list[tuple[object, float]]:
            """One rank for every CUDA_VISIBLE_DEVICES, each measuring its cuda:0 for 1 s."""
            devices = [bench.open(0, tmp_path, value) for value in visible]
            meters = [EnergyMeter(device) for device in devices]
            for meter in meters:
                meter.start()
            bench.wait(1.0)
            readings = [meter.stop().energy_j for meter in meters]
            return [(device.uuid, float(energy_j or 0.0)) for device, energy_j in zip(devices, readings, strict=True)]

        assert sum_over_gpus(energies("0", "1")) == pytest.approx(70.0)
        assert sum_over_gpus(energies("0", AAAA)) == pytest.approx(30.0)  # one GPU under two names
        assert sum_over_gpus(energies(*SLICES)) == pytest.approx(40.0)  # two slices of one GPU


def test_the_gpu_is_waited_for_at_the_edges_of_a_window_and_only_where_asked(tmp_path: Path) -> None:
    waits: list[int] = []
    properties = SimpleNamespace(name="some GPU", multi_processor_count=108, uuid=BBBB.removeprefix("GPU-"))
    cuda = SimpleNamespace(
        is_available=lambda: True, get_device_properties=lambda index: properties, synchronize=waits.append
    )
    bench = Bench(board(AAAA), board(BBBB))
    with bench.nvml:
        host = Host(environment={}, torch=SimpleNamespace(cuda=cuda), clock_s=lambda: bench.time_s, sleep=bench.wait)
        device = NvidiaDevice("cuda:3", host=host)
        meter = EnergyMeter(device)
        meter.start()
        for _ in range(5):
            bench.wait(0.1)
            meter.lap()
        device.energy_j(), device.power_w(), device.frequency_mhz(), device.throttle_reasons()
        meter.stop()
        assert waits == []
        meter.start(synchronize=True)
        bench.wait(0.1)
        meter.stop(synchronize=True)
        assert waits == [3, 3]
        assert device.uuid == BBBB


def test_a_clock_under_a_power_cap_is_unreachable_after_every_retry_and_leaves_no_nan(tmp_path: Path) -> None:
    bench = Bench(board(permissions=PERMISSIONS, clock_lag_s=0.005))
    with bench.nvml as nvml:
        nvml.load(0, 1.0)
        nvml.cap_clock(0, 1200, "sw_power_cap")
        device = bench.open(0, tmp_path)
        runner = CallableRunner(lambda partition, schedule: lambda: bench.wait(0.003))
        settings = WindowSettings(window_s=0.5, cool_down_s=0.1, max_retries=3)
        meter = PartitionMeter(device, runner, settings, refresh_s=device.counter_refresh_s)
        partition, measured = Partition("fwd_attn", (), None, 1, True), {}
        for mhz in (1410, 1200):
            measured[mhz] = meter.measure(partition, PartitionConfig("fwd_attn", mhz))
        calls = [call for call in nvml.state(0).sets if call.code == 0]
        locks = [call.arguments[0] for call in calls if call.function == "nvmlDeviceSetGpuLockedClocks"]
        meter.close()
        device.close()
    assert measured[1410].invalid_reason == "unreachable: asked for 1410 MHz, seen 1200 MHz (sw_power_cap)"
    assert (measured[1410].requested_mhz, measured[1410].actual_mhz) == (1410, 1200)
    assert locks.count(1410) == 4
    assert measured[1200].valid
    assert all(math.isfinite(float(m.energy_j or 0.0)) and math.isfinite(m.time_s) for m in measured.values())
    store = MeasurementStore(tmp_path / "measurements.jsonl", {"gpu": "A100"}, source="counter")
    for mhz, measurement in measured.items():
        store.add(PartitionConfig("fwd_attn", mhz), measurement)
    assert [config.frequency_mhz for config, known in store.measurements().items() if known.valid] == [1200]


# Zeus's own windows


def test_a_window_sees_what_zeus_monitors_window_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(board(AAAA, counter_refresh_s=0.1), board(BBBB, counter_refresh_s=0.1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with bench.nvml as nvml:
        nvml.load(1, 0.7)
        monitor = ZeusMonitor(gpu_indices=[0], cpu_indices=[])
        meter = EnergyMeter(bench.open(0, tmp_path, "1,0"))
        for window_s in (0.35, 2.0, 0.1):
            monitor.begin_window("window", sync_execution=False)
            meter.start()
            bench.wait(window_s)
            ours, zeus = meter.stop(), monitor.end_window("window", sync_execution=False)
            assert ours.energy_j == pytest.approx(zeus.gpu_energy[0])
            assert zeus.gpu_energy[0] > 0.0


def test_uuids_stop_zeus_monitor_and_not_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why energy is read through Zeus's object of one GPU. When this fails, Zeus has learnt UUIDs: use its monitor."""
    bench = Bench(board(AAAA), board(BBBB))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", BBBB)
    with bench.nvml as nvml:
        nvml.hold_power(1, 50.0)
        with pytest.raises(ValueError, match="invalid literal for int"):
            ZeusMonitor(gpu_indices=[0], cpu_indices=[])
        meter = EnergyMeter(bench.open(0, tmp_path, BBBB))
        meter.start()
        bench.wait(2.0)
        assert meter.stop().energy_j == pytest.approx(100.0)
