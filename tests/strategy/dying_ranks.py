"""Jobs of two ranks that change their GPUs and then die in the way that they are told.

Started once as `python dying_ranks.py`, under the emulated NVML; loads what a training needs and then forks two ranks
for each line of its input, `{"way": ..., "trains": ..., "port": ..., "folder": ...}`. A rank that has changed its GPU
prints `READY <rank> <pid>`; what it does then is `WAYS`, or training until something happens to it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from energy_lightning import KareusStrategy, PowerLimitOptimizer
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.types import Plan

CLOCK_MHZ, LIMIT_W = 1005, 300.0


def say(*words: object) -> None:
    """One line, whole, whoever else is printing."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def change(device: Any, rank: int) -> None:
    device.lock_frequency(CLOCK_MHZ)
    device.set_power_limit(LIMIT_W)
    say("READY", rank, os.getpid())


# ways to go


def wait() -> None:
    """Until somebody ends this process."""
    time.sleep(300.0)


def fail() -> None:
    raise RuntimeError("as it was told")


def fork_and_wait() -> None:
    """Two forked children: one ends at once and runs exit handlers, the other outlives this process."""
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    outliving = os.fork()
    if outliving == 0:
        time.sleep(300.0)
    say("WORKERS", os.getpid(), outliving)
    wait()


def start_and_wait() -> None:
    """The same with another program, as workers are that are started by "spawn"."""
    worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300.0)"])
    say("WORKERS", os.getpid(), worker.pid)
    wait()


WAYS: dict[str, Callable[[], object]] = {
    "wait": wait,
    "exit": lambda: None,
    "exception": fail,
    "os._exit": lambda: os._exit(3),
    "fork": fork_and_wait,
    "spawn": start_and_wait,
}


# training


class Regression(LightningModule):
    """Changes its GPU by the strategy's device, or has changed it by a PowerLimitOptimizer."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.way = way

    def on_train_start(self) -> None:
        if not hasattr(self.trainer.strategy, "device"):
            return
        device = self.trainer.strategy.device
        assert device is not None
        change(device, self.global_rank)
        if self.way == "slow start":
            time.sleep(5.0)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if batch_idx >= 3 and self.way == "exception" and self.global_rank == 1:
            raise RuntimeError("as it was told")
        time.sleep(0.02)
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Limits(PowerLimitOptimizer):
    """Says when the limit is in force."""

    has_said = False

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if not self.has_said and self.monitored.device.power_limit_w == LIMIT_W:
            self.has_said = True
            say("READY", os.environ["RANK"], os.getpid())


def train(order: dict[str, Any], rank: int) -> None:
    """A rank as torchrun starts it; afterwards this process lives on, as a notebook's does."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(order["port"]), "TORCHELASTIC_RUN_ID": "dying"}
    kareus = KareusStrategy(device="nvidia", plan=Plan.sequential(CLOCK_MHZ), output_dir=order["folder"])
    limits = order["way"] == "limits"
    steps = 5 if order["way"] == "exit" else 10_000
    trainer = Trainer(
        strategy="ddp" if limits else kareus,
        callbacks=[Limits(device="nvidia", limits_w=[LIMIT_W], profile_steps=10_000)] if limits else [],
        accelerator="cpu",
        devices=2,
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=order["folder"],
    )
    trainer.fit(Regression(order["way"]), DataLoader(torch.ones(4 * steps, 4), batch_size=2))
    say("TRAINED", rank, os.getpid())
    wait()


def run(order: dict[str, Any], rank: int) -> None:
    with open(Path(order["folder"]) / f"stderr-{rank}", "a") as file:
        os.dup2(file.fileno(), 2)
    if order["trains"]:
        train(order, rank)
        return
    device = NvidiaDevice(rank)
    change(device, rank)
    WAYS[order["way"]]()


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()  # ranks that end do not look through all that was loaded
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are gone at once
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that these are ignored
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    say("LOADED")
    group = 0
    for line in sys.stdin:
        order = json.loads(line)
        for rank in range(2):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                run(order, rank)
                return
            group = group if rank else child
            os.setpgid(child, group)  # a process group of its own, as a shell gives it to a job


if __name__ == "__main__":
    main()
