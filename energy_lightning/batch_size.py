"""RecurringJob: a training that recurs takes its batch size from what earlier runs cost, and reports what it cost."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from energy_lightning.callbacks.attributes import BatchAttributes
from energy_lightning.callbacks.comparable import loader_doubt, loader_fault, mark_trained, start_fault, workload_doubt
from energy_lightning.callbacks.job import check_alone, degrading, say
from energy_lightning.callbacks.job_run import JobRun
from energy_lightning.callbacks.monitored import Monitored
from energy_lightning.callbacks.recurring_run import RecurringRun, parse_options
from energy_lightning.callbacks.run_meter import Spent
from energy_lightning.callbacks.shared_device import DeviceChoice
from energy_lightning.callbacks.target import Target
from energy_lightning.callbacks.verdicts import Verdict
from energy_lightning.device import Device
from energy_lightning.recurring.errors import whole
from energy_lightning.recurring.store import checked_path
from energy_lightning.workload import Workload


class RecurringJobMixin:
    """Suggests this run's batch size, stops a run that gets too dear, and reports the run to the store once.

        job = RecurringJob([8, 16, 32, 64], default=32, store="job.sqlite", monitor="val_acc", target=0.84,
                           learning_rate="lr", scaling="sqrt")
        Trainer(callbacks=[job]).fit(model, datamodule)

    When fit begins, the attribute `batch_size` of the datamodule or module (or of its hparams) is set, and with
    `scaling` its learning rate, before loaders and optimizers are made from them. The run ends when `monitor` reaches
    `target`, or when it has cost `beta` times the least that a run needed to reach it; it is reported at once, and what
    the Trainer's min_steps or min_epochs still ask for does not count. Cost is that of BatchSizeOptimizer, from the
    first batch to the last, validation included: energy over all distinct GPUs, time of the slowest rank. Only rank 0
    touches the store; a look at the cost is one gather and one broadcast.

    The report says how often the target could be met: after how many validations, where `monitor` comes from these, and
    otherwise after how many training epochs. One that is stopped in the middle of its 8th completed 7.

    A store that fails during a run (deleted, no space) ends no training: one line tells the figures, to report later.

    A run that ends without the target is reported as such. Out of memory is reported (with the wall time alone where
    nothing was metered yet) and then raised out of fit all the same: the next run gets another size; a rank other than
    0 that runs out of memory reports it itself, where it sees the store's file. A run that was interrupted or failed,
    or never logged `monitor`, says nothing of its batch size and is not reported; a killed one neither, its lease ends.
    A size of which more runs in a row ended so than ever were reported is tried ever more seldom. A run resumed from a
    checkpoint goes on under its own batch size, with what it has spent (as a new run in another store); one that had
    reached its target ends. A fast_dev_run suggests and reports nothing.

    Three more kinds of runs are trained and not reported, with a line that says so. One that does not begin as others
    do (a module that was trained for this job before, also a copy of it; a Trainer that goes on; a checkpoint without
    our state) costs too little, and one such figure would stop every later run at `beta` times itself, and make its
    size look cheap for good. One whose loader makes batches of another size says nothing of the one suggested (a line
    tells where it may be that of all processes together). One that goes on from a checkpoint of a run that has reached
    its target since then is in the store already.

    With PowerLimitOptimizer each batch size runs under its own best limit, so that both are chosen jointly: the first
    run of a size pays for the sweep. On an emulated NVML the time is the CPU's and the energy goes with it: runs show
    that choosing works, not which size is cheap.

    Args:
        batch_sizes: to choose from: values of the attribute, so per process where loaders are.
        default: the one that the job has run with so far.
        store: SQLite file that all runs of the job share.
        monitor, target, mode: the metric (as for EarlyStopping), the value to reach, and whether "max" or "min" is
            better. Looked at after validation and after each epoch.
        batch_size, learning_rate: names of the attributes; learning_rate is that of the default batch size.
        scaling: how the learning rate goes with the batch size: "linear", "sqrt" or "none" (`scaled_learning_rate`).
        check_every_n_steps: optimizer steps between two looks at the cost.
        device, workload, gpu: as in EnergyMonitor; `workload` is that of the default batch size, and goes with it, in
            whole sequences. One line tells where it cannot.
        options: of BatchSizeOptimizer: eta, beta, seed, policy, window, lease_s, max_power_w (left out: the highest
            limits of the GPUs together).

    Raises:
        RecurringError: settings that cannot be; when fit begins, attributes that nothing has, and StoreError; with the
            first batch, energy that cannot be measured though eta > 0.
        StrategyError: when fit begins, a Trainer with two of these.
    """

    def __init__(  # what users may set, each by keyword
        self,
        batch_sizes: Sequence[int],
        *,
        default: int,
        store: str | Path,
        monitor: str,
        target: float,
        mode: Literal["min", "max"] = "max",
        batch_size: str = "batch_size",
        learning_rate: str = "learning_rate",
        scaling: str = "none",
        check_every_n_steps: int = 50,
        device: Device | str | None = None,
        workload: Workload | str | None = None,
        gpu: str = "a100-sxm4-40gb",
        **options: Any,
    ) -> None:
        super().__init__()
        settings = parse_options(batch_sizes, default, options, inspect.signature(RecurringJobMixin).parameters)
        self._target = Target(monitor=monitor, value=target, mode=mode)
        self._settings = {"default": default, **options}
        self._attributes = BatchAttributes(batch_size=batch_size, learning_rate=learning_rate, scaling=scaling)
        self.batch_sizes, self.default, self.store = settings.batch_sizes, settings.default, checked_path(store)
        self._every = whole("check_every_n_steps", check_every_n_steps, least=1)
        self._needs_energy = settings.eta > 0.0
        self._choice = DeviceChoice.parse(device, workload, gpu)
        self.batch_size: int | None = None
        """This run's."""
        self._clear(active=False)

    def _clear(self, *, active: bool) -> None:
        self._job = JobRun(self._target, self.store, active=active)
        self.monitored: Monitored | None = None
        self._outlived = self._asked = self._marked = False
        self._last_step = self._next_look = 0

    @property
    def spent(self) -> Spent | None:
        """The whole job's, as of the last look; once the verdict is there, as of then."""
        return self._job.spent

    @property
    def verdict(self) -> Verdict:
        """What has become of this run; "no run" before one, in a fast_dev_run, and where other processes train."""
        return self._job.verdict

    @property
    def batch_ratio(self) -> float:
        """This run's batch size in defaults; other callbacks' emulated workloads go with it."""
        return 1.0 if self.batch_size is None else self.batch_size / self.default

    # Lightning's hooks

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Ask the store for a batch size and put it where loaders and optimizers are made from. Collective."""
        if stage != "fit":
            return
        check_alone(trainer, RecurringJobMixin, "RecurringJob")
        self._clear(active=not trainer.fast_dev_run)
        if trainer.fast_dev_run:
            say(trainer, "no batch size is suggested and no run reported in a fast_dev_run")
            return
        given = (self.batch_sizes, self.store, self._settings, self._target, partial(say, trainer))
        self._use(trainer, pl_module, self._job.suggest(trainer, lambda: RecurringRun(*given)))

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Mapping[str, Any]) -> None:
        """The run that it belongs to goes on under its batch size, so loaders and optimizers get that. Collective.

        Where a strategy loads late (FSDP, DeepSpeed), optimizers are there already: the checkpoint has their rates.
        """
        state = checkpoint.get("callbacks", {}).get(self.state_key)  # type: ignore[attr-defined]
        if not self._job.active or not state:
            return
        self._use(trainer, pl_module, self._job.resume(trainer, state))
        if self.verdict == "reached":
            trainer.should_stop = True
            say(trainer, "the run of this checkpoint has reached its target and is reported: there is nothing to train")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count steps from here."""
        if self._job.active:  # by now it is known whether the run is resumed
            goes_on = ", which goes on" if self._job.resumed else ""
            say(trainer, f"batch size {self.batch_size} for this run{goes_on} ({self.store})")
        self._last_step, self._next_look = trainer.global_step, trainer.global_step + self._every

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The first one starts the clock; an epoch's first one sees what was logged last in the epoch. Collective."""
        if self.verdict in ("reached", "too dear") and trainer.should_stop and not self._outlived:
            self._outlived = True
            say(trainer, "training goes on (min_steps or min_epochs of the Trainer); what follows does not count")
        if self._job.active and not self._job.opened:
            self._open(trainer, pl_module)
        elif batch_idx == 0:
            self._ask(trainer)
            self._job.look(trainer, trainer.callback_metrics)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Account for an emulated device that nobody else gives work to; now and then look at the cost. Collective."""
        if self.monitored is None:
            return
        stepped, self._last_step = trainer.global_step != self._last_step, trainer.global_step
        if stepped and not self._marked:
            self._marked = True
            mark_trained(pl_module, self.store)
        if self.monitored.driven:
            with degrading(lambda line: say(trainer, f"emulated accounting stops: {line}")):
                self.monitored.account_batch()
                if stepped:
                    self.monitored.account_step()
        if stepped and trainer.global_step >= self._next_look:
            self._next_look = trainer.global_step + self._every
            self._job.look(trainer, {})

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Whether the metric comes from the validation."""
        if evaluations := self._job.counted(trainer):
            evaluations.validation_begins(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Has the metric reached its target? Collective."""
        if evaluations := self._job.counted(trainer):
            evaluations.validation_ended(trainer.callback_metrics)
        if not trainer.sanity_checking:
            self._job.look(trainer, trainer.callback_metrics)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Has the metric reached its target? Collective."""
        if evaluations := self._job.counted(trainer):
            evaluations.epoch_ended(trainer.callback_metrics)
        self._job.look(trainer, trainer.callback_metrics)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The checkpoint holds what the whole job has spent, whichever rank writes it. Collective."""
        if "callbacks" in checkpoint and (state := self._job.state(trainer, self.batch_size)) is not None:
            checkpoint["callbacks"][self.state_key] = state  # type: ignore[attr-defined]

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report a run that is over without a verdict. Collective."""
        self._job.end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """A run that did not fit into memory is reported, any other failure is not. No collective."""
        self._job.fail(trainer, exception, self.batch_size)
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the device."""
        self._job.abandon(trainer, self.batch_size)
        self._close()

    # what they do

    def _use(self, trainer: Any, pl_module: Any, batch_size: int) -> None:
        """A second fit may be of the same module, which has our size, or of a new one."""
        owners = (trainer.datamodule, pl_module)
        self._attributes.change(owners, batch_size, ours=self.batch_size, default=self.default)
        self.batch_size = batch_size

    def _open(self, trainer: Any, pl_module: Any) -> None:
        """Collective."""
        assert self.batch_size is not None
        self.monitored = self._choice.scaled(self.batch_ratio).open(trainer, self)
        if self.monitored.note:
            say(trainer, self.monitored.note)
        if doubt := workload_doubt(self.monitored.device, self._choice.workload, self.batch_size, self.default):
            say(trainer, doubt)
        fault = start_fault(trainer, pl_module, self.store, resumed=self._job.resumed is not None)
        fault = fault or loader_fault(trainer, self.batch_size)
        self._job.open(trainer, self.monitored.device, needs_energy=self._needs_energy, fault=fault)
        if self._job.fault is None and not self._job.earlier and (doubt := loader_doubt(trainer, self.batch_size)):
            say(trainer, doubt)

    def _ask(self, trainer: Any) -> None:
        """After the first epoch that validates, say once where the metric is not to be seen."""
        every = trainer.check_val_every_n_epoch
        if self._job.active and not self._asked and every is not None and trainer.current_epoch >= every:
            self._asked = True
            if missing := self._target.missing(trainer.callback_metrics):
                say(trainer, f"the run may not be reported: so far {missing}")

    def _close(self) -> None:
        self._job.close()
        if self.monitored is not None:
            self.monitored.close()
        self.monitored = None
