"""A user's training on two NVIDIA GPUs whose processes Lightning starts, from a script or cell by cell.

As a script, `python launched_on_gpus.py PYTHON`: one fit for each line of its input, `{"strategy": ..., "way": ...,
"folder": ...}`, of processes that PYTHON runs. It goes on whatever becomes of a fit, and prints `OVER <number of fits>
<pid>` after each. In an interactive interpreter, `fit` is a cell.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import StrategyRegistry
from torch.utils.data import DataLoader

from energy_lightning import PowerLimitOptimizer
from energy_lightning.types import Plan

CLOCK_MHZ, LIMIT_W = 1005, 300.0


def say(*words: object) -> None:
    """One line, whole, whoever else is printing."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Regression(LightningModule):
    """Once the power limit is settled on, prints `READY <rank> <pid>`; some steps later the way to go."""

    def __init__(self, sweep: Any, way: str) -> None:
        super().__init__()
        self.layer, self.sweep, self.way, self.num_ready = torch.nn.Linear(4, 1), sweep, way, 0

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        time.sleep(0.01)
        if self.sweep.power_limit_w is not None:
            self.num_ready += 1
            if self.num_ready == 1:
                say("READY", self.global_rank, os.getpid())
            if self.num_ready == 4 and self.way == "exception" and self.global_rank == 1:
                raise RuntimeError("as it was told")
            if self.num_ready == 4 and self.way == "exit":
                self.trainer.should_stop = True
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(strategy: str, way: str, folder: str) -> None:
    registered = StrategyRegistry[strategy]
    on_gpus = {"device": "nvidia", "plan": Plan.sequential(CLOCK_MHZ), "output_dir": folder}
    sweep = PowerLimitOptimizer(limits_w=[LIMIT_W], warmup_steps=1, profile_steps=3)
    trainer = Trainer(
        strategy=registered["strategy"](**registered["init_params"], **on_gpus),
        accelerator="cpu",
        devices=2,
        max_steps=10_000,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=[sweep],
    )
    trainer.fit(Regression(sweep, way), DataLoader(torch.ones(40_000, 4), batch_size=2))


def main() -> None:
    torch.set_num_threads(1)
    multiprocessing.set_executable(sys.argv[1])
    say("LOADED", 0, os.getpid())
    for number, line in enumerate(sys.stdin):
        try:
            fit(**json.loads(line))
        except Exception:
            traceback.print_exc()
        say("OVER", number, os.getpid())


if __name__ == "__main__":
    main()
