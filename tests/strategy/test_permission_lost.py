"""A real training on an emulated NVIDIA board whose driver takes the permission away in the middle."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from energy_lightning import KareusStrategy
from energy_lightning.device.nvml_emulator import Code, EmulatedBoard, NvmlEmulator
from energy_lightning.types import PhasePlan, Plan

LOCK, UNLOCK = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
NUM_STEPS = 12
TWO_CLOCKS = Plan.single_stage(PhasePlan("forward", 1200), PhasePlan("backward", 900), time_s=1.0, energy_j=100.0)


class Regression(pl.LightningModule):
    """Steps long enough for the clock to be switched within them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        time.sleep(0.02)  # a change is read back after 10 ms
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def train(folder: Path) -> tuple[pl.Trainer, list[str]]:
    """The trainer after its fit, and the device's mode at the end of every step."""
    seen: list[str] = []
    options = {"FrequencyController": {"min_dwell_s": 0.0}}
    strategy = KareusStrategy(device="nvidia", plan=TWO_CLOCKS, output_dir=folder, callback_options=options)
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        max_steps=NUM_STEPS,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LambdaCallback(on_train_batch_end=lambda trainer, *_: seen.append(trainer.strategy.device.mode))],
    )
    rows = torch.randn(4 * NUM_STEPS, 4, generator=torch.Generator().manual_seed(0))
    trainer.fit(Regression(), torch.utils.data.DataLoader(rows, batch_size=4))
    return trainer, seen


def test_training_ends_normally_and_goes_on_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    board = EmulatedBoard(counter_refresh_s=0.0, clock_lag_s=0.0, fail_after={LOCK: (3, Code.NO_PERMISSION)})
    with NvmlEmulator([board]) as nvml, caplog.at_level(logging.WARNING, logger="energy_lightning"):
        nvml.load(0, 1.0)
        trainer, seen = train(tmp_path)
        assert trainer.global_step == NUM_STEPS
        calls = [call.function for call in nvml.state(0).sets[2:]]  # after the looks for permission
        assert calls.count(LOCK) == 4  # three that worked, the refused one, and none after it
        assert calls[-1] == UNLOCK  # what was locked came back
        assert (nvml.state(0).locked_mhz, nvml.state(0).power_limit_w) == (None, 400.0)
    refusals = [record.message for record in caplog.records if "SYS_ADMIN" in record.message]
    assert len(refusals) == 1
    assert "Training goes on" in refusals[0]
    (monitor,) = [callback for callback in trainer.callbacks if type(callback).__name__ == "EnergyMonitor"]
    assert monitor.num_steps == NUM_STEPS
    assert monitor.total.energy_j > 0.0
    assert monitor.total.complete
    assert seen == ["full"] * seen.count("full") + ["measure-only"] * seen.count("measure-only")
    assert {"full", "measure-only"} == set(seen)
