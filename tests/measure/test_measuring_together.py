"""Two ranks as two threads, whose GPUs differ: a partition's collective needs both, so both must run it alike."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from energy_lightning.measure import PartitionConfig, PartitionMeter, PeerFailedError, WindowSettings
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import DeviceError, Measurement, Schedule
from energy_lightning.workload import Partition

PARTITION = Partition("fwd_attn", (), None, 1, True)
CONFIG = PartitionConfig("fwd_attn", 1410)
TIMEOUT_S = 10.0  # a rank that waits for ever breaks the barrier instead


class Group:
    """Gathers one value a rank."""

    def __init__(self) -> None:
        self._barrier, self._slots = threading.Barrier(2, timeout=TIMEOUT_S), [0.0, 0.0]

    def gather(self, rank: int, value: float) -> list[float]:
        self._slots[rank] = value
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values


class CollectiveRunner:
    """Every execution waits for the other rank, as a collective does; `counts` are the executions asked for."""

    def __init__(self, device: ScriptedDevice, meeting: threading.Barrier, time_s: float) -> None:
        self._device, self._meeting, self._time_s = device, meeting, time_s
        self.counts: list[int] = []
        self.num_released = 0

    def prepare(self, partition: Partition, schedule: Schedule | None) -> Callable[[int], None]:
        def run(num_runs: int) -> None:
            self.counts.append(num_runs)
            for _ in range(num_runs):
                self._meeting.wait()
                self._device.work(self._time_s)

        return run

    def release(self) -> None:
        self.num_released += 1


Rank = tuple[ScriptedDevice, CollectiveRunner, "Measurement | BaseException"]


def measure_on_two_ranks(
    devices: tuple[ScriptedDevice, ScriptedDevice],
    times_s: tuple[float, float] = (0.1, 0.1),
    breaks: Callable[[int, CollectiveRunner], None] = lambda rank, runner: None,
    **settings: Any,
) -> list[Rank]:
    group, meeting = Group(), threading.Barrier(2, timeout=TIMEOUT_S)
    ranks: dict[int, Rank] = {}

    def measure(rank: int) -> None:
        runner = CollectiveRunner(devices[rank], meeting, times_s[rank])
        breaks(rank, runner)
        meter = PartitionMeter(
            devices[rank],
            runner,
            WindowSettings(window_s=1.0, warmup_runs=2, **settings),
            agree=lambda own: all(group.gather(rank, own)),
            longest=lambda own_s: max(group.gather(rank, own_s)),
        )
        try:
            ranks[rank] = devices[rank], runner, meter.measure(PARTITION, CONFIG)
        except (DeviceError, RuntimeError) as error:
            ranks[rank] = devices[rank], runner, error

    threads = [threading.Thread(target=measure, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [ranks[0], ranks[1]]


@pytest.mark.parametrize("precision", [None, 0.5])
def test_the_slower_rank_decides_how_many_executions_fill_a_window(precision: float | None) -> None:
    devices = (ScriptedDevice(), ScriptedDevice())
    ranks = measure_on_two_ranks(devices, (0.002, 0.004), precision=precision, least_window_s=0.1)
    (_, first, a), (_, second, b) = ranks
    assert isinstance(a, Measurement)
    assert isinstance(b, Measurement)
    assert first.counts == second.counts
    # 1.0 s / 0.004 s executions, or laps of 0.02 s / 0.004 s
    assert first.counts[2] == (250 if precision is None else 5)
    assert (a.time_s, b.time_s) == (pytest.approx(0.002), pytest.approx(0.004))  # each by its own clock


def test_a_rank_whose_clock_is_capped_makes_all_of_them_try_again() -> None:
    devices = (ScriptedDevice(), ScriptedDevice(clock_cap_mhz=1200))
    (_, first, a), (_, second, b) = measure_on_two_ranks(devices, max_retries=2)
    assert isinstance(a, Measurement)
    assert isinstance(b, Measurement)
    assert [device.calls.count(("lock", 1410)) for device in devices] == [3, 3]
    assert first.counts == second.counts
    assert a.valid
    assert b.invalid_reason == "unreachable: asked for 1410 MHz, seen 1200 MHz (sw_power_cap)"


def test_a_void_reading_on_one_rank_makes_all_of_them_measure_again() -> None:
    def breaks(rank: int, runner: CollectiveRunner) -> None:
        prepare = runner.prepare

        def prepare_with_a_reset(partition: Partition, schedule: Schedule | None) -> Callable[[int], None]:
            run = prepare(partition, schedule)

            def run_and_reset(num_runs: int) -> None:
                run(num_runs)
                if rank == 1 and len(runner.counts) == 3:  # the first window
                    runner._device.reset_counter()

            return run_and_reset

        runner.prepare = prepare_with_a_reset  # type: ignore[method-assign]

    (_, first, a), (_, second, b) = measure_on_two_ranks((ScriptedDevice(), ScriptedDevice()), breaks=breaks)
    assert isinstance(a, Measurement)
    assert isinstance(b, Measurement)
    assert a.valid
    assert b.valid
    assert first.counts == second.counts
    assert len(first.counts) == 2 * 3  # two attempts of two warm-ups and a window


def test_what_fails_on_one_rank_is_raised_on_both() -> None:
    def breaks(rank: int, runner: CollectiveRunner) -> None:
        def refuse(partition: Partition, schedule: Schedule | None) -> Any:
            raise RuntimeError("out of memory")

        if rank == 1:
            runner.prepare = refuse  # type: ignore[method-assign]

    (_, _, first), (_, _, second) = measure_on_two_ranks((ScriptedDevice(), ScriptedDevice()), breaks=breaks)
    assert isinstance(first, PeerFailedError)
    assert str(second) == "out of memory"


def refuses_to_lock(device: ScriptedDevice) -> None:
    device.lock_frequency = Mock(side_effect=DeviceError("GPU is lost"))  # type: ignore[method-assign]


def tells_nothing_more(device: ScriptedDevice) -> None:
    """From the first runs of the window on."""
    told = itertools.chain([()], itertools.repeat(DeviceError("GPU is lost")))
    device.throttle_reasons = Mock(side_effect=told)  # type: ignore[method-assign]


@pytest.mark.parametrize("precision", [None, 0.5])
@pytest.mark.parametrize("lose", [refuses_to_lock, tells_nothing_more])
def test_a_gpu_that_is_lost_leaves_no_other_rank_alone_in_a_collective(
    lose: Callable[[ScriptedDevice], None], precision: float | None
) -> None:
    devices = (ScriptedDevice(), ScriptedDevice())
    lose(devices[1])
    (_, first, a), (_, second, b) = measure_on_two_ranks(devices, precision=precision, least_window_s=0.4)
    assert isinstance(a, PeerFailedError)
    assert str(b) == "GPU is lost"
    assert first.counts == second.counts


def test_what_is_prepared_is_released_when_a_batch_of_measurements_ends_however_it_ends() -> None:
    device = ScriptedDevice()
    runner = CollectiveRunner(device, threading.Barrier(1), 0.1)
    meter = PartitionMeter(device, runner)
    meter.measure_all([(PARTITION, CONFIG), (PARTITION, PartitionConfig("fwd_attn", 900))], np.random.default_rng(0))
    assert runner.num_released == 1
    with pytest.raises(DeviceError, match="905"):
        meter.measure_all([(PARTITION, PartitionConfig("fwd_attn", 905))], np.random.default_rng(0))
    assert runner.num_released == 2


def test_the_clock_comes_back_where_freeing_memory_fails() -> None:
    device = ScriptedDevice()
    runner = CollectiveRunner(device, threading.Barrier(1), 0.1)
    runner.release = Mock(side_effect=RuntimeError("CUDA error: an illegal memory access"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        PartitionMeter(device, runner).measure_all([(PARTITION, CONFIG)], np.random.default_rng(0))
    assert device.requested_frequency_mhz() is None
