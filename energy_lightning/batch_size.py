"""RecurringJob: a training that recurs takes its batch size from what earlier runs cost, and reports what it cost."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from energy_lightning.callbacks.attributes import BatchAttributes, loader_fault
from energy_lightning.callbacks.evaluations import Evaluations
from energy_lightning.callbacks.job import check_alone, degrading, on_rank_zero, say
from energy_lightning.callbacks.monitored import Monitored
from energy_lightning.callbacks.recurring_run import RecurringRun, Target, Verdict, parse_options
from energy_lightning.callbacks.run_meter import JobMeter, Spent
from energy_lightning.callbacks.shared_device import DeviceChoice, gather_objects
from energy_lightning.device import Device, has_emulated_figures
from energy_lightning.recurring import RecurringError
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

    A store that fails during a run (deleted, no space) ends no training: one line tells the figures, to report later.

    A run that ends without the target is reported as such, also one that ran out of memory (with the wall time where
    nothing was metered yet). One that was interrupted or failed, or never logged `monitor`, says nothing of its batch
    size and is not reported; a killed one neither, its lease ends. A run resumed from a checkpoint goes on under its
    own batch size, with what it has spent; one that had reached its target ends. With PowerLimitOptimizer each batch
    size runs under its own best limit, so that both are chosen jointly: the first run of a size pays for the sweep. A
    fast_dev_run suggests and reports nothing. On an emulated NVML the time is the CPU's and the energy goes with it:
    runs show that choosing works, not which size is cheap.

    Args:
        batch_sizes: to choose from: values of the attribute, so per process where loaders are.
        default: the one that the job has run with so far.
        store: SQLite file that all runs of the job share.
        monitor, target, mode: the metric (as for EarlyStopping), the value to reach, and whether "max" or "min" is
            better. Looked at after validation and after each epoch.
        batch_size, learning_rate: names of the attributes; learning_rate is that of the default batch size.
        scaling: how the learning rate goes with the batch size: "linear", "sqrt" or "none" (`scaled_learning_rate`).
        check_every_n_steps: optimizer steps between two looks at the cost.
        device, workload, gpu: as in EnergyMonitor; `workload` is that of the default batch size, and goes with it where
            no other callback has opened the emulated GPU before.
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
        self._active = False
        self.batch_size: int | None = None
        """This run's."""
        self._clear()

    def _clear(self) -> None:
        self._run: RecurringRun | None = None  # on rank 0
        self._run_id: int | None = None
        self._resumed: Mapping[str, Any] | None = None
        self.monitored: Monitored | None = None
        self._meter: JobMeter | None = None
        self._evaluations: Evaluations | None = None
        self._reported = self._outlived = self._asked = False
        self._last_step = self._next_look = 0
        self.spent: Spent | None = None
        """The whole job's, as of the last look; once the verdict is there, as of then."""
        self.verdict: Verdict = "going on"

    # Lightning's hooks

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Ask the store for a batch size and put it where loaders and optimizers are made from. Collective."""
        self._active = self._counting = stage == "fit" and not trainer.fast_dev_run
        if stage != "fit":
            return
        check_alone(trainer, RecurringJobMixin, "RecurringJob")
        self._clear()
        if not self._active:
            return
        self._evaluations = Evaluations(monitor=self._target.monitor)
        self._use(trainer, pl_module, on_rank_zero(trainer, lambda: self._suggest(trainer)))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The run that a checkpoint belongs to goes on."""
        self._resumed = dict(state_dict) or None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """A resumed run keeps its batch size, so loaders get that. Collective then."""
        resumed, run = self._resumed, self._run
        if not self._active or resumed is None:
            return
        self._evaluations = Evaluations.resumed(self._target.monitor, resumed.get("evaluations"))
        batch_size = int(resumed["batch_size"])
        over = resumed.get("reached") == asdict(self._target)
        on_rank_zero(trainer, lambda: None if run is None else run.resume(resumed["run_id"], batch_size, over=over))
        self._use(trainer, pl_module, batch_size)
        if over:
            self._active = self._counting = False
            self.verdict, trainer.should_stop = "reached", True
            say(trainer, "the run of this checkpoint has reached its target and is reported: there is nothing to train")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count steps from here."""
        self._last_step, self._next_look = trainer.global_step, trainer.global_step + self._every

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The first one starts the clock; an epoch's first one sees what was logged last in the epoch. Collective."""
        if self.verdict in ("reached", "too dear") and trainer.should_stop and not self._outlived:
            self._outlived = True
            say(trainer, "training goes on (min_steps or min_epochs of the Trainer); what follows does not count")
        if self._active and self._meter is None:
            self._open(trainer)
            if fault := loader_fault(trainer, self.batch_size):
                say(trainer, fault)
        elif batch_idx == 0:
            self._ask(trainer)
            self._look(trainer, trainer.callback_metrics)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Account for an emulated device that nobody else gives work to; now and then look at the cost. Collective."""
        if self.monitored is None:
            return
        stepped, self._last_step = trainer.global_step != self._last_step, trainer.global_step
        if self.monitored.driven:
            with degrading(lambda line: say(trainer, f"emulated accounting stops: {line}")):
                self.monitored.account_batch()
                if stepped:
                    self.monitored.account_step()
        if stepped and trainer.global_step >= self._next_look:
            self._next_look = trainer.global_step + self._every
            self._look(trainer, {})

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Whether the metric comes from the validation."""
        if evaluations := self._counted(trainer):
            evaluations.validation_begins(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Has the metric reached its target? Collective."""
        if evaluations := self._counted(trainer):
            evaluations.validation_ended(trainer.callback_metrics)
        if not trainer.sanity_checking:
            self._look(trainer, trainer.callback_metrics)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Has the metric reached its target? Collective."""
        if evaluations := self._counted(trainer):
            evaluations.epoch_ended(trainer.callback_metrics)
        self._look(trainer, trainer.callback_metrics)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The checkpoint holds what the whole job has spent, whichever rank writes it. Collective."""
        if "callbacks" not in checkpoint:
            return
        state = self._resumed
        if self._meter is not None and self.spent is not None:  # after the first batch
            reached = asdict(self._target) if self.verdict == "reached" and self._reported else None
            whole = self._meter.read(trainer)
            spent = self.spent if reached else whole  # without its target all of it counts
            state = {"batch_size": self.batch_size, "run_id": self._run_id, "reached": reached}
            state |= {"time_s": spent.time_s, "energy_j": spent.energy_j or 0.0}
            state |= {"evaluations": None if self._evaluations is None else self._evaluations.state()}
        if state is not None:
            checkpoint["callbacks"][self.state_key] = state  # type: ignore[attr-defined]

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report a run that is over without a verdict. Collective."""
        self._look(trainer, trainer.callback_metrics)  # a metric may have been logged since
        if self._active and self._meter is not None:
            self.verdict = "ended"
            self._report(trainer)
        elif self.verdict == "too dear" and self._meter is not None:
            self._meter.read(trainer)  # for a checkpoint that is saved after the fit

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """A run that did not fit into memory is reported, any other failure is not. On rank 0 alone, no collective."""
        if self._active and self._run is not None:
            if self._meter is not None:  # also for a checkpoint that is saved hereafter
                self.spent = self._meter.read_alone()
            self.verdict = self._run.fail(exception, self.spent)
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the device."""
        if self._active and self._run is not None:
            self._run.abandon()  # there was nothing to train
        self._close()

    # what they do

    def _suggest(self, trainer: Any) -> int:
        """On rank 0."""
        lines = partial(say, trainer)
        self._run = RecurringRun(self.batch_sizes, self.store, self._settings, self._target, lines)
        return self._run.batch_size

    def _use(self, trainer: Any, pl_module: Any, batch_size: int) -> None:
        """A second fit may be of the same module, which has our size, or of a new one."""
        owners = (trainer.datamodule, pl_module)
        self._attributes.change(owners, batch_size, ours=self.batch_size, default=self.default)
        self.batch_size = batch_size
        say(trainer, f"batch size {batch_size} for this run ({self.store})")

    def _open(self, trainer: Any) -> None:
        assert self.batch_size is not None
        self.monitored = self._choice.scaled(self.batch_size / self.default).open(trainer, self)
        if self.monitored.note:
            say(trainer, self.monitored.note)
        device = self.monitored.device
        self._meter = JobMeter(trainer, device, self._resumed or {})
        if self._needs_energy and not all(gather_objects(trainer, device.energy_source != "none")):
            raise RecurringError(
                "RecurringJob: energy is not measured on every rank, so runs cannot be compared by it. Choose by time "
                "with eta=0, or measure: device='nvidia', or an emulated one with workload=..."
            )
        self.spent = self._meter.read(trainer)
        run, limit_w, emulated = self._run, self.spent.limit_w, has_emulated_figures(device)

        def begin() -> int | None:
            return None if run is None else run.begin(max_power_w=limit_w, emulated=emulated)

        self._run_id = on_rank_zero(trainer, begin)

    def _counted(self, trainer: Any) -> Evaluations | None:
        """Where evaluations are counted now: what follows the target, a sanity check and validate() do not count."""
        return self._evaluations if self._counting and not trainer.sanity_checking else None

    def _look(self, trainer: Any, metrics: Mapping[str, Any]) -> None:
        """What the run has cost, whether it is there, whether it goes on; the report where it is over. Collective.

        Lightning heeds `should_stop` only after the Trainer's min_steps and min_epochs.
        """
        if not self._active or self._meter is None:
            return
        spent, run = self._meter.read(trainer), self._run
        self.spent = spent
        self.verdict = on_rank_zero(trainer, lambda: "going on" if run is None else run.judge(metrics, spent))
        if self.verdict != "going on":
            trainer.should_stop = True
            self._report(trainer)

    def _ask(self, trainer: Any) -> None:
        """After the first epoch that validates, say once where the metric is not to be seen."""
        every = trainer.check_val_every_n_epoch
        if self._active and not self._asked and every is not None and trainer.current_epoch >= every:
            self._asked = True
            if missing := self._target.missing(trainer.callback_metrics):
                say(trainer, f"the run may not be reported: so far {missing}")

    def _report(self, trainer: Any) -> None:
        """Collective."""
        assert self.spent is not None
        spent, run, verdict, metrics = self.spent, self._run, self.verdict, trainer.callback_metrics
        reached, evaluations = verdict == "reached", self._evaluations
        num = None if evaluations is None else evaluations.completed(metrics, reached=reached)
        ended = on_rank_zero(trainer, lambda: (False, "") if run is None else run.end(verdict, metrics, spent, num))
        self._active, self._reported, self._counting = False, ended[0], self._counting and not reached
        say(trainer, ended[1])

    def _close(self) -> None:
        self._active = False
        if self._meter is not None:
            self._meter.close()
        if self.monitored is not None:
            self.monitored.close()
        self.monitored = None
