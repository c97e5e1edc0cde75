"""Two ranks as two threads: the same collectives in the same order on both, whatever fails on one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_trainer import FakeStrategy, FakeTrainer, RefusingDevice, all_callbacks

from energy_lightning.callbacks.ranks import merge_ranks
from energy_lightning.measure import PeerFailedError
from energy_lightning.types import Budget, BudgetError, DeviceError, Measurement, MeasurementError

TIMEOUT_S = 20.0  # a rank that waits for ever breaks the barrier instead


class Group:
    """Broadcast and gather between two threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=TIMEOUT_S)
        self._slots: list[Any] = [None, None]
        self.num_collectives = [0, 0]

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = value
        self.num_collectives[rank] += 1
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values


class RankStrategy(FakeStrategy):
    """One of the two."""

    def __init__(self, folder: Path, group: Group, rank: int, **options: Any) -> None:
        super().__init__(folder, **options)
        self.group, self.rank = group, rank

    def broadcast(self, value: Any) -> Any:
        return self.group.exchange(self.rank, value)[0]


def gather(trainer: Any, values: Sequence[float]) -> list[list[float]]:
    strategy = trainer.strategy
    rows: list[list[float]] = strategy.group.exchange(strategy.rank, list(values))
    return rows


def run_two_ranks(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    prepare: Callable[[FakeTrainer], None] = lambda trainer: None,
    **options: Any,
) -> tuple[list[FakeTrainer], list[BaseException | None], Group]:
    monkeypatch.setattr("energy_lightning.callbacks.partition_profiler.gather_rows", gather)
    monkeypatch.setattr("energy_lightning.callbacks.energy_monitor.gather_rows", gather)
    monkeypatch.setattr("energy_lightning.callbacks.job.gather_rows", gather)
    group, errors = Group(), list[BaseException | None]([None, None])
    trainers = []
    for rank in range(2):
        trainer = FakeTrainer(RankStrategy(folder, group, rank, **options), all_callbacks(), max_steps=12)
        trainer.world_size, trainer.global_rank, trainer.is_global_zero = 2, rank, rank == 0
        prepare(trainer)
        trainers.append(trainer)

    def fit(rank: int) -> None:
        try:
            trainers[rank].fit()
        except (ValueError, threading.BrokenBarrierError) as error:
            errors[rank] = error

    threads = [threading.Thread(target=fit, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return trainers, errors, group


def test_both_ranks_get_the_decision_of_rank_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second), errors, group = run_two_ranks(tmp_path, monkeypatch)
    assert errors == [None, None]
    assert group.num_collectives[0] == group.num_collectives[1]
    assert first.callbacks[2].plan is not None
    assert first.callbacks[2].outcome == second.callbacks[2].outcome
    assert first.forward_mhz == second.forward_mhz
    assert second.strategy.applied == [second.callbacks[2].plan]


def test_both_ranks_measure_and_only_rank_zero_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second), _, _ = run_two_ranks(tmp_path, monkeypatch)
    rows = (tmp_path / "measurements.jsonl").read_text().splitlines()
    assert first.callbacks[1].num_measured == second.callbacks[1].num_measured == len(rows)


def test_the_total_is_the_sum_over_both_gpus_on_both_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers, _, _ = run_two_ranks(tmp_path, monkeypatch)
    monitors = [trainer.callbacks[0] for trainer in trainers]
    assert monitors[0].total == monitors[1].total
    assert monitors[0].total.energy_j == pytest.approx(sum(monitor.own.energy_j for monitor in monitors))


def test_a_failure_on_one_rank_ends_profiling_on_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_rank_one(trainer: FakeTrainer) -> None:
        def fail(*_: object, **__: object) -> None:
            raise DeviceError("the GPU fell off the bus")

        if trainer.global_rank == 1:
            trainer.strategy.device.run_partition = fail

    trainers, errors, _ = run_two_ranks(tmp_path, monkeypatch, prepare=break_rank_one)
    assert errors == [None, None]
    assert [trainer.global_step for trainer in trainers] == [12, 12]
    for trainer, words in zip(trainers, ("failed on rank 1", "fell off the bus"), strict=True):
        assert [line for line in trainer.lightning_module.lines if words in line]


def test_a_rank_whose_measuring_fails_tells_why_and_the_first_rank_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_meter(trainer: FakeTrainer) -> None:
        failures = {0: PeerFailedError("on another rank"), 1: OSError("the driver hangs")}
        meter = Mock(measure_all=Mock(side_effect=failures[trainer.global_rank]))
        monkeypatch.setattr(trainer.callbacks[1], "_open_meter", lambda *_, **__: meter)

    (first, _), errors, _ = run_two_ranks(tmp_path, monkeypatch, prepare=break_meter)
    assert errors == [None, None]
    (line,) = [line for line in first.lightning_module.lines if "profiling stopped" in line]
    assert line.endswith("measuring failed on rank 1; its log says why")
    assert "energy_lightning: rank 1: measuring failed: OSError: the driver hangs" in caplog.messages


def test_a_monitor_that_fails_on_one_rank_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_rank_one(trainer: FakeTrainer) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError("the counter is gone")

        if trainer.global_rank == 1:
            monkeypatch.setattr(trainer.callbacks[0], "_read_step", fail)

    trainers, errors, _ = run_two_ranks(tmp_path, monkeypatch, prepare=break_rank_one)
    assert errors == [None, None]
    first, second = (trainer.callbacks[0].total for trainer in trainers)
    assert first == second
    assert not first.complete


@pytest.mark.parametrize("after", [0, 40], ids=["never had", "lost while profiling"])
def test_without_the_permission_to_clock_one_gpu_both_are_profiled_at_the_running_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    def refuse_rank_one(trainer: FakeTrainer) -> None:
        if trainer.global_rank == 1:
            trainer.strategy.device = RefusingDevice(after)

    trainers, errors, group = run_two_ranks(tmp_path, monkeypatch, prepare=refuse_rank_one)
    assert errors == [None, None]
    assert group.num_collectives[0] == group.num_collectives[1]
    for trainer in trainers:
        assert trainer.callbacks[2].plan.forward.frequency_mhz is None
        assert trainer.forward_mhz[-1] == trainer.backward_mhz[-1] == 1410
    assert "clock: running" in (tmp_path / "plan.yaml").read_text()  # though the clock of rank 0's GPU may be set
    said = [line for line in trainers[0].lightning_module.lines if "at the running clock" in line]
    assert len(said) == (2 if after else 1)  # the plan's own line, and that the permission was lost
    assert "plain execution at the running clock" in said[-1]


@pytest.mark.parametrize(("problem", "expected"), [("budget", BudgetError), ("file", MeasurementError)])
def test_an_error_of_rank_zero_is_raised_on_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str, expected: type[Exception]
) -> None:
    if problem == "file":
        (tmp_path / "measurements.jsonl").write_text("not ours\n")
    budget = Budget("deadline", 1e-3) if problem == "budget" else None
    _, errors, _ = run_two_ranks(tmp_path, monkeypatch, budget=budget)
    assert [type(error) for error in errors] == [expected, expected]


def measured(time_s: float, energy_j: float | None, reason: str | None = None) -> Measurement:
    return Measurement(time_s=time_s, energy_j=energy_j, invalid_reason=reason)


def test_ranks_merge_into_the_slowest_time_and_the_mean_energy() -> None:
    own = [measured(1.0, 10.0), measured(2.0, 20.0)]
    rows = [[1.0, 10.0, 1.0, 2.0, 20.0, 1.0], [1.5, 14.0, 1.0, 1.0, 30.0, 1.0]]
    assert [(m.time_s, m.energy_j, m.valid) for m in merge_ranks(own, rows)] == [(1.5, 12.0, True), (2.0, 25.0, True)]


def test_what_is_invalid_or_unknown_on_one_rank_is_so_for_all() -> None:
    own = [measured(1.0, 10.0), measured(2.0, 20.0)]
    rows = [[1.0, 10.0, 1.0, 2.0, 20.0, 1.0], [1.0, 10.0, 0.0, 2.0, float("nan"), 1.0]]
    first, second = merge_ranks(own, rows)
    assert first.invalid_reason == "invalid on rank 1"
    assert (second.valid, second.energy_j) == (True, None)


def test_a_reason_of_this_rank_is_kept() -> None:
    (merged,) = merge_ranks([measured(1.0, None, "unreachable")], [[1.0, float("nan"), 0.0]])
    assert merged.invalid_reason == "unreachable"
