"""PowerLimitOptimizer: finds the GPUs' best power limit during the first training steps, and trains under it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from energy_lightning.callbacks.job import check_alone, degrading, gpu_identity, on_rank_zero, report, say
from energy_lightning.callbacks.monitored import Monitored
from energy_lightning.callbacks.power_planner import (
    Facts,
    Order,
    PowerPlanner,
    SweepSettings,
    gather_facts,
    parse_limits,
    power_objective,
    why_no_sweep,
)
from energy_lightning.callbacks.power_profile import PowerProfile, default_profile, describe_job
from energy_lightning.callbacks.power_setting import LimitSetting
from energy_lightning.callbacks.power_window import PowerWindow
from energy_lightning.callbacks.shared_device import DeviceChoice, gather_objects
from energy_lightning.callbacks.termination import before_sigterm
from energy_lightning.device import Device, has_emulated_figures
from energy_lightning.recurring import PowerLimitSample, RecurringError
from energy_lightning.recurring.errors import whole
from energy_lightning.types import MeasurementError
from energy_lightning.workload import Workload


class PowerLimitOptimizerMixin:
    """Sweeps the GPUs' own power limits during the first training steps, then trains at the best one.

        Trainer(callbacks=[PowerLimitOptimizer(max_slowdown=0.05)])

    Works with any strategy and number of processes. From the highest limit down, each is set, `warmup_steps` pass, and
    `profile_steps` are measured; validation and epoch ends interrupt a window, they do not end it. A window that is not
    valid (a counter that fell, heat throttling, a limit that somebody else changed) is repeated, up to `max_tries` in
    all, as is the first while the GPU warms up; one too short for the energy counter is extended. Time of a step is the
    slowest rank's, energy that of all distinct GPUs; rank 0 decides for all. Boards round limits: the one that is read
    back is the one that was measured, once. The profile goes into a file, each limit as soon as it is known: a later
    run of the same job on the same GPUs goes on where it ended, and needs no sweep where nothing is missing. The
    earlier limit comes back when training ends, also by an exception; the device's guard sees to kills. Without the
    permission to set limits one line says so and training goes on. A fast_dev_run tries none.

    The limit found before may be an administrator's, for the sake of a supply or the cooling: no limit above it is
    tried or chosen, and it is what the others are compared with, unless `limits_w` names higher ones.

    An emulated GPU slows down under a limit. An emulated NVML does not slow the training, which runs on the CPU: its
    sweep shows that everything works, and its choice means nothing (a line says so).

    Under "kareus" the limit is settled first, and partitions are then profiled and clocks chosen under it; a plan given
    to the strategy is in force during the sweep. Locked clocks save more than limits do: use both where clocks cannot
    be locked, or a power cap is wanted for other reasons. With EnergyMonitor both use one device.

    Args:
        objective: "energy", "time", "cost" (eta x energy + (1 - eta) x highest limit x time) or "max_slowdown"; None:
            "max_slowdown" if one is given, else "cost".
        max_slowdown: least energy among the limits at most this much slower than the highest tried (0.05: 5%).
        eta: weight of energy in "cost".
        limits_w: limits to try, in W; None: from the one found in force down to the device's lowest by `step_w`.
        step_w: see `limits_w`.
        wait_steps, warmup_steps, profile_steps: optimizer steps before the sweep, and of each limit before and in its
            window.
        max_tries: windows of one limit before it is left out.
        noise: relative differences up to this are ties, of which the highest limit is kept.
        profile: file of the profiles; None: power_limits.jsonl in the run's folder.
        device, workload, gpu: as in EnergyMonitor; beside RecurringJob, workload is that of its default batch size.

    Raises:
        RecurringError: settings that cannot be; when training starts, limits outside the device's range.
        StrategyError: when training starts, a Trainer with two of these.
    """

    def __init__(  # what users may set, each by keyword
        self,
        *,
        objective: Literal["energy", "time", "cost", "max_slowdown"] | None = None,
        max_slowdown: float | None = None,
        eta: float = 0.5,
        limits_w: Sequence[float] | None = None,
        step_w: float = 25.0,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        max_tries: int = 3,
        noise: float = 0.01,
        profile: str | Path | None = None,
        device: Device | str | None = None,
        workload: Workload | str | None = None,
        gpu: str = "a100-sxm4-40gb",
    ) -> None:
        super().__init__()
        if not isinstance(profile, (str, Path, type(None))) or (profile is not None and Path(profile).is_dir()):
            raise RecurringError(
                f"profile must be the path of a file, e.g. 'power_limits.jsonl', or None, got {profile!r}"
            )
        self.settings = SweepSettings(
            objective=power_objective(objective, max_slowdown, eta),
            limits_w=parse_limits(limits_w),
            step_w=step_w,
            warmup_steps=warmup_steps,
            profile_steps=profile_steps,
            max_tries=max_tries,
            noise=noise,
        )
        self._wait_steps = whole("wait_steps", wait_steps, least=0)
        self._path = None if profile is None else Path(profile)
        self._choice = DeviceChoice.parse(device, workload, gpu)
        self._clear()
        self.power_limit_w: float | None = None
        """The limit that was settled on, as the device reported it; None before."""
        self.profile: list[PowerLimitSample] = []
        """What the sweep found, of one step: time of the slowest rank, energy over all GPUs."""

    def _clear(self) -> None:
        self.monitored: Monitored | None = None
        self.sweeping = False
        """Whether limits are being tried: the time for nothing else to be measured."""
        self._planner: PowerPlanner | None = None
        self._window: PowerWindow | None = None
        self._begun = False
        self._gpu = math.nan  # this rank's GPU, once the sweep has begun
        self._setting: LimitSetting | None = None
        self._next_step = self._last_step = 0

    # Lightning's hooks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The sweep begins after `wait_steps` more optimizer steps."""
        check_alone(trainer, PowerLimitOptimizerMixin, "PowerLimitOptimizer")
        self._clear()
        self.power_limit_w, self.profile, self.sweeping = None, [], not trainer.fast_dev_run
        if trainer.fast_dev_run:
            say(trainer, "no power limit is tried in a fast_dev_run")
        self._last_step, self._next_step = trainer.global_step, trainer.global_step + self._wait_steps

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Between two optimizer steps: go on with the sweep. Collective at the ends of windows."""
        if not self.sweeping:
            return
        if self.monitored is None:
            self._open(trainer)
        if trainer.global_step >= self._next_step:
            with degrading(lambda line: self._give_up(trainer, line), raising=(MeasurementError, RecurringError)):
                self._go_on(trainer, pl_module, batch)
        if self._window is not None and not self._window.is_open:
            self._window.resume(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Account for an emulated device that nobody else gives work to."""
        if self.monitored is None or not self.monitored.driven:
            return
        with degrading(lambda line: self._give_up(trainer, line)):
            self.monitored.account_batch()
            if trainer.global_step != self._last_step:
                self._last_step = trainer.global_step
                self.monitored.account_step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """What follows is not training: the window pauses."""
        self._pause(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The next epoch's loaders start first: the window pauses."""
        self._pause(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Writing is no step: the window pauses."""
        self._pause(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the earlier limit back."""
        if self.sweeping and self._planner is not None:
            say(trainer, self._planner.unfinished())
        self._give_back()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the earlier limit back."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the earlier limit back."""
        self._close()

    # on every rank

    def _open(self, trainer: Any) -> None:
        recurring = next((one for one in trainer.callbacks if hasattr(one, "batch_ratio")), None)
        ratio = 1.0 if recurring is None else recurring.batch_ratio
        self.monitored = self._choice.scaled(ratio).open(trainer, self)
        before_sigterm(self.monitored.close if self.monitored.owned else self._restore)
        if self.monitored.note:
            say(trainer, self.monitored.note)

    def _pause(self, trainer: Any) -> None:
        if self._window is not None:
            self._window.pause(trainer.global_step)

    def _go_on(self, trainer: Any, pl_module: Any, batch: Any) -> None:
        """A window has ended, or the GPU is warm for one, or none has begun. Collective."""
        if not self._begun:
            order: Order | None = self._begin(trainer, pl_module, batch)
        elif self._window is not None:
            order = self._end_window(trainer)
        else:
            order = self._rounded(trainer)
        if order is not None:
            self._follow(trainer, pl_module, order)
            return
        assert self._setting is not None
        self._window = PowerWindow(self._device, set_w=self._setting.set_w, fault=self._setting.fault)
        self._next_step = trainer.global_step + self.settings.profile_steps

    def _begin(self, trainer: Any, pl_module: Any, batch: Any) -> Order:
        device, rank, self._begun = self._device, trainer.global_rank, True
        self._gpu = gpu_identity(device, rank)
        facts = gather_objects(trainer, gather_facts(device, self._gpu))
        sets = device.emulated or all(one.gpu != self._gpu for one in facts[:rank])  # ranks emulate a device each
        self._setting = LimitSetting(device, sets=sets)
        return on_rank_zero(trainer, lambda: self._plan(trainer, pl_module, batch, facts))

    def _plan(self, trainer: Any, pl_module: Any, batch: Any, facts: Sequence[Facts]) -> Order:
        """On rank 0."""
        fault = why_no_sweep(facts, named=self.settings.limits_w is not None)
        if fault is not None:
            return Order(action="stop", line=f"no power limit is tried, training goes on: {fault}")
        run = describe_job(trainer, pl_module, batch, [one.device for one in {one.gpu: one for one in facts}.values()])
        profile = PowerProfile(self._path or default_profile(trainer), run)
        self._planner = PowerPlanner(self.settings, facts, profile)
        return self._planner.begin()

    def _end_window(self, trainer: Any) -> Order:
        assert self._window is not None
        self._window.add_up(trainer.global_step)
        rows = gather_objects(trainer, self._window.row(self._gpu))
        return on_rank_zero(trainer, lambda: cast(PowerPlanner, self._planner).judge(rows))

    def _rounded(self, trainer: Any) -> Order | None:
        """What to do instead of a window under a limit that the GPUs have made one known already. Collective."""
        assert self._setting is not None
        outcomes = gather_objects(trainer, self._setting.outcome())
        return on_rank_zero(trainer, lambda: cast(PowerPlanner, self._planner).rounded(outcomes))

    def _follow(self, trainer: Any, pl_module: Any, order: Order) -> None:
        if order.line:
            say(trainer, order.line)
        if order.action == "extend":
            self._next_step = trainer.global_step + order.num_steps
            return
        self._close_window()
        assert self._setting is not None
        if order.action == "measure":
            self._setting.set(order.limit_w)
            self._next_step = trainer.global_step + self.settings.warmup_steps
            return
        self.sweeping, self.profile = False, list(order.profile)
        if order.action == "stop":
            self._restore()
            return
        self._setting.set(order.limit_w)
        if self._setting.fault is not None:
            report(trainer, f"{order.limit_w:g} W could not be set, training goes on: {self._setting.fault}")
        self.power_limit_w = float(self._device.power_limit_w)
        name = "emulated_power_limit_w" if has_emulated_figures(self._device) else "power_limit_w"
        pl_module.log_dict({name: self.power_limit_w}, on_step=True, on_epoch=False, batch_size=1)

    @property
    def _device(self) -> Any:
        assert self.monitored is not None
        return self.monitored.device

    def _close_window(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None

    def _restore(self) -> None:
        if self._setting is not None:
            self._setting.restore()

    def _give_up(self, trainer: Any, line: str) -> None:
        say(trainer, f"the power limit is left as it was, training goes on: {line}")
        self._give_back()

    def _give_back(self) -> None:
        """The earlier limit comes back; the device stays open for others. Idempotent."""
        self.sweeping = False
        self._close_window()
        self._restore()

    def _close(self) -> None:
        """Idempotent."""
        self._give_back()
        if self.monitored is not None:
            self.monitored.close()
        self.monitored = None
