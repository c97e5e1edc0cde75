"""RecurringJob with a misspelt metric, a rate that is none, and twice in one Trainer: nothing wrong is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recurring_trainings import JobTrainer, job

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
