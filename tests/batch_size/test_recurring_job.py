"""RecurringJob on a scripted GPU: what is set, when a run ends, and what the store is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recurring_trainings import NEEDED, POWER_W, JobTrainer, Module, RecurringJob, job

from energy_lightning.callbacks.shared_device import DeviceChoice
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, RecurringError, Run
from energy_lightning.workload import Workload

LIMITS_W = {8: 150.0, 16: 250.0, 32: 200.0, 64: None}


def runs(folder: Path) -> list[Run]:
    return BatchSizeOptimizer.of_store(folder / "job.sqlite").runs()


def recur(folder: Path, **options: Any) -> tuple[Any, JobTrainer]:
    device = ScriptedDevice()
    callback = job(folder, device, **options)
    trainer = JobTrainer(device, [callback])
    trainer.fit()
    return callback, trainer


def test_the_first_run_takes_the_default_ends_at_the_target_and_is_reported_once(tmp_path: Path) -> None:
    callback, trainer = recur(tmp_path)
    assert (callback.batch_size, callback.verdict, trainer.global_step) == (32, "reached", NEEDED[32])
    (run,) = runs(tmp_path)
    assert (run.batch_size, run.state, run.reached_target) == (32, "done", True)
    assert (run.energy_j, run.time_s) == pytest.approx((NEEDED[32] * POWER_W, NEEDED[32]))
    optimizer = BatchSizeOptimizer.of_store(tmp_path / "job.sqlite")
    assert optimizer.cost.max_power_w == 400.0  # the GPU's highest limit
    assert not optimizer.emulated


def test_batch_size_and_learning_rate_are_set_where_loaders_and_optimizers_look(tmp_path: Path) -> None:
    for expected in ({32: 0.1}, {16: 0.05, 64: 0.2}):  # the second run tries a neighbour
        _, trainer = recur(tmp_path, scaling="linear")
        module = trainer.lightning_module
        assert module.lr == pytest.approx(expected[module.batch_size])
        assert module.hparams["batch_size"] == module.batch_size


@pytest.mark.parametrize("fresh", [True, False])
def test_a_callback_that_is_used_again_scales_each_modules_rate_once(fresh: bool, tmp_path: Path) -> None:
    """0.1 is the rate of batch size 32, whichever run a new module is for; a module that comes again keeps its own."""
    device = ScriptedDevice()
    callback, module, sizes = job(tmp_path, device, scaling="linear"), Module(), list[int]()
    for _ in range(4):
        trainer = JobTrainer(device, [callback])
        trainer.lightning_module = Module() if fresh else module
        trainer.fit()
        sizes.append(trainer.lightning_module.batch_size)
        assert trainer.lightning_module.lr == pytest.approx(0.1 * sizes[-1] / 32)
    assert len(set(sizes)) > 1


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 2), (2.0, 8), (0.1, 1)])
def test_an_emulated_gpu_gets_as_many_sequences_as_the_batch(ratio: float, expected: int) -> None:
    shape = Workload.preset("bert_base", microbatch_size=4, sequence_length=128)
    scaled = DeviceChoice.parse(None, shape, "a100-sxm4-40gb").scaled(ratio).workload
    assert scaled == shape.with_sizes(microbatch_size=expected)
    assert DeviceChoice().scaled(ratio) == DeviceChoice()


def test_runs_that_get_too_dear_are_stopped_and_the_cheapest_size_is_found(tmp_path: Path) -> None:
    verdicts = {}
    for _ in range(12):
        callback, trainer = recur(tmp_path, check_every_n_steps=5)
        verdicts.setdefault(callback.batch_size, callback.verdict)
        if callback.batch_size == 64:  # stopped at the first look past twice the least: of 32's, or of 16's steps
            assert trainer.global_step in (65, 85, 125)
    assert verdicts[16] == "reached"
    assert verdicts.get(64, "too dear") == "too dear"
    assert BatchSizeOptimizer.of_store(tmp_path / "job.sqlite").best() == 16
    done = runs(tmp_path)
    assert len(done) == 12
    assert {run.reached_target for run in done if run.batch_size == 64} <= {False}


def test_a_run_past_twice_the_least_cost_is_stopped_at_the_next_look(tmp_path: Path) -> None:
    """The least is five steps' cost: ten steps are not past twice that, eleven are, and fifteen are looked at."""
    known = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=400.0, store=tmp_path / "job.sqlite")
    known.observe(32, energy_j=5 * POWER_W, time_s=5.0, reached_target=True)
    callback, trainer = recur(tmp_path, check_every_n_steps=5)
    assert (callback.verdict, trainer.global_step) == ("too dear", 15)
    assert [run.reached_target for run in runs(tmp_path)] == [True, False]


def test_a_job_without_steps_leaves_nothing(tmp_path: Path) -> None:
    device = ScriptedDevice()
    callback = job(tmp_path, device)
    JobTrainer(device, [callback], max_steps=0).fit()
    assert (runs(tmp_path), callback.verdict) == ([], "no run")


def test_a_run_that_ends_without_the_target_is_reported_as_such(tmp_path: Path) -> None:
    device = ScriptedDevice()
    callback = job(tmp_path, device)
    JobTrainer(device, [callback], max_steps=20).fit()
    (run,) = runs(tmp_path)
    assert (run.reached_target, run.time_s, callback.verdict) == (False, 20.0, "ended")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the user's own bug")], ids=["Ctrl-C", "bug"])
def test_an_interrupted_run_says_nothing_of_its_size(error: BaseException, tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    with pytest.raises(type(error)):
        trainer.fit(fails=(15, error))
    (run,) = runs(tmp_path)
    assert (run.state, run.energy_j) == ("dead", None)
    verdict, why = {
        KeyboardInterrupt: ("interrupted", "it was interrupted; resumed from a checkpoint it goes on"),
        RuntimeError: ("failed", "RuntimeError ended it"),
    }[type(error)]
    assert trainer.callbacks[0].verdict == verdict
    assert trainer.lightning_module.lines[-1].endswith(f"the run with batch size 32 is not reported: {why}")
    callback, _ = recur(tmp_path)
    assert callback.batch_size == 32  # still nothing is known


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_a_run_out_of_memory_did_not_reach_the_target(error: BaseException, tmp_path: Path) -> None:
    device = ScriptedDevice()
    with pytest.raises(type(error)):
        JobTrainer(device, [job(tmp_path, device)]).fit(fails=(15, error))
    (run,) = runs(tmp_path)
    assert (run.state, run.reached_target) == ("done", False)
    assert run.time_s >= 10.0


@pytest.mark.parametrize("loads_late", [False, True])
def test_a_resumed_run_goes_on_under_its_size_with_what_it_has_spent(loads_late: bool, tmp_path: Path) -> None:
    recur(tmp_path)
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device, seed=1)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(save_at=20, fails=(25, KeyboardInterrupt()))
    size = trainer.callbacks[0].batch_size
    device = ScriptedDevice()
    later = JobTrainer(device, [job(tmp_path, device, seed=2)])
    later.loads_late = loads_late
    later.fit(resumed=trainer.checkpoint)
    assert later.callbacks[0].batch_size == later.lightning_module.batch_size == size
    done = [run for run in runs(tmp_path) if run.state == "done"]
    assert [run.batch_size for run in done] == [32, size]
    steps = min(NEEDED[size], 150)
    assert done[1].run_id == 2  # the suggestion that was interrupted
    assert done[1].time_s == pytest.approx(later.global_step)
    assert done[1].energy_j == pytest.approx(later.global_step * POWER_W)
    assert later.global_step == steps or done[1].reached_target is False


def test_a_resumed_run_whose_size_is_no_longer_offered_is_named(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(save_at=20, fails=(25, KeyboardInterrupt()))
    given = {
        "default": 8,
        "store": tmp_path / "job.sqlite",
        "monitor": "val_loss",
        "target": 0.5,
        "learning_rate": "lr",
    }
    later = JobTrainer(device, [RecurringJob([8, 16], device=device, **given)])
    with pytest.raises(RecurringError, match=r"a run with batch size 32, which is none of \[8, 16\]: add it"):
        later.fit(resumed=trainer.checkpoint)
    assert [run.state for run in runs(tmp_path)] == ["dead"]  # the interrupted one; the suggestion is withdrawn


def test_two_trainings_of_one_job_at_once_each_report(tmp_path: Path) -> None:
    devices = ScriptedDevice(), ScriptedDevice()
    trainers = [JobTrainer(device, [job(tmp_path, device)]) for device in devices]
    trainers[0].call("setup", "fit")
    trainers[1].fit()
    trainers[0].call("on_fit_start")
    trainers[0].call("on_train_start")
    trainers[0].call("on_train_batch_start", None, 0)
    devices[0].work(5.0)
    trainers[0].callback_metrics["val_loss"] = 1.0
    trainers[0].call("on_train_end")
    assert sorted((run.state, run.reached_target) for run in runs(tmp_path)) == [("done", False), ("done", True)]


class Limit:
    """As PowerLimitOptimizer: every batch size has its own, once it is settled."""

    power_limit_w: float | None = None

    def on_train_batch_end(self, trainer: JobTrainer, module: Module, *_: Any) -> None:
        self.power_limit_w = LIMITS_W[module.batch_size]


def test_a_run_says_under_which_limit_it_ran_and_is_compared_with_those_under_others(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for _ in range(8):
        device = ScriptedDevice()
        JobTrainer(device, [Limit(), job(tmp_path, device)]).fit()
        recur(tmp_path / "plain")
    limited, plain = runs(tmp_path), runs(tmp_path / "plain")
    assert [run.power_limit_w for run in limited] == [LIMITS_W[run.batch_size] for run in limited]
    assert [replace(run, power_limit_w=None) for run in limited] == plain


def test_void_windows_count_at_the_mean_power_of_the_others(tmp_path: Path) -> None:
    class Reloaded(ScriptedDevice):
        def work(self, time_s: float) -> None:
            super().work(time_s)
            if round(self.now_s()) == 15:
                self.reset_counter()

    device = Reloaded()
    callback = job(tmp_path, device, check_every_n_steps=10)
    trainer = JobTrainer(device, [callback])
    trainer.fit()
    (run,) = runs(tmp_path)
    assert run.energy_j == pytest.approx(NEEDED[32] * POWER_W)
    assert "10 s of it at mean power" in trainer.lightning_module.lines[-1]


def test_a_job_without_energy_is_refused_unless_time_alone_counts(tmp_path: Path) -> None:
    device = ScriptedDevice(energy_source="none")
    with pytest.raises(RecurringError, match="eta=0"):
        JobTrainer(device, [job(tmp_path, device)]).fit()
    assert runs(tmp_path) == []
    (tmp_path / "time").mkdir()
    JobTrainer(device, [job(tmp_path / "time", device, eta=0.0)]).fit()
    assert [(run.reached_target, run.energy_j, run.time_s) for run in runs(tmp_path / "time")] == [(True, None, 60.0)]


def test_emulated_runs_do_not_enter_a_store_of_measured_ones(tmp_path: Path) -> None:
    recur(tmp_path)
    device = ScriptedDevice()
    device.emulated = True
    with pytest.raises(RecurringError, match="holds measured runs and this one is emulated"):
        JobTrainer(device, [job(tmp_path, device)]).fit()
    assert [run.state for run in runs(tmp_path)] == ["done"]


class Spoiling(ScriptedDevice):
    """After 15 s the store is no store any more."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self.store = store

    def work(self, time_s: float) -> None:
        super().work(time_s)
        if round(self.now_s()) == 15:
            self.store.write_text("not a database\n" * 100)


def test_a_store_that_fails_meanwhile_ends_no_training_and_the_figures_are_told(tmp_path: Path) -> None:
    store = tmp_path / "job.sqlite"
    device = Spoiling(store)
    callback = job(tmp_path, device, check_every_n_steps=5)
    trainer = JobTrainer(device, [callback])
    trainer.fit()
    assert (callback.verdict, trainer.global_step) == ("reached", NEEDED[32])
    lines = trainer.lightning_module.lines
    assert [line.split(": ")[1] for line in lines[1:]] == [
        "training goes on, however dear it gets",
        "the run is not reported",
    ]
    figures = f"observe(32, energy_j={NEEDED[32] * POWER_W!r}, time_s={float(NEEDED[32])!r}, reached_target=True"
    assert f"{figures}, num_evaluations=6)" in lines[-1]  # validated every ten steps
    assert store.read_text() == "not a database\n" * 100


def test_a_users_error_is_not_hidden_by_a_store_that_fails(tmp_path: Path) -> None:
    device = Spoiling(tmp_path / "job.sqlite")
    trainer = JobTrainer(device, [job(tmp_path, device)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(fails=(25, KeyboardInterrupt()))
    assert "does not know that this run is over" in trainer.lightning_module.lines[-2]


def test_a_fast_dev_run_touches_nothing(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], max_steps=1)
    trainer.fast_dev_run = True
    trainer.fit()
    assert not (tmp_path / "job.sqlite").exists()
    assert trainer.callbacks[0].verdict == "no run"
    assert [line for line in trainer.lightning_module.lines if "no run reported in a fast_dev_run" in line]
