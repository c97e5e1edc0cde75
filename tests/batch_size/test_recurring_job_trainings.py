"""RecurringJob under Lightning, with a checkpoint to resume from, and on two ranks (two threads)."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from recurring_trainings import NEEDED, POWER_W, JobTrainer, job

import energy_lightning
from energy_lightning.callbacks.run_meter import Spent, spent_by_all
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, Run
from energy_lightning.workload import Workload


def runs(folder: Path) -> list[Run]:
    return BatchSizeOptimizer.of_store(folder / "job.sqlite").runs()


class Net(pl.LightningModule):
    """Learns a line; its loss falls with every step."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.num_steps = 0.0  # that are to come
        self.save_hyperparameters({"batch_size": 16, "lr": 0.05})
        self.layer = torch.nn.Linear(4, 1)
        self.seen: set[int] = set()
        self.sequences: set[int] = set()  # in a microbatch of the emulated GPU's workload
        self.there_s: list[float] = []  # when, by the emulated GPU's clock, a loss was at the target

    @property
    def emulated_gpu(self) -> Any:
        (job,) = [one for one in self.trainer.callbacks if isinstance(one, energy_lightning.RecurringJob)]
        return None if job.monitored is None else job.monitored.device

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.seen.add(len(batch))
        if self.emulated_gpu is not None:
            self.sequences.add(self.emulated_gpu.workload.microbatch_size)
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("val_loss", loss)
        if self.emulated_gpu is not None and loss <= 0.05:
            self.there_s.append(self.emulated_gpu.now_s())

    def print(self, line: str) -> None:
        self.lines.append(line)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.num_steps = self.trainer.estimated_stepping_batches  # for a scheduler; makes the loader
        return torch.optim.SGD(self.parameters(), self.hparams["lr"])

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(ROWS, batch_size=self.hparams["batch_size"])

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(ROWS, batch_size=64)


SHAPE = Workload.preset("llama3.2_1b_tp8", microbatch_size=4, sequence_length=2048)
ROWS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))


def lightning_run(folder: Path, *callbacks: Any, epochs: int, resumed: str | None = None, **options: Any) -> Net:
    checkpoints = pl.callbacks.ModelCheckpoint(dirpath=folder, save_last=True, save_top_k=0)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, checkpoints],
        **options,
    )
    net = Net()
    trainer.fit(net, ckpt_path=resumed)
    return net


def test_lightning_makes_loaders_and_optimizers_of_what_is_set_and_resumes(tmp_path: Path) -> None:
    def recurring(seed: int) -> Any:
        return energy_lightning.RecurringJob(
            [8, 16, 32],
            default=16,
            store=tmp_path / "job.sqlite",
            monitor="val_loss",
            target=0.05,
            mode="min",
            learning_rate="lr",
            scaling="linear",
            seed=seed,
            beta=100.0,
            workload=SHAPE,
        )

    first = recurring(0)
    net = lightning_run(tmp_path / "first", first, epochs=40)
    assert (net.seen, first.verdict, first.batch_size) == ({16}, "reached", 16)
    second = recurring(1)
    net = lightning_run(tmp_path / "second", second, epochs=1)
    size = second.batch_size
    assert (net.seen, net.sequences) == ({size}, {4 * size // 16})
    assert size in (8, 32)
    assert net.num_steps == 64 // size
    told = next(line for line in net.lines if "batch size" in line)
    assert told.startswith(f"energy_lightning: batch size {size} for this run (")
    assert net.optimizers().param_groups[0]["lr"] == pytest.approx(0.05 * size / 16)
    assert second.verdict == "ended"
    epoch_s = second.spent.time_s
    assert [run.reached_target for run in runs(tmp_path)] == [True, False]
    resumed = recurring(2)
    net = lightning_run(tmp_path / "third", resumed, epochs=40, resumed=str(tmp_path / "second" / "last.ckpt"))
    assert (resumed.batch_size, net.seen, net.num_steps) == (size, {size}, 40 * 64 // size)
    told = [line for line in net.lines if "batch size" in line]
    assert told[0].startswith(f"energy_lightning: batch size {size} for this run, which goes on (")
    assert len(told) == 2  # what it is, and what has become of it
    assert {run.state for run in runs(tmp_path)} == {"done"}  # the suggestion that was not followed is forgotten
    done = [run for run in runs(tmp_path) if run.state == "done"]
    assert [(run.run_id, run.batch_size, run.reached_target) for run in done] == [(1, 16, True), (2, size, True)]
    assert done[1].time_s > 5 * epoch_s  # the first epoch counts, and is not reported twice
    assert BatchSizeOptimizer.of_store(tmp_path / "job.sqlite").emulated


def test_two_ranks_run_one_size_and_report_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier, slots = threading.Barrier(2, timeout=20.0), [None, None]

    def exchange(rank: int, value: Any) -> list[Any]:
        slots[rank] = value
        barrier.wait()
        values = list(slots)
        barrier.wait()
        return values

    for module in ("job_run", "run_meter", "shared_device"):
        monkeypatch.setattr(
            f"energy_lightning.callbacks.{module}.gather_objects",
            lambda trainer, own: exchange(trainer.global_rank, own),
        )
    trainers = []
    for rank in range(2):
        device = ScriptedDevice()
        device.uuid = f"GPU-{rank}"
        trainer = JobTrainer(device, [job(tmp_path, device)])
        trainer.world_size, trainer.global_rank, trainer.is_global_zero = 2, rank, rank == 0
        trainer.strategy.broadcast = lambda value, rank=rank: exchange(rank, value)[0]
        trainers.append(trainer)
    threads = [threading.Thread(target=trainer.fit) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (run,) = runs(tmp_path)
    assert (run.batch_size, run.reached_target, run.time_s, run.num_evaluations) == (32, True, NEEDED[32], 6)
    assert run.energy_j == pytest.approx(2 * NEEDED[32] * POWER_W)
    assert BatchSizeOptimizer.of_store(tmp_path / "job.sqlite").cost.max_power_w == 800.0
    assert [trainer.global_step for trainer in trainers] == [NEEDED[32]] * 2


def test_energies_of_ranks_add_up_over_gpus() -> None:
    own = Spent(gpu=1.0, time_s=10.0, energy_j=30.0, limit_w=250.0, void_s=0.0)
    rows = [own, replace(own, gpu=2.0, time_s=11.0, energy_j=40.0), replace(own, gpu=2.0, energy_j=39.0, void_s=2.0)]
    both = spent_by_all(rows)
    assert (both.time_s, both.energy_j, both.limit_w, both.void_s) == (11.0, 70.0, 500.0, 2.0)
    assert spent_by_all([own, replace(own, gpu=2.0, energy_j=None)]).energy_j is None


@pytest.mark.parametrize("later_steps", [0, 100])
def test_lightning_trains_on_for_min_steps_and_a_resumed_run_knows_that_it_is_over(
    later_steps: int, tmp_path: Path
) -> None:
    def recurring() -> Any:
        given = {"default": 16, "store": tmp_path / "job.sqlite", "monitor": "val_loss", "target": 0.05, "mode": "min"}
        return energy_lightning.RecurringJob([8, 16, 32], **given, learning_rate="lr", workload=SHAPE)

    net = lightning_run(tmp_path, recurring(), epochs=40, min_steps=60)
    (run,) = runs(tmp_path)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert (run.reached_target, checkpoint["global_step"]) == (True, 60)
    state = checkpoint["callbacks"]["RecurringJob"]
    assert (state["time_s"], state["energy_j"]) == (run.time_s, run.energy_j)
    assert run.time_s == pytest.approx(net.there_s[0])
    assert net.there_s[0] < 0.9 * net.there_s[-1]
    resumed = recurring()
    net = lightning_run(tmp_path, resumed, epochs=40, resumed=str(tmp_path / "last.ckpt"), min_steps=later_steps)
    assert net.trainer.global_step == max(60, later_steps)
    assert resumed.verdict == "reached"
    assert [one for one in runs(tmp_path) if one.state == "done"] == [run]


@pytest.mark.parametrize("limit_first", [True, False])
def test_beside_a_power_limit_the_emulated_workload_goes_with_the_batch_size(limit_first: bool, tmp_path: Path) -> None:
    """The limit's callback came first and opened the GPU for the default's workload: every size had the same steps."""
    for _ in range(2):
        given = {"default": 16, "store": tmp_path / "job.sqlite", "monitor": "val_loss", "target": 0.05, "mode": "min"}
        recurring = energy_lightning.RecurringJob([8, 16, 32], **given, beta=100.0, workload=SHAPE)
        limit = energy_lightning.PowerLimitOptimizer(workload=SHAPE)
        callbacks = [limit, recurring] if limit_first else [recurring, limit]
        net = lightning_run(tmp_path, *callbacks, epochs=40)
        assert net.sequences == {4 * recurring.batch_size // 16}
        assert not [line for line in net.lines if "which size is cheap" in line]
    assert recurring.batch_size != 16


@pytest.mark.parametrize(("microbatch_size", "told"), [(1, True), (2, False)])
def test_an_emulated_workload_that_cannot_go_with_the_batch_size_is_told(
    microbatch_size: int, told: bool, tmp_path: Path
) -> None:
    """Half of one sequence is one: batch size 8 seemed to cost as much a step as 16."""
    BatchSizeOptimizer([8, 16], default=16, max_power_w=400.0, store=tmp_path / "job.sqlite").observe(
        16, energy_j=1e6, time_s=1e3, reached_target=True, emulated=True
    )
    given = {"default": 16, "store": tmp_path / "job.sqlite", "monitor": "val_loss", "target": 0.05, "mode": "min"}
    shape = SHAPE.with_sizes(microbatch_size=microbatch_size)
    recurring = energy_lightning.RecurringJob([8, 16], **given, workload=shape)
    net = lightning_run(tmp_path, recurring, epochs=1)
    assert (recurring.batch_size, net.sequences) == (8, {1})
    lines = [line for line in net.lines if "which size is cheap" in line]
    assert len(lines) == told
    assert all("batch size 8 have 1 sequence in a microbatch instead of 0.5" in line for line in lines)
    assert all(line.endswith("Give a workload with more than 1, e.g. microbatch_size=16") for line in lines)


def test_a_callback_that_opened_the_emulated_gpu_for_the_default_is_told(tmp_path: Path) -> None:
    for _ in range(2):
        given = {"default": 16, "store": tmp_path / "job.sqlite", "monitor": "val_loss", "target": 0.05, "mode": "min"}
        recurring = energy_lightning.RecurringJob([8, 16], **given, beta=100.0, workload=SHAPE)
        net = lightning_run(tmp_path, energy_lightning.EnergyMonitor(workload=SHAPE), recurring, epochs=40)
    (line,) = [line for line in net.lines if "which size is cheap" in line]
    assert "batch size 8 have 4 sequences in a microbatch instead of 2, so" in line
    assert line.endswith("Give RecurringJob before the callback that has opened the emulated GPU")
