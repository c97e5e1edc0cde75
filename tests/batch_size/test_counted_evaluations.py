"""How many evaluations RecurringJob reports, under Lightning: of the metric's kind, as far as the target was met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

import energy_lightning
from energy_lightning.callbacks.evaluations import Evaluations
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, Run

STEPS = 8  # optimizer steps of an epoch
VALIDATED, TRAINED = {"monitor": "val_loss"}, {"monitor": "train_loss"}


class Net(pl.LightningModule):
    """Its steps take 1 s. Each loss is 1 before step `needed` and 0 from then on; an epoch's is its worst step's."""

    def __init__(self, device: ScriptedDevice, needed: int, *, fails_at: int | None = None, by_step: bool) -> None:
        super().__init__()
        self.batch_size, self.gpu, self.needed, self.fails_at, self.by_step = 8, device, needed, fails_at, by_step
        self.layer = torch.nn.Linear(4, 1)

    def loss(self) -> float:
        return float(self.global_step < self.needed)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.gpu.work(1.0)
        if self.global_step == self.fails_at:
            raise MemoryError
        how: dict[str, Any] = {} if self.by_step else {"on_step": False, "on_epoch": True, "reduce_fx": "max"}
        self.log("train_loss", self.loss(), **how)
        return self.layer(batch).square().mean()

    def on_train_epoch_end(self) -> None:
        self.log("late_loss", self.loss())

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.loss())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(STEPS, 4), batch_size=1)  # as many steps with any batch size

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=4)


def train(
    folder: Path, needed: int, *, job: Any, resumed: Path | None = None, checkpoints: Any = None, **options: Any
) -> tuple[Any, Net]:
    device = ScriptedDevice()
    module = {name: options.pop(name) for name in ("fails_at", "by_step") if name in options}
    given = {"default": 8, "target": 0.5, "mode": "min", "device": device}
    callback = energy_lightning.RecurringJob([8, 16], store=folder / "job.sqlite", **{**given, **job})
    trainer = pl.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=checkpoints is not None,
        callbacks=[callback, *([] if checkpoints is None else [checkpoints])],
        **{"max_epochs": 12, **options},
    )
    net = Net(device, needed, **{"by_step": False, **module})
    trainer.fit(net, ckpt_path=resumed)
    return callback, net


def last_run(folder: Path) -> Run:
    return [run for run in BatchSizeOptimizer.of_store(folder / "job.sqlite").runs() if run.state == "done"][-1]


@pytest.mark.parametrize(
    ("job", "options", "needed", "steps", "expected"),
    [
        (VALIDATED, {}, 20, 24, 3),
        (VALIDATED, {"num_sanity_val_steps": 0}, 20, 24, 3),
        (VALIDATED, {"check_val_every_n_epoch": 3}, 30, 48, 2),
        (VALIDATED, {"val_check_interval": 0.25}, 19, 20, 10),
        (VALIDATED, {"val_check_interval": 5, "check_val_every_n_epoch": None}, 11, 15, 3),
        (VALIDATED, {"min_steps": 40}, 20, 40, 3),
        (VALIDATED, {"accumulate_grad_batches": 2}, 10, 12, 3),
        (TRAINED, {}, 10, 24, 3),
        (TRAINED, {"limit_val_batches": 0}, 10, 24, 3),
        (TRAINED, {"val_check_interval": 0.25}, 10, 24, 3),
        (TRAINED, {"check_val_every_n_epoch": 3}, 10, 24, 3),
        (TRAINED, {"check_val_every_n_epoch": 3, "by_step": True}, 10, 16, 2),
        (TRAINED, {"by_step": True}, 10, 16, 2),
        (TRAINED, {"by_step": True, "limit_val_batches": 0}, 10, 16, 2),
        (TRAINED, {"by_step": True, "val_check_interval": 0.25}, 10, 12, 2),
        ({"monitor": "late_loss"}, {"val_check_interval": 0.25}, 10, 17, 2),  # seen with the next epoch's first batch
    ],
)
def test_a_run_that_reached_its_target_did_so_in_the_last_of_its_evaluations(
    job: Any, options: dict[str, Any], needed: int, steps: int, expected: int, tmp_path: Path
) -> None:
    callback, net = train(tmp_path, needed, job=job, **options)
    assert (callback.verdict, net.trainer.global_step) == ("reached", steps)
    assert last_run(tmp_path).num_evaluations == expected


@pytest.mark.parametrize(
    ("least_steps", "job", "options", "steps", "expected"),
    [
        (30, VALIDATED, {}, 61, 7),  # in the middle of its 8th
        (30, VALIDATED, {"val_check_interval": 0.25}, 61, 30),
        (30, VALIDATED, {"check_val_every_n_epoch": 3}, 61, 2),
        (30, TRAINED, {"val_check_interval": 0.25}, 61, 7),
        (30, {"monitor": "val_los"}, {}, 61, None),
        (2, VALIDATED, {}, 5, None),  # before the first
        (2, TRAINED, {"by_step": True}, 5, None),
        (30, VALIDATED, {"min_steps": 80}, 80, 7),
    ],
)
def test_a_run_that_got_too_dear_reports_those_that_it_completed(
    least_steps: int, job: Any, options: dict[str, Any], steps: int, expected: int | None, tmp_path: Path
) -> None:
    known = BatchSizeOptimizer([8, 16], default=8, max_power_w=400.0, store=tmp_path / "job.sqlite")
    known.observe(8, energy_j=least_steps * 241.0, time_s=float(least_steps), reached_target=True)
    callback, net = train(tmp_path, 1000, job={**job, "check_every_n_steps": 1}, **options)
    assert (callback.verdict, net.trainer.global_step) == ("too dear", steps)
    assert (last_run(tmp_path).reached_target, last_run(tmp_path).num_evaluations) == (False, expected)


def test_a_run_that_ended_by_itself_and_one_out_of_memory(tmp_path: Path) -> None:
    train(tmp_path, 1000, job=VALIDATED, max_steps=20)
    assert last_run(tmp_path).num_evaluations == 2
    with pytest.raises(MemoryError):
        train(tmp_path, 1000, job=VALIDATED, fails_at=20)
    assert last_run(tmp_path).num_evaluations is None


class Saves(pl.callbacks.Checkpoint):
    """A checkpoint at every chance: after steps, validations and epochs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.save(trainer, "step")

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.save(trainer, "validation")

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        self.save(trainer, "epoch")

    def save(self, trainer: Any, after: str) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.global_step:02}-{after}.ckpt")


@pytest.mark.parametrize(
    ("job", "options", "due", "expected"),
    [(VALIDATED, {}, 8, 3), (VALIDATED, {"val_check_interval": 0.5}, 4, 5), (TRAINED, {"limit_val_batches": 0}, 8, 4)],
)
def test_a_resumed_run_goes_on_counting(
    job: Any, options: dict[str, Any], due: int, expected: int, tmp_path: Path
) -> None:
    """From wherever it was saved, but for a step at which a validation is due, which Lightning then leaves out."""
    (tmp_path / "saved").mkdir()
    train(tmp_path, 17, job=job, checkpoints=Saves(tmp_path / "saved"), **options)
    assert last_run(tmp_path).num_evaluations == expected
    for path in sorted((tmp_path / "saved").iterdir()):
        step, after = path.stem.split("-")
        if int(step) > 16 or (after == "step" and int(step) not in (due - 1, due + 2)):
            continue
        folder = tmp_path / path.stem
        folder.mkdir()
        callback, net = train(folder, 17, job=job, resumed=path, **options)
        assert (callback.verdict, last_run(folder).num_evaluations) == ("reached", expected), path.stem
        assert last_run(folder).time_s == net.global_step


def test_what_a_checkpoint_of_an_earlier_version_did_not_count_is_not_known(tmp_path: Path) -> None:
    saved = tmp_path / "08-validation.ckpt"
    train(tmp_path, 1000, job=VALIDATED, checkpoints=Saves(tmp_path), max_epochs=1)
    checkpoint = torch.load(saved, weights_only=True)
    (state,) = [one for name, one in checkpoint["callbacks"].items() if "RecurringJob" in name]
    del state["evaluations"]
    torch.save(checkpoint, saved)
    callback, _ = train(tmp_path, 20, job=VALIDATED, resumed=saved, checkpoints=Saves(tmp_path))
    assert (callback.verdict, last_run(tmp_path).num_evaluations) == ("reached", None)
    checkpoint = torch.load(tmp_path / "16-epoch.ckpt", weights_only=True)
    (state,) = [one for name, one in checkpoint["callbacks"].items() if "RecurringJob" in name]
    assert state["evaluations"] is None


def test_validations_after_the_run_are_none_of_it(tmp_path: Path) -> None:
    known = BatchSizeOptimizer([8, 16], default=8, max_power_w=400.0, store=tmp_path / "job.sqlite")
    known.observe(8, energy_j=4 * 241.0, time_s=4.0, reached_target=True)
    _, net = train(tmp_path, 1000, job={**VALIDATED, "check_every_n_steps": 1})
    for name in ("before", "after"):
        net.trainer.save_checkpoint(tmp_path / name)
        net.trainer.validate(net, verbose=False)
    states = [torch.load(tmp_path / name, weights_only=True)["callbacks"] for name in ("before", "after")]
    assert states[0] == states[1]
    (state,) = states[0].values()
    assert state["evaluations"]["validations"] == 2  # Lightning validates once more where a run is to stop


def test_a_metric_that_is_there_before_a_validation_does_not_come_from_it() -> None:
    trained, validated = Evaluations(monitor="loss"), Evaluations(monitor="loss")
    for _ in range(4):
        trained.validation_begins({"loss": 1.0})
        trained.validation_ended({"loss": 1.0})
        validated.validation_begins({})
        validated.validation_ended({"loss": 1.0})
    counted = [one.completed({}, reached=reached) for one in (trained, validated) for reached in (False, True)]
    assert counted == [None, 1, 4, 4]
    assert Evaluations(monitor="loss").completed({"other": 1.0}, reached=False) is None
    again = Evaluations.resumed("loss", validated.state())
    assert again == validated
    assert Evaluations.resumed("loss", None) is None


def test_what_min_steps_adds_to_a_run_that_is_there_is_not_counted_for_another_target(tmp_path: Path) -> None:
    """Neither is what it costs: a resumed run with another target goes on from the verdict."""
    train(tmp_path, 20, job=VALIDATED, min_steps=40, checkpoints=Saves(tmp_path))
    train(tmp_path, 1000, job={**VALIDATED, "target": -1.0}, resumed=tmp_path / "40-epoch.ckpt", max_epochs=6)
    assert (last_run(tmp_path).time_s, last_run(tmp_path).num_evaluations) == (24.0 + 8.0, 3 + 1)
