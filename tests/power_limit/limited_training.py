"""A user's recurring job under limits that dies: python limited_training.py FOLDER, two processes on NVIDIA boards.

Every process writes its rank's batch size, settled limit and profile when the sweep is over; a few steps later rank 0
kills itself.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from energy_lightning.pytorch_lightning import PowerLimitOptimizer, RecurringJob

FOLDER = Path(sys.argv[1])
STEPS, DIE_AFTER = 60, 3


class Regression(pl.LightningModule):
    def __init__(self, sweep: Any) -> None:
        super().__init__()
        self.layer, self.sweep, self.steps_left = torch.nn.Linear(4, 1), sweep, DIE_AFTER
        self.batch_size, self.seen = 2, set[int]()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.seen.add(len(batch))
        if self.sweep.power_limit_w is not None:
            self.settled()
        return self.layer(batch).square().mean()

    def settled(self) -> None:
        self.steps_left -= 1
        if self.steps_left == DIE_AFTER - 1:
            profile = [(one.power_limit_w, one.time_s, one.energy_j) for one in self.sweep.profile]
            row = {"rank": self.global_rank, "limit_w": self.sweep.power_limit_w, "profile": profile}
            row["batch_sizes"] = sorted(self.seen)
            FOLDER.joinpath(f"rank{self.global_rank}.json").write_text(json.dumps(row))
        if self.steps_left == 0 and self.global_rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def train_dataloader(self) -> Any:
        return DataLoader(torch.randn(8 * STEPS, 4), batch_size=self.batch_size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def main() -> None:
    sweep = PowerLimitOptimizer(
        objective="energy", limits_w=[400.0, 300.0, 150.0], warmup_steps=2, profile_steps=4, device="nvidia"
    )
    job = RecurringJob(
        [2, 4], default=4, store=FOLDER / "job.sqlite", monitor="loss", target=0.0, mode="min", check_every_n_steps=5
    )
    trainer = pl.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        max_steps=STEPS,
        default_root_dir=FOLDER,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[sweep, job],
    )
    trainer.fit(Regression(sweep))


if __name__ == "__main__":
    main()
