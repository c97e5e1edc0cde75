"""A trainer that runs recurring jobs on a scripted GPU: a model that is done after so many steps, by batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from energy_lightning.batch_size import RecurringJobMixin
from energy_lightning.callbacks import build_callbacks
from energy_lightning.measure.testing import ScriptedDevice

RecurringJob = build_callbacks(object, __name__, {"RecurringJob": RecurringJobMixin})["RecurringJob"]
RecurringJob.state_key = "RecurringJob"  # as Lightning's base class names it
STEP_S, POWER_W = 1.0, 241.0  # the scripted GPU's at its highest clock
NEEDED: Mapping[int, int] = {8: 40, 16: 30, 32: 60, 64: 400}
"""Batch size -> steps to the target; with steps of 1 s and 241 W, cost at eta 0.5 and 400 W: 320.5 J a step."""


class Module:
    """With the attributes that the callback sets, and a metric."""

    def __init__(self) -> None:
        self.batch_size, self.lr = 32, 0.1
        self.hparams: dict[str, Any] = {"batch_size": 32}
        self.lines: list[str] = []

    def print(self, line: str) -> None:
        self.lines.append(line)


class JobTrainer:
    """Calls a callback's hooks in Lightning's order; validates every ten steps. Heeds should_stop from min_steps on."""

    sanity_checking = fast_dev_run = False
    loads_late = False  # as strategies that load a checkpoint when the model is set up

    def __init__(
        self, device: ScriptedDevice, callbacks: Sequence[Any], *, max_steps: int = 200, min_steps: int = 0
    ) -> None:
        self.callbacks, self.device, self.max_steps, self.min_steps = list(callbacks), device, max_steps, min_steps
        self.strategy: Any = SimpleNamespace(root_device=SimpleNamespace(type="cpu"), broadcast=lambda value: value)
        self.lightning_module, self.datamodule = Module(), None
        self.world_size, self.global_rank, self.is_global_zero, self.local_rank = 1, 0, True, 0
        self.global_step, self.current_epoch, self.should_stop = 0, 0, False
        self.check_val_every_n_epoch: int | None = None
        self.num_training_batches = 1000
        self.callback_metrics: dict[str, float] = {}
        self.checkpoint: dict[str, Any] = {"callbacks": {}}

    def call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, hook, None)
            if method is not None:
                method(self, self.lightning_module, *arguments)

    def fit(self, *, resumed: Mapping[str, Any] | None = None, save_at: int | None = None, fails: Any = None) -> None:
        try:
            self.call("setup", "fit")
            hooks = [("on_load_checkpoint", (resumed,)), ("on_fit_start", ())][resumed is None :]
            for hook, arguments in reversed(hooks) if self.loads_late else hooks:
                self.call(hook, *arguments)
            self.global_step = self.global_step if resumed is None else resumed["step"]
            if self.should_stop and self.global_step >= self.min_steps:  # nothing to train
                self.call("teardown", "fit")
                return
            self.call("on_train_start")
            while self.global_step < self.max_steps and not (self.should_stop and self.global_step >= self.min_steps):
                self._step(save_at, fails)
        except BaseException as error:
            self.call("on_exception", error)
            raise
        self.call("on_train_epoch_end")
        self.call("on_train_end")
        self.call("teardown", "fit")

    def _step(self, save_at: int | None, fails: Any) -> None:
        self.call("on_train_batch_start", None, self.global_step)
        self.device.work(STEP_S)
        if fails is not None and self.global_step == fails[0]:
            raise fails[1]
        self.global_step += 1
        self.call("on_train_batch_end", None, None, 0)
        if self.global_step % 10 == 0:
            self.call("on_validation_start")
            self.callback_metrics["val_loss"] = float(self.global_step < NEEDED[self.lightning_module.batch_size])
            self.call("on_validation_end")
        if self.global_step == save_at:
            self.call("on_save_checkpoint", self.checkpoint)
            self.checkpoint["step"] = self.global_step


def job(folder: Path, device: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"default": 32, "monitor": "val_loss", "target": 0.5, "mode": "min", "learning_rate": "lr"}
    return RecurringJob([8, 16, 32, 64], store=folder / "job.sqlite", device=device, **{**given, **options})
