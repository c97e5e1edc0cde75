"""A GPU that slows down under a power limit by a known rule, and a trainer that runs steps on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from energy_lightning.callbacks import build_callbacks
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.power_limit import PowerLimitOptimizerMixin

PowerLimitOptimizer = build_callbacks(object, __name__, {"PowerLimitOptimizer": PowerLimitOptimizerMixin})[
    "PowerLimitOptimizer"
]
FULL_W, STATIC_W, STEP_S = 230.0, 60.0, 0.1
SHORT: dict[str, Any] = {"warmup_steps": 2, "profile_steps": 5}


def step_of(limit_w: float) -> tuple[float, float]:
    """(time in s, energy in J) of a step: dynamic power goes with the cube of the speed."""
    power_w = min(limit_w, FULL_W)
    time_s = STEP_S / ((power_w - STATIC_W) / (FULL_W - STATIC_W)) ** (1 / 3)
    return time_s, power_w * time_s


class LimitedGPU(ScriptedDevice):
    """Limits of 100 to 260 W; an administrator has set `before_w`. `faults`: what the coming steps do besides."""

    def __init__(self, *, before_w: float = 250.0, rounds_to_w: float | None = None, uuid: str | None = None) -> None:
        super().__init__()
        self.name, self.uuid = "limited GPU", uuid
        self.power_limit_range_w = (100.0, 260.0)
        self.power_limit_w = self.before_w = before_w
        self.rounds_to_w, self.asked_w, self.closed = rounds_to_w, list[float](), 0
        self.reasons: tuple[str, ...] = ()
        self.celsius = 40.0
        self.forgets_energy = False

    def set_power_limit(self, power_limit_w: float) -> float:
        self.asked_w.append(power_limit_w)
        if self.can_set_power_limit:
            step_w = self.rounds_to_w
            self.power_limit_w = power_limit_w if step_w is None else step_w * round(power_limit_w / step_w)
        return self.power_limit_w

    def reset_power_limit(self) -> None:
        self.power_limit_w = self.before_w

    def throttle_reasons(self) -> tuple[str, ...]:
        return self.reasons

    def temperature_c(self) -> float:
        return self.celsius

    def step(self) -> None:
        time_s, energy_j = step_of(self.power_limit_w)
        self._advance(time_s, energy_j / time_s)
        if self.forgets_energy:
            self.reset_counter()

    def close(self) -> None:
        self.closed += 1
        self.reset_power_limit()


class Module:
    """Collects what is logged and said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.logged: list[dict[str, float]] = []

    def print(self, line: str) -> None:
        self.lines.append(line)

    def log_dict(self, metrics: dict[str, float], **options: Any) -> None:
        self.logged.append(metrics)


class StepTrainer:
    """Calls a callback's hooks in Lightning's order, for steps on `gpu`."""

    sanity_checking = fast_dev_run = False
    precision = "32-true"

    def __init__(self, folder: Path, gpu: Any, callbacks: Sequence[Any], *, accumulate: int = 1) -> None:
        self.callbacks, self.gpu = list(callbacks), gpu
        self.strategy: Any = SimpleNamespace(root_device=SimpleNamespace(type="cpu"), broadcast=lambda value: value)
        self.lightning_module, self.default_root_dir = Module(), str(folder)
        self.world_size, self.global_rank, self.is_global_zero = 1, 0, True
        self.accumulate_grad_batches, self.global_step = accumulate, 0
        self.limits_w: list[float] = []

    def call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, hook, None)
            if method is not None:
                method(self, self.lightning_module, *arguments)

    def fit(
        self, num_steps: int, *, epoch_steps: int = 10_000, validates: bool = True, before_step: Any = None
    ) -> list[str]:
        """What was said."""
        self.call("on_train_start")
        try:
            for step in range(num_steps):
                if before_step is not None:
                    before_step(step)
                for _ in range(self.accumulate_grad_batches):
                    self.call("on_train_batch_start", None, 0)
                    self.limits_w.append(self.gpu.power_limit_w)
                    self.gpu.step()
                    if _ == self.accumulate_grad_batches - 1:
                        self.global_step += 1
                    self.call("on_train_batch_end", None, None, 0)
                if (step + 1) % epoch_steps == 0:
                    if validates:
                        self.call("on_validation_start")
                        self.gpu.idle(5.0)
                        self.call("on_validation_end")
                    self.call("on_train_epoch_end")
                    self.gpu.idle(3.0)
        except BaseException as error:
            self.call("on_exception", error)
            raise
        self.call("on_train_end")
        self.call("teardown", "fit")
        return self.lightning_module.lines


def train_under_limits(
    folder: Path, gpu: LimitedGPU, num_steps: int = 100, *, accumulate: int = 1, fit: Any = None, **options: Any
) -> tuple[Any, StepTrainer]:
    callback = PowerLimitOptimizer(device=gpu, **{**SHORT, **options})
    trainer = StepTrainer(folder, gpu, [callback], accumulate=accumulate)
    trainer.fit(num_steps, **(fit or {}))
    return callback, trainer
