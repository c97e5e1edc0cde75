"""RecurringJob with settings, metrics, attributes, rates and stores that cannot be, and twice in one Trainer."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recurring_trainings import JobTrainer, RecurringJob, job

from energy_lightning.callbacks.attributes import change_attribute
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, RecurringError, StoreError
from energy_lightning.types import StrategyError


def states(folder: Path) -> list[str]:
    return [run.state for run in BatchSizeOptimizer.of_store(folder / "job.sqlite").runs()]


def test_a_run_that_never_logged_its_metric_says_nothing_of_its_size(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device, monitor="val_los")])
    trainer.fit()
    assert states(tmp_path) == ["dead"]
    assert trainer.lightning_module.lines[-1].endswith("it never logged 'val_los' (monitor); logged: val_loss")


def test_that_no_size_has_reached_the_target_is_told_as_all_else_is(tmp_path: Path) -> None:
    """It was a warning of Python's, which named a line of ours."""
    known = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=400.0, store=tmp_path / "job.sqlite")
    for size in (8, 16, 32, 64):
        known.observe(size, energy_j=1e6, time_s=1e3, reached_target=False)
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit()
    told = [line for line in trainer.lightning_module.lines if "has reached the target in" in line]
    assert len(told) == 1
    assert told[0].startswith("energy_lightning: none of the batch sizes [8, 16, 32, 64] has reached the target")


@pytest.mark.parametrize(("mode", "told"), [("max", 1), ("min", 0)])
def test_a_target_that_the_first_look_finds_reached_is_doubted(mode: str, told: int, tmp_path: Path) -> None:
    """A loss of 1 was past 0.5 as if more were better, and every size was as cheap as could be."""
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device, mode=mode)])
    trainer.fit()
    assert states(tmp_path) == ["done"]
    doubts = [line for line in trainer.lightning_module.lines if "the first look at 'val_loss' (1) found" in line]
    assert len(doubts) == told
    assert all("found the target reached (0.5, mode='max'): see that both are right" in line for line in doubts)


def test_a_run_that_ends_after_a_first_look_that_missed_is_not_doubted(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], max_steps=15)
    trainer.fit()
    assert trainer.callbacks[0].verdict == "ended"
    assert not any("the first look" in line for line in trainer.lightning_module.lines)


def test_a_metric_that_is_nan_is_told_and_is_a_target_missed(tmp_path: Path) -> None:
    class Diverges:
        def on_validation_end(self, trainer: JobTrainer, *_: Any) -> None:
            trainer.callback_metrics["val_loss"] = float("nan")

    device = ScriptedDevice()
    trainer = JobTrainer(device, [Diverges(), job(tmp_path, device)], max_steps=20)
    trainer.fit()
    assert trainer.callbacks[1].verdict == "ended"
    assert trainer.lightning_module.lines[-1].startswith("energy_lightning: 'val_loss' was nan when the run ended")


def test_a_size_of_which_the_loader_has_no_batch_is_told(tmp_path: Path) -> None:
    """With drop_last and few rows: night for night nothing was trained, and nothing said. The store knows."""
    device = ScriptedDevice()
    for num_batches, told in ((0, 1), (1000, 0)):
        trainer = JobTrainer(device, [job(tmp_path, device)], max_steps=0)
        trainer.num_training_batches = num_batches
        trainer.fit()
        lines = trainer.lightning_module.lines
        assert sum("the training loader has no batch of batch size 32, which may" in line for line in lines) == told
    assert states(tmp_path) == ["dead"]


def test_one_that_was_too_dear_before_the_first_validation_is_reported(tmp_path: Path) -> None:
    device = ScriptedDevice()
    known = BatchSizeOptimizer([8, 16, 32, 64], default=32, max_power_w=400.0, store=tmp_path / "job.sqlite")
    known.observe(32, energy_j=1.0, time_s=0.1, reached_target=True)
    JobTrainer(device, [job(tmp_path, device, monitor="val_los", check_every_n_steps=5)]).fit()
    assert states(tmp_path) == ["done", "done"]


@pytest.mark.parametrize("rate", [None, "fast"])
def test_a_rate_that_is_no_number_is_named(rate: Any, tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device, scaling="sqrt")])
    trainer.lightning_module.lr = rate
    with pytest.raises(RecurringError, match=f"lr must be a number to be scaled, got {rate!r}"):
        trainer.fit()


def test_a_misspelt_attribute_leaves_no_run(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device, batch_size="bs")])
    with pytest.raises(RecurringError, match="holds 'bs'"):
        trainer.fit()
    assert states(tmp_path) == []
    assert trainer.lightning_module.lines == []  # the error says all


def test_two_of_them_in_a_trainer_are_refused_before_a_run_is_suggested(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device), job(tmp_path, device)])
    with pytest.raises(StrategyError, match=r"2 callbacks RecurringJob, .* leave one"):
        trainer.fit()
    assert not (tmp_path / "job.sqlite").exists()


def test_a_misspelt_metric_is_told_after_the_first_epoch_already(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device, monitor="val_los")])
    trainer.check_val_every_n_epoch, trainer.current_epoch = 2, 0
    trainer.call("setup", "fit")
    trainer.call("on_train_start")
    trainer.callback_metrics["val_loss"] = 1.0
    told = []
    for epoch in range(5):
        trainer.current_epoch = epoch
        trainer.call("on_train_batch_start", None, 0)
        told += [epoch for line in trainer.lightning_module.lines if "it never logged 'val_los' (monitor)" in line]
        trainer.lightning_module.lines.clear()
    assert told == [2]


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ([8], {}, "two or more"),
        ([8, 16], {"default": 32}, "default 32 is none of"),
        ([8, 32], {"eta": 2.0}, "eta"),
        ([8, 32], {"beta": 1.0}, "beta"),
        ([8, 32], {"mode": "least"}, "mode"),
        ([8, 32], {"target": float("nan")}, "target"),
        ([8, 32], {"scaling": "cubic"}, "linear, sqrt, none"),
        ([8, 32], {"check_every_n_steps": 0}, "check_every_n_steps"),
        ([8, 32], {"check_every_n_steps": 2.5}, "check_every_n_steps must be a whole number, 1 or more, got 2.5"),
        ("832", {}, "batch_sizes must be a list of sizes"),
        ([8.5, 32], {}, "whole number"),
        ([8, 32], {"target": "high"}, "target must be a number, got 'high'"),
        ([8, 32], {"target": None}, "target"),
        ([8, 32], {"monitor": None}, "monitor must be the name of a logged metric"),
        ([8, 32], {"batch_size": 16}, "batch_size must be the name of an attribute"),
        ([8, 32], {"learning_rate": 0.1}, "learning_rate must be the name of an attribute"),
        ([8, 32], {"scaling": ["sqrt"]}, "linear, sqrt, none"),
        ([8, 32], {"store": None}, "store must be the path of a file"),
        ([8, 32], {"seed": -1}, "seed"),
        ([8, 32], {"clock": 5.0}, "clock"),
        ([8, 32], {"window": float("nan")}, "window"),
        ([8, 32], {"max_power_w": None}, "max_power_w"),
        ([8, 32], {"etta": 0.1}, "no option 'etta'; known: .*eta, beta"),
    ],
)
def test_wrong_settings_are_refused_before_training(
    sizes: list[int], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {"default": 32, "store": tmp_path / "job.sqlite", "monitor": "val_loss", "target": 0.5}
    with pytest.raises(RecurringError, match=message):
        RecurringJob(sizes, **{**given, **options})
    assert not list(tmp_path.iterdir())


def test_an_attribute_that_nothing_has_is_named() -> None:
    with pytest.raises(RecurringError, match="neither attribute nor hparams of JobTrainer holds 'batch_size'"):
        change_attribute([None, JobTrainer(ScriptedDevice(), [])], "batch_size", lambda _: 8)


class Derived:
    """Has a batch size that is computed from another."""

    def __init__(self) -> None:
        self.rows = 64
        self.hparams: dict[str, Any] = {"batch_size": 32}

    @property
    def size(self) -> int:
        return self.rows

    @property
    def batch_size(self) -> int:
        return self.rows // 2

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        self.rows = 2 * value


def test_a_property_is_set_where_it_may_be_and_otherwise_is_somebody_elses() -> None:
    derived, other = Derived(), SimpleNamespace(size=16)
    change_attribute([derived, other], "batch_size", lambda _: 8)
    assert (derived.rows, derived.hparams) == (16, {"batch_size": 8})
    change_attribute([derived, other], "size", lambda _: 8)
    assert (derived.size, other.size) == (16, 8)
    with pytest.raises(RecurringError, match=r"hparams of Derived holds 'size' \(a property needs a setter\): make it"):
        change_attribute([derived, None], "size", lambda _: 8)


def test_a_foreign_store_ends_the_job_before_training(tmp_path: Path) -> None:
    (tmp_path / "job.sqlite").write_text("not a database\n" * 100)
    device = ScriptedDevice()
    with pytest.raises(StoreError, match="left as it is"):
        JobTrainer(device, [job(tmp_path, device)]).fit()
    assert (tmp_path / "job.sqlite").read_text() == "not a database\n" * 100
