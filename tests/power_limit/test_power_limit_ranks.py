"""Two ranks as two threads: one decision, one reduction a window, a shared GPU set and counted once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from limited_gpus import LimitedGPU, PowerLimitOptimizer, StepTrainer, step_of

from energy_lightning.types import DeviceError

TIMEOUT_S = 20.0  # a rank that waits for ever breaks the barrier instead


class Group:
    """Broadcast and gather between two threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=TIMEOUT_S)
        self._slots: list[Any] = [None, None]

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = value
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values


def run_two(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[LimitedGPU, LimitedGPU],
    *,
    before_step: Callable[[int, int], None] = lambda rank, step: None,
) -> list[StepTrainer]:
    group = Group()
    monkeypatch.setattr(
        "energy_lightning.power_limit.gather_objects",
        lambda trainer, own: group.exchange(trainer.global_rank, own),
    )
    trainers, errors = [], list[BaseException]()
    for rank, gpu in enumerate(gpus):
        callback = PowerLimitOptimizer(objective="energy", warmup_steps=2, profile_steps=5, device=gpu)
        trainer = StepTrainer(folder, gpu, [callback])
        trainer.world_size, trainer.global_rank, trainer.is_global_zero = 2, rank, rank == 0
        trainer.strategy = SimpleNamespace(
            root_device=SimpleNamespace(type="cpu"), broadcast=lambda value, rank=rank: group.exchange(rank, value)[0]
        )
        trainers.append(trainer)

    def fit(rank: int) -> None:
        try:
            trainers[rank].fit(100, before_step=lambda step: before_step(rank, step))
        except (ValueError, threading.BrokenBarrierError) as error:
            errors.append(error)

    threads = [threading.Thread(target=fit, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return trainers


def settled(trainers: list[StepTrainer]) -> list[Any]:
    return [trainer.callbacks[0].power_limit_w for trainer in trainers]


def test_two_gpus_add_up_and_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = LimitedGPU(uuid="GPU-a"), LimitedGPU(uuid="GPU-b", before_w=200.0)
    gpus[1].power_limit_range_w = (120.0, 300.0)  # what both take is tried, none above what either had: 200, ... 125
    trainers = run_two(tmp_path, monkeypatch, gpus)
    profile = trainers[0].callbacks[0].profile
    assert [one.power_limit_w for one in profile] == [200.0, 175.0, 150.0, 125.0]
    for one in profile:
        time_s, energy_j = step_of(one.power_limit_w)
        assert (one.time_s, one.energy_j) == pytest.approx((time_s, 2 * energy_j), rel=1e-9)
    assert trainers[1].callbacks[0].profile == profile
    assert settled(trainers) == [125.0, 125.0]
    assert trainers[0].limits_w[9:] == trainers[1].limits_w[9:]
    assert [gpu.power_limit_w for gpu in gpus] == [250.0, 200.0]


def test_a_shared_gpu_is_set_by_one_rank_and_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = LimitedGPU(uuid="GPU-a"), LimitedGPU(uuid="GPU-a")

    def same_board(rank: int, step: int) -> None:
        second.power_limit_w = first.power_limit_w

    trainers = run_two(tmp_path, monkeypatch, (first, second), before_step=same_board)
    assert second.asked_w == []
    for one in trainers[0].callbacks[0].profile:
        assert one.energy_j == pytest.approx(step_of(one.power_limit_w)[1], rel=0.2)


def test_a_failure_on_one_rank_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(LimitedGPU):
        def set_power_limit(self, power_limit_w: float) -> float:
            if power_limit_w == 200.0:
                raise DeviceError("the driver is busy")
            return super().set_power_limit(power_limit_w)

    trainers = run_two(tmp_path, monkeypatch, (LimitedGPU(uuid="GPU-a"), Refusing(uuid="GPU-b")))
    assert settled(trainers) == [100.0, 100.0]
    said = "\n".join(trainers[0].lightning_module.lines)
    assert "200 W is left out: rank 1: DeviceError: the driver is busy" in said


def test_one_rank_without_permission_keeps_all_from_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = LimitedGPU(uuid="GPU-a"), LimitedGPU(uuid="GPU-b")
    gpus[1].can_set_power_limit, gpus[1].mode_reason = False, "needs root"
    trainers = run_two(tmp_path, monkeypatch, gpus)
    assert settled(trainers) == [None, None]
    assert gpus[0].asked_w == []
    assert trainers[0].lightning_module.lines == [
        "energy_lightning: no power limit is tried, training goes on: rank 1: needs root"
    ]


def test_gpus_without_a_limit_in_common_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = LimitedGPU(uuid="GPU-a"), LimitedGPU(uuid="GPU-b")
    gpus[1].power_limit_range_w = (300.0, 700.0)
    trainers = run_two(tmp_path, monkeypatch, gpus)
    assert settled(trainers) == [None, None]
    assert gpus[0].asked_w == gpus[1].asked_w == []
    (line,) = trainers[0].lightning_module.lines
    assert line.endswith("the GPUs take no limit in common (rank 0 100 to 260 W; rank 1 300 to 700 W)")
