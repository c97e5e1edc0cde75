"""What the store is told of a run that did not fit into memory, by whichever rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recurring_trainings import POWER_W, STEP_S, JobTrainer, job

from energy_lightning.callbacks.run_meter import Spent
from energy_lightning.callbacks.verdicts import is_out_of_memory
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, Run


def runs(folder: Path) -> list[Run]:
    return BatchSizeOptimizer.of_store(folder / "job.sqlite").runs()


def lines(trainer: JobTrainer) -> list[str]:
    return [line.removeprefix("energy_lightning: ") for line in trainer.lightning_module.lines]


class Frozen(ScriptedDevice):
    """A virtual clock that stands still, as an emulated GPU's in the first step."""

    def work(self, time_s: float) -> None: ...


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_a_first_step_out_of_memory_is_reported_with_its_wall_time(error: BaseException, tmp_path: Path) -> None:
    device = Frozen()
    device.emulated = True
    trainer = JobTrainer(device, [job(tmp_path, device)])
    with pytest.raises(type(error)):
        trainer.fit(fails=(0, error))
    (run,) = runs(tmp_path)
    assert (run.batch_size, run.state, run.reached_target, run.energy_j) == (32, "done", False, None)
    assert run.time_s is not None
    assert 0.0 < run.time_s < 60.0
    assert BatchSizeOptimizer.of_store(tmp_path / "job.sqlite").emulated
    assert trainer.callbacks[0].verdict == "out of memory"
    told = f"did not reach its target (out of memory): energy not measured, {run.time_s:.4g} s (EMULATED)"
    assert lines(trainer)[-1] == f"the run with batch size 32 {told}"
    again = JobTrainer(device, [job(tmp_path, device)])
    again.call("setup", "fit")
    assert again.lightning_module.batch_size != 32


def test_what_was_spent_since_the_last_look_counts_when_memory_runs_out(tmp_path: Path) -> None:
    device = ScriptedDevice()
    with pytest.raises(MemoryError):
        JobTrainer(device, [job(tmp_path, device)]).fit(fails=(17, MemoryError()))
    (run,) = runs(tmp_path)
    assert (run.time_s, run.energy_j) == pytest.approx((18 * STEP_S, 18 * STEP_S * POWER_W))


@pytest.mark.parametrize("emulated", [None, True, False])
def test_memory_that_runs_out_before_a_first_batch(emulated: bool | None, tmp_path: Path) -> None:
    """In the sanity check or on the way to the GPU: reported as one of the store's kind, once that is known."""
    if emulated is not None:
        known = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=400.0, store=tmp_path / "job.sqlite")
        known.observe(32, energy_j=964.0, time_s=4.0, reached_target=True, emulated=emulated)
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    trainer.call("setup", "fit")
    trainer.call("on_exception", torch.OutOfMemoryError("CUDA out of memory"))
    trainer.call("teardown", "fit")
    assert [run.reached_target for run in runs(tmp_path)] == ([] if emulated is None else [True, False])
    assert trainer.callbacks[0].verdict == "out of memory"
    assert ("is not reported" in lines(trainer)[-1]) is (emulated is None)


def test_a_resumed_run_that_is_out_of_memory_before_it_goes_on_stays_as_it_was(tmp_path: Path) -> None:
    """It fitted before; what it has cost is in its row, and was in a second one without that."""
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], max_steps=20)
    trainer.fit(save_at=20)
    known = runs(tmp_path)
    later = JobTrainer(device, [job(tmp_path, device)])
    later.call("setup", "fit")
    later.call("on_load_checkpoint", trainer.checkpoint)
    later.call("on_exception", torch.OutOfMemoryError("CUDA out of memory"))
    later.call("teardown", "fit")
    assert runs(tmp_path) == known
    assert later.callbacks[0].verdict == "out of memory"
    assert lines(later)[-1] == "the run with batch size 32 is not reported: OutOfMemoryError ended it"
    later = JobTrainer(device, [job(tmp_path, device)])
    with pytest.raises(MemoryError):
        later.fit(resumed=trainer.checkpoint, fails=(25, MemoryError()))
    assert [(run.run_id, run.time_s) for run in runs(tmp_path)] == [(1, 26 * STEP_S)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lambda: torch.empty(1 << 50), True),
        (lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`")), True),
        (lambda: (_ for _ in ()).throw(RuntimeError("the user's own bug")), False),
        (lambda: (_ for _ in ()).throw(ValueError("can't allocate memory")), False),
    ],
    ids=["CPU", "cuBLAS", "bug", "other"],
)
def test_what_counts_as_out_of_memory(error: Callable[[], Any], expected: bool) -> None:
    with pytest.raises((RuntimeError, ValueError)) as raised:
        error()
    assert is_out_of_memory(raised.value) is expected


def two_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[JobTrainer]:
    """In their first step, 5 s on each of two emulated GPUs with a limit of 250 W."""
    trainers = []
    for rank in range(2):
        device = ScriptedDevice()
        device.uuid, device.emulated = f"GPU-{rank}", True
        trainer = JobTrainer(device, [job(folder, device), SimpleNamespace(power_limit_w=250.0)])
        trainer.world_size, trainer.global_rank, trainer.is_global_zero = 2, rank, rank == 0
        trainers.append(trainer)
    told: list[Any] = []
    trainers[0].strategy.broadcast = lambda value: told.append(value) or value
    trainers[1].strategy.broadcast = lambda value: told.pop(0)
    spent = [Spent(gpu=gpu, time_s=0.0, energy_j=0.0, limit_w=400.0, void_s=0.0) for gpu in (1.0, 2.0)]
    for module in ("job_run", "run_meter", "shared_device"):
        monkeypatch.setattr(
            f"energy_lightning.callbacks.{module}.gather_objects",
            lambda trainer, own: [True, True] if isinstance(own, bool) else spent,
        )
    for hook, arguments in (("setup", ("fit",)), ("on_train_start", ()), ("on_train_batch_start", (None, 0))):
        for trainer in trainers:
            trainer.call(hook, *arguments)
    for trainer in trainers:
        trainer.device.work(5.0)
    return trainers


@pytest.mark.parametrize(
    ("first", "error"),
    [(1, RuntimeError("Connection closed by peer")), (1, SystemExit()), (1, MemoryError()), (0, MemoryError())],
    ids=["rank 0 loses the connection", "rank 0 is told to end", "rank 0 as well", "rank 1 as well"],
)
def test_memory_that_runs_out_on_any_rank_is_reported_once(
    first: int, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first report stands: one that takes it back might be killed before it has reported itself."""
    trainers = two_ranks(tmp_path, monkeypatch)
    trainers[first].call("on_exception", torch.OutOfMemoryError())
    trainers[1 - first].device.work(1.0)
    trainers[1 - first].call("on_exception", error)
    assert [trainer.callbacks[0].verdict for trainer in trainers] == ["out of memory"] * 2
    (run,) = runs(tmp_path)
    assert (run.state, run.reached_target, run.time_s) == ("done", False, pytest.approx(5.0))
    assert (run.energy_j, run.power_limit_w) == (pytest.approx(2 * 5.0 * POWER_W), 250.0)
    assert BatchSizeOptimizer.of_store(tmp_path / "job.sqlite").emulated
    assert not any("not reported" in line for line in [*lines(trainers[0]), caplog.text])
    assert sum("did not reach its target" in line for line in lines(trainers[0])) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()], ids=["Ctrl-C", "SIGTERM"])
def test_another_rank_that_is_interrupted_says_so_too(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers = two_ranks(tmp_path, monkeypatch)
    for trainer in trainers:
        trainer.call("on_exception", error)
        assert trainer.callbacks[0].verdict == "interrupted"
    assert [run.state for run in runs(tmp_path)] == ["dead"]


def test_a_run_that_another_process_took_to_its_target_did_not_run_out_of_memory(tmp_path: Path) -> None:
    """It resumed a checkpoint of this one, which is ended then."""
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    trainer.call("setup", "fit")
    trainer.call("on_train_start")
    trainer.call("on_train_batch_start", None, 0)
    other = BatchSizeOptimizer.of_store(tmp_path / "job.sqlite")
    other.adopt(1, 32)
    other.observe(32, energy_j=1.0, time_s=1.0, reached_target=True)
    trainer.call("on_exception", KeyboardInterrupt())
    assert trainer.callbacks[0].verdict == "interrupted"
    assert "memory" not in lines(trainer)[-1]
