"""RecurringJob with a misspelt metric, a foreign loader, a rate that is none, and twice in one Trainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recurring_trainings import JobTrainer, job

from energy_lightning.callbacks.attributes import loader_fault
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, RecurringError
from energy_lightning.types import StrategyError


def states(folder: Path) -> list[str]:
    return [run.state for run in BatchSizeOptimizer.of_store(folder / "job.sqlite").runs()]


def test_a_run_that_never_logged_its_metric_says_nothing_of_its_size(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device, monitor="val_los")])
    trainer.fit()
    assert states(tmp_path) == ["dead"]
    assert trainer.lightning_module.lines[-1].endswith("it never logged 'val_los' (monitor); logged: val_loss")


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
    ("loader", "num_ranks", "num_batches", "fault"),
    [
        (SimpleNamespace(batch_size=32), 1, 1, False),
        (SimpleNamespace(batch_size=4), 1, 1, True),
        (SimpleNamespace(batch_size=16), 2, 1, False),  # of all processes together
        (SimpleNamespace(batch_size=8), 1, 4, False),  # of an optimizer step
        (SimpleNamespace(batch_size=4), 2, 4, False),
        (SimpleNamespace(batch_size=8), 2, 1, True),
        (SimpleNamespace(batch_size=None), 1, 1, False),  # a batch sampler knows
        ([1, 2], 1, 1, False),
        (None, 1, 1, False),
    ],
)
def test_a_loader_that_does_not_follow_the_attribute_is_told(
    loader: Any, num_ranks: int, num_batches: int, fault: bool
) -> None:
    trainer = SimpleNamespace(train_dataloader=loader, world_size=num_ranks, accumulate_grad_batches=num_batches)
    said = loader_fault(trainer, 32)
    assert (said is not None) is fault
    if said is not None:
        assert f"makes batches of {loader.batch_size}, not of 32" in said
