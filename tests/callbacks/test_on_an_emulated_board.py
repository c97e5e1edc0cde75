"""The four callbacks on NvidiaDevice over an emulated NVML, on a time that only moves when told to."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_trainer import (
    WORKLOAD,
    EnergyMonitor,
    FakeStrategy,
    FakeTrainer,
    FrequencyController,
    FrontierOptimizer,
    PartitionProfiler,
)

from energy_lightning.callbacks.blocking import learn_blocking_power
from energy_lightning.device.guard import HardwareGuard
from energy_lightning.device.host import Host
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.device.watchdog_process import WatchdogPipe
from energy_lightning.measure import EnergyTotal
from energy_lightning.types import PhasePlan, Plan, Schedule
from energy_lightning.workload import Partition

SIZES = {"initial": 6, "batch": 4, "num_batches": 1}
CLOCKS_MHZ = [1410, 1200, 990]
TWO_CLOCKS = Plan.single_stage(PhasePlan("forward", 1200), PhasePlan("backward", 900), time_s=1.0, energy_j=250.0)
RUN_S = 5e-3
LIMIT_S = 5.0


class Board(NvidiaDevice):
    """An NVIDIA device whose work is waiting, and which counts how often somebody waits for it."""

    def __init__(self, nvml: NvmlEmulator, folder: Path, time_s: list[float]) -> None:
        def wait(wait_s: float) -> None:
            time_s[0] += wait_s

        guard = HardwareGuard(folder / "state", start_watchdog=lambda begin, gone: Mock(spec=WatchdogPipe))
        environment = {"XDG_STATE_HOME": str(folder)}
        super().__init__(0, guard=guard, host=Host(environment=environment, clock_s=lambda: time_s[0], sleep=wait))
        self.nvml, self.wait, self.num_waits = nvml, wait, 0

    def synchronize(self) -> None:
        self.num_waits += 1

    def run_phase(self, phase_plan: PhasePlan) -> None:
        self.wait(0.4)

    def run_iteration_end(self, phase_plan: PhasePlan) -> None:
        self.wait(0.2)


class Runner:
    """Partitions that take RUN_S at 1410 MHz, more at lower clocks."""

    def __init__(self, device: Board) -> None:
        self.device = device

    def prepare(self, partition: Partition, schedule: Schedule | None) -> Callable[[int], None]:
        return lambda count: self.device.wait(count * RUN_S * 1410 / self.device.nvml.state(0).sm_mhz)

    def release(self) -> None:
        """Nothing was prepared."""


@pytest.fixture
def open_board(tmp_path: Path) -> Iterator[Any]:
    opened: list[tuple[Board, NvmlEmulator]] = []

    def open_one(**options: Any) -> Board:
        time_s = [100.0]
        board = EmulatedBoard(**{"counter_refresh_s": 0.1, "clock_lag_s": 0.0, **options})
        nvml = NvmlEmulator([board], now_s=lambda: time_s[0])
        nvml.__enter__()
        nvml.load(0, 1.0)
        opened.append((Board(nvml, tmp_path, time_s), nvml))
        return opened[-1][0]

    yield open_one
    for device, nvml in opened:
        device.close()
        device.guard.close()
        nvml.__exit__(None, None, None)


def trainer_on(device: Board, folder: Path, plan: Plan | None = None, **options: Any) -> FakeTrainer:
    strategy: Any = FakeStrategy(folder, workload=WORKLOAD)
    strategy.device, strategy.partition_runner = device, Runner(device)
    if plan is not None:
        strategy.plan = strategy.applied_plan = plan
    callbacks = [
        EnergyMonitor(**options),
        PartitionProfiler(warmup_steps=1, window_s=1.0, cool_down_s=1.0, measurements_per_step=1000),
        FrontierOptimizer(frequencies_mhz=CLOCKS_MHZ, sizes=SIZES),
        FrequencyController(min_dwell_s=0.0),
    ]
    return FakeTrainer(strategy, callbacks, max_steps=6)


def lines_of(trainer: FakeTrainer, word: str) -> list[str]:
    return [line for line in trainer.lightning_module.lines if word in line]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]


def locks(device: Board) -> list[int]:
    calls = device.nvml.state(0).sets
    return [call.arguments[0] for call in calls if call.function == "nvmlDeviceSetGpuLockedClocks" and call.code == 0]


def wait_for(condition: Callable[[], bool]) -> None:
    """The switcher's thread works on real time."""
    until_s = time.perf_counter() + LIMIT_S
    while not condition():
        assert time.perf_counter() < until_s, "the switcher's thread did not get there"
        time.sleep(0.001)


def wait_for_lock(device: Board, clock_mhz: int | None) -> None:
    wanted = None if clock_mhz is None else (clock_mhz, clock_mhz)
    wait_for(lambda: device.nvml.state(0).locked_mhz == wanted)


def test_the_power_of_a_waiting_gpu_is_measured_once_and_costs_what_it_says(open_board: Any, tmp_path: Path) -> None:
    device, spans_s, spent = open_board(), list[float](), EnergyTotal()
    trainer, packaged_w, start_s = trainer_on(device, tmp_path), device.blocking_power_w, device.now_s()
    learn_blocking_power(trainer, device, spent)  # torch does not drive it
    assert (device.now_s(), lines_of(trainer, "waits for others")) == (start_s, [])
    learn_blocking_power(trainer, device, spent, spin=spans_s.append)
    power_w = device.nvml.state(0).power_w
    assert power_w > packaged_w  # the board was loaded
    assert device.blocking_power_w == pytest.approx(power_w, rel=0.05)
    assert spent.time_s == pytest.approx(device.now_s() - start_s)
    assert spent.energy_j == pytest.approx(power_w * spent.time_s, rel=0.1)
    learn_blocking_power(trainer, device, spent, spin=spans_s.append)
    assert len(spans_s) == 1
    (line,) = lines_of(trainer, "waits for others")
    assert "EMULATED" in line


def test_a_waiting_gpu_that_cannot_be_measured_stops_nothing(open_board: Any, tmp_path: Path) -> None:
    device = open_board()
    device.cuda_index = 0  # as if torch drove it
    trainer = trainer_on(device, tmp_path)
    trainer.fit()
    (line,) = lines_of(trainer, "waiting GPU is taken to be")
    assert "torch sees no CUDA GPU" in line
    assert rows_of(tmp_path)  # profiled all the same


def test_a_clock_held_down_by_a_power_cap_is_unreachable_by_name_and_in_no_plan(
    open_board: Any, tmp_path: Path
) -> None:
    device = open_board()
    device.nvml.cap_clock(0, 1200, "sw_power_cap")
    trainer = trainer_on(device, tmp_path)
    trainer.fit()
    optimizer, rows = trainer.callbacks[2], rows_of(tmp_path)
    too_high = [row for row in rows if row["config"]["frequency_mhz"] == 1410]
    assert too_high
    for row in too_high:
        assert row["invalid_reason"] == "unreachable: asked for 1410 MHz, seen 1200 MHz (sw_power_cap)"
        assert (row["requested_mhz"], row["actual_mhz"]) == (1410, 1200)
    assert not [row for row in rows if row["invalid_reason"] and row not in too_high]
    assert "NaN" not in (tmp_path / "measurements.jsonl").read_text()
    assert optimizer.frontier
    assert all(math.isfinite(point.time_s) and math.isfinite(point.energy_j) for point in optimizer.frontier)
    assert max(optimizer.plan.forward.frequency_mhz, optimizer.plan.backward.frequency_mhz) <= 1200
    assert device.nvml.state(0).locked_mhz is None


def test_energy_of_a_partition_is_power_times_time(open_board: Any, tmp_path: Path) -> None:
    device = open_board()
    device.nvml.hold_power(0, 200.0)
    trainer_on(device, tmp_path).fit()
    for row in rows_of(tmp_path):
        assert row["time_s"] == pytest.approx(RUN_S * 1410 / row["config"]["frequency_mhz"])
        assert row["energy_j"] == pytest.approx(200.0 * row["time_s"], rel=0.15)  # a refresh in a window of ten


@pytest.mark.parametrize(("lag_s", "switches"), [(0.004, True), (0.1, False)])
def test_the_measured_time_of_a_change_is_charged_to_plans_that_change_the_clock(
    open_board: Any, tmp_path: Path, lag_s: float, switches: bool
) -> None:
    device = open_board(clock_lag_s=lag_s)
    trainer = trainer_on(device, tmp_path)
    trainer.fit()
    assert device.switch_time_s == pytest.approx(lag_s, abs=0.001)
    assert len(lines_of(trainer, f"a change of the clock takes {1e3 * device.switch_time_s:.1f} ms")) == 1
    plans = [point.choice for point in trainer.callbacks[2].frontier]
    assert any(plan.forward.frequency_mhz != plan.backward.frequency_mhz for plan in plans) == switches
    for plan in plans:
        changes = plan.forward.frequency_mhz != plan.backward.frequency_mhz
        runs = {phase: sum(p.count for p in _run_in(plan, phase)) for phase in ("forward", "backward", "iteration")}
        busy_s = RUN_S * 1410 * runs["forward"] / plan.forward.frequency_mhz
        busy_s += RUN_S * 1410 * (runs["backward"] + runs["iteration"]) / plan.backward.frequency_mhz
        assert plan.time_s == pytest.approx(busy_s + 2 * changes * device.switch_time_s, rel=0.02)


def _run_in(plan: Plan, phase: Any) -> tuple[Partition, ...]:
    return WORKLOAD.partitions(phase, nanobatched=plan.forward.nanobatched)


def test_normal_steps_never_wait_for_the_gpu(open_board: Any, tmp_path: Path) -> None:
    device = open_board()
    trainer = trainer_on(device, tmp_path)
    trainer.fit(num_steps=3)
    assert trainer.callbacks[2].plan is not None
    num_windows = trainer.callbacks[1].num_measured
    assert device.num_waits == 4 * num_windows  # two in the warm-up of each, one at either edge of its window
    trainer.callbacks[3].on_train_start(trainer, trainer.lightning_module)
    for _ in range(20):
        trainer.batch(0, steps=True)
    trainer.call("on_validation_start")
    trainer.call("on_validation_end")
    trainer.call("on_train_epoch_end")
    trainer.call("on_train_end")
    assert device.num_waits == 4 * num_windows
    names = {name for metrics in trainer.lightning_module.logged for name in metrics}
    assert "emulated_total_time_s" in names
    assert all(name.startswith("emulated_") for name in names)  # of an emulated NVML: never taken for measurements


def test_a_given_plan_clocks_the_board_and_gives_it_back(open_board: Any, tmp_path: Path) -> None:
    device = open_board(locked_mhz=(1305, 1305))
    trainer = trainer_on(device, tmp_path, TWO_CLOCKS)
    trainer.call("on_train_start")
    for hook, clock_mhz in (("on_train_batch_start", 1200), ("on_before_backward", 900)) * 2:
        trainer.call(hook, *((None, 0) if hook == "on_train_batch_start" else (None,)))
        wait_for_lock(device, clock_mhz)
    trainer.call("on_validation_start")
    wait_for_lock(device, None)
    trainer.call("on_validation_end")
    trainer.call("on_train_batch_start", None, 1)
    wait_for_lock(device, 1200)
    trainer.call("on_exception", KeyboardInterrupt())
    assert device.nvml.state(0).locked_mhz is None
    assert locks(device) == [1200, 900, 1200, 900, 1200]


@pytest.mark.parametrize("permissions", [("power_limit",), ()])
def test_what_is_permitted_is_said_once_and_kept_in_the_records(
    open_board: Any, tmp_path: Path, permissions: tuple[str, ...]
) -> None:
    device = open_board(permissions=permissions)
    trainer = trainer_on(device, tmp_path, TWO_CLOCKS, records=tmp_path / "energy.jsonl")
    trainer.call("on_train_start")
    trainer.batch(0, steps=True)
    trainer.batch(0, steps=True)
    trainer.call("on_train_end")
    assert not device.can_lock_frequency
    (line,) = lines_of(trainer, str(device.uuid))
    expected = "full control" if permissions else "measuring only"
    assert expected in line
    assert ("the SM clock cannot be set" in line) == bool(permissions)
    assert "(emulated NVML)" in line
    assert not lines_of(trainer, "no permission")
    rows = [json.loads(text) for text in (tmp_path / "energy.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert rows[-1]["mode"] == device.mode == ("full" if permissions else "measure-only")
    assert device.nvml.state(0).locked_mhz is None


def test_without_permission_schedules_are_chosen_at_the_running_clock_which_may_move(
    open_board: Any, tmp_path: Path
) -> None:
    device = open_board(permissions=())
    device.nvml.cap_clock(0, 1335, "sw_power_cap")
    trainer = trainer_on(device, tmp_path)
    trainer.fit()
    plan = trainer.callbacks[2].plan
    assert plan is not None
    assert plan.forward.frequency_mhz is plan.backward.frequency_mhz is None
    rows = rows_of(tmp_path)
    assert {(row["requested_mhz"], row["actual_mhz"], row["invalid_reason"]) for row in rows} == {(None, 1335, None)}
    assert locks(device) == []


def test_an_epoch_tells_how_warm_the_gpu_was_and_profiling_too(open_board: Any, tmp_path: Path) -> None:
    device = open_board(temperature_c=30.0)
    trainer = trainer_on(device, tmp_path)
    trainer.fit()
    (epoch,) = lines_of(trainer, "epoch 0")
    (profiling,) = lines_of(trainer, "configurations measured")
    warmest = max(row["temperature_c"] for row in rows_of(tmp_path))
    coolest = min(row["temperature_c"] for row in rows_of(tmp_path))
    assert f"at {coolest:.0f} to {warmest:.0f} C" in profiling
    assert " C (" in epoch
    assert "A100-SXM4-40GB (emulated NVML))" in epoch
