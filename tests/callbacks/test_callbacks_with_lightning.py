"""The callbacks in real Trainers on the CPU: hooks, loggers, checkpoints and resuming as Lightning does them."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import energy_lightning

TARGET = "llama3.2_1b_tp8"
OPTIONS = {
    "PartitionProfiler": {"warmup_steps": 1, "max_fraction": 0.5},
    "FrontierOptimizer": {
        "frequencies_mhz": [1410, 1200, 990],
        "sizes": {"initial": 8, "batch": 8, "num_batches": 1},
        "budget": "min_energy",
    },
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def module_of(package: str = "lightning.pytorch", *, fails_at: int | None = None) -> Any:
    pl = importlib.import_module(package)

    class Regression(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if self.global_step == fails_at:
                raise RuntimeError("the user's own bug")
            return self.layer(batch).square().mean()

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("val_loss", self.layer(batch).square().mean(), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    return Regression()


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), batch_size=2)


def trainer_in(folder: Path, strategy: Any, package: str = "lightning.pytorch", **options: Any) -> Any:
    pl = importlib.import_module(package)
    return pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=importlib.import_module(f"{package}.loggers").CSVLogger(folder, version=0),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def callback_of(trainer: Any, name: str) -> Any:
    (found,) = [callback for callback in trainer.callbacks if type(callback).__name__ == name]
    return found


def rehearsal(folder: Path, package: str = "lightning.pytorch") -> Any:
    strategy = importlib.import_module("energy_lightning.pytorch_lightning") if "_" in package else energy_lightning
    return strategy.KareusStrategy(workload=TARGET, output_dir=folder / "kareus", callback_options=OPTIONS)


@pytest.mark.filterwarnings("error:It is recommended to use .self.log")
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_run_profiles_chooses_logs_and_saves(tmp_path: Path, package: str) -> None:
    trainer = trainer_in(tmp_path, rehearsal(tmp_path, package), package, max_epochs=2)
    trainer.fit(module_of(package), loader(), loader())
    optimizer, monitor = callback_of(trainer, "FrontierOptimizer"), callback_of(trainer, "EnergyMonitor")
    assert (tmp_path / "kareus" / "plan.yaml").exists()
    assert optimizer.plan.forward.frequency_mhz < 1410
    assert monitor.num_steps == 16
    assert float(trainer.callback_metrics["emulated_step_time_s"]) == pytest.approx(optimizer.plan.time_s, rel=1e-4)
    rows = list(csv.DictReader((tmp_path / "lightning_logs" / "version_0" / "metrics.csv").open()))
    assert sum(bool(row["emulated_energy_j"]) for row in rows) == 16
    totals_j = [float(row["emulated_total_energy_j"]) for row in rows if row["emulated_total_energy_j"]]
    assert len(totals_j) == 2
    assert totals_j[-1] == pytest.approx(monitor.total.energy_j)


def test_a_resumed_run_keeps_totals_and_decision(tmp_path: Path) -> None:
    first = trainer_in(tmp_path, rehearsal(tmp_path), max_epochs=1)
    first.fit(module_of(), loader(), loader())
    path, before = first.checkpoint_callback.best_model_path, callback_of(first, "EnergyMonitor").total
    (tmp_path / "kareus" / "measurements.jsonl").unlink()  # the decision comes from the checkpoint
    second = trainer_in(tmp_path, rehearsal(tmp_path), max_epochs=2)
    second.fit(module_of(), loader(), loader(), ckpt_path=path)
    monitor, profiler = callback_of(second, "EnergyMonitor"), callback_of(second, "PartitionProfiler")
    assert monitor.num_steps == 16
    assert monitor.total.energy_j == pytest.approx(before.energy_j + monitor.own.energy_j)
    assert profiler.num_measured == 0
    assert callback_of(second, "FrontierOptimizer").outcome == callback_of(first, "FrontierOptimizer").outcome


def test_a_failing_step_gives_the_clock_back(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, rehearsal(tmp_path), max_epochs=2)
    seen: dict[str, Any] = {}

    class Watch(importlib.import_module("lightning.pytorch").Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
            seen["device"] = trainer.strategy.device
            seen["mhz"] = trainer.strategy.device.frequency_mhz()

    trainer.callbacks.append(Watch())
    with pytest.raises(RuntimeError, match="the user's own bug"):
        trainer.fit(module_of(fails_at=14), loader())
    assert seen["mhz"] < 1410
    assert seen["device"].frequency_mhz() == 1410


def test_the_monitor_works_under_any_strategy(tmp_path: Path) -> None:
    monitor = energy_lightning.EnergyMonitor(workload=TARGET)
    trainer = trainer_in(tmp_path, "auto", callbacks=[monitor], max_epochs=1)
    trainer.fit(module_of(), loader(), loader())
    assert monitor.num_steps == 8
    assert float(trainer.callback_metrics["emulated_total_energy_j"]) == pytest.approx(monitor.total.energy_j)


def test_without_a_gpu_and_a_workload_only_time_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_in(tmp_path, "auto", callbacks=[energy_lightning.EnergyMonitor()], max_epochs=1)
    trainer.fit(module_of(), loader(), loader())
    assert trainer.callback_metrics["step_time_s"] > 0.0
    assert not [name for name in trainer.callback_metrics if "energy" in name]
    assert capsys.readouterr().out.count("energy is not measured") == 1


def test_fast_dev_run_ends_before_profiling(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, rehearsal(tmp_path), fast_dev_run=True)
    trainer.fit(module_of(), loader(), loader())
    assert callback_of(trainer, "PartitionProfiler").num_measured == 0
