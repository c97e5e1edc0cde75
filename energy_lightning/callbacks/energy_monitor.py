"""EnergyMonitor: time, energy and power of the training steps, through Lightning's loggers and progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from energy_lightning.callbacks.job import (
    FAILURES,
    degrading,
    fault_line,
    find_callback,
    gather_rows,
    gpu_identity,
    say,
)
from energy_lightning.callbacks.monitored import Monitored
from energy_lightning.callbacks.observed import TemperatureLog, energy_in_words
from energy_lightning.callbacks.partition_profiler import PartitionProfilerMixin
from energy_lightning.callbacks.shared_device import DeviceChoice
from energy_lightning.callbacks.step_meter import window_s_of
from energy_lightning.device import Device, has_emulated_figures
from energy_lightning.measure import AppendLog, EnergyMeter, EnergyTotal, WindowReading, rows_up_to, sum_over_gpus
from energy_lightning.types import EnergyLightningError
from energy_lightning.workload import Workload


class EnergyMonitorMixin:
    """Logs what training costs. Works with any strategy; profiling and validation are left out.

    Metrics (prefix "emulated_" where the GPU or its NVML is emulated):
        step_time_s       s       one optimizer step, data loading included
        energy_j          J       one optimizer step, this GPU (mean over steps where the counter is slow)
        power_w           W       mean power over it
        total_time_s      s       all steps so far, logged once an epoch
        total_energy_j    J       all steps so far, summed over the job's distinct GPUs, logged once an epoch

    What a real GPU permits is said at the start; the line at an epoch's end tells the range of temperatures too. Normal
    steps never wait for the GPU.

    Totals continue from a checkpoint. Ranks are summed once an epoch and when a checkpoint is written.

    Args:
        device: what is measured: a Device, a name for `open_device`, or None: the strategy's, else an NVIDIA GPU.
        workload: job shape (or preset name) for an emulated device under a strategy that has none.
        gpu: GPU model of such an emulated device.
        records: file that gets one JSON line a step, or None. Lines past the step resumed from are dropped.
        clock_s: wall clock where there is no device.
    """

    def __init__(
        self,
        *,
        device: Device | str | None = None,
        workload: Workload | str | None = None,
        gpu: str = "a100-sxm4-40gb",
        records: str | Path | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self._choice, self._clock_s = DeviceChoice.parse(device, workload, gpu), clock_s
        self._records = None if records is None else AppendLog(records, what="the records in it")
        self._monitored: Monitored | None = None
        self._meter: EnergyMeter | None = None
        self._window, self._window_steps, self._window_s = EnergyTotal(), 0, 0.0
        self._read_at_s: float | None = None  # from then on a step's end is worth a reading; None: every one is
        self._temperatures: TemperatureLog | None = None
        self._left_out, self._last_global_step = EnergyTotal(), 0
        self._before = EnergyTotal()  # of the whole job, when this fit began
        self._started = False
        self._profiler: PartitionProfilerMixin | None = None
        self.own = EnergyTotal()
        """This GPU's steps since training began here."""
        self.total = EnergyTotal()
        """The whole job's steps, as of the last epoch's end or checkpoint."""
        self.num_steps = 0

    # Lightning's hooks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the device and start counting. Collective."""
        self._monitored = self._choice.open(trainer, self, clock_s=self._clock_s)
        for line in filter(None, (self._monitored.note, self._monitored.mode_line)):
            say(trainer, line)
        self._last_global_step, self.own, self._before = trainer.global_step, EnergyTotal(), self.total
        self._started, self._profiler = True, find_callback(trainer, PartitionProfilerMixin)
        with degrading(lambda line: self._give_up(trainer, line)):
            self._open(trainer, self._monitored.device)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After an optimizer step: read, and log when the window is long enough."""
        monitored = self._monitored
        if self._meter is None or monitored is None:
            return
        try:
            if monitored.driven:
                monitored.account_batch()
            global_step = trainer.global_step  # Lightning takes seven calls to tell
            if global_step == self._last_global_step:
                return
            self._last_global_step = global_step
            if monitored.driven:
                monitored.account_step()
            self.num_steps += 1
            self._window_steps += 1
            if self._read_at_s is None or monitored.device.now_s() >= self._read_at_s:
                self._read_step(trainer, pl_module)
        except FAILURES as error:
            self._give_up(trainer, fault_line(error))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Totals over all GPUs, and one line. Collective, also where this rank's readings have ended."""
        if not self._started:
            return
        self._reduce(trainer)
        metrics = {"total_time_s": self.total.time_s}
        if self._has_energy and self.total.energy_j > 0.0:  # no GPU draws nothing: a slow counter has not moved yet
            metrics["total_energy_j"] = self.total.energy_j
        # Summed already: with both flags Lightning neither reduces again nor recommends that it should.
        options = {"on_step": False, "on_epoch": True, "sync_dist": True, "rank_zero_only": True, "batch_size": 1}
        pl_module.log_dict(self._named(metrics), **options)
        if self._temperatures is not None:
            self._temperatures.read()
        say(trainer, self.summary(trainer.current_epoch))
        self._temperatures = None if self._monitored is None else TemperatureLog(self._monitored.device.temperature_c)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """What follows is not training."""
        if self._meter is not None and not trainer.sanity_checking:
            self._read()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Training goes on."""
        if self._meter is not None and not trainer.sanity_checking:
            self._meter.start()
            self._plan_reading()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The checkpoint holds the whole job's totals, whichever rank writes it. Collective."""
        if self._started and "callbacks" in checkpoint:
            self._reduce(trainer)
            checkpoint["callbacks"][self.state_key] = self.state_dict()  # type: ignore[attr-defined]

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop background sampling."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop background sampling."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """The job's totals; counters are not kept, they start anywhere."""
        total = self.total
        return {
            "energy_j": total.energy_j,
            "time_s": total.time_s,
            "complete": total.complete,
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Totals go on from these."""
        self.num_steps = int(state_dict["num_steps"])
        energy_j, time_s = float(state_dict["energy_j"]), float(state_dict["time_s"])
        self.total = EnergyTotal(energy_j, time_s, bool(state_dict["complete"]))

    # what they do

    @property
    def monitored(self) -> Monitored | None:
        """What is measured during training, for other callbacks to use too; None outside."""
        return self._monitored

    def summary(self, epoch: int) -> str:
        """One line about everything so far."""
        if self._monitored is None or self.num_steps == 0:
            return f"epoch {epoch}: no steps"
        device, each_s = self._monitored.device, self.total.time_s / self.num_steps
        line = f"epoch {epoch}: {each_s:.4g} s a step, {self.total.time_s:.4g} s in all"
        line += f", {energy_in_words(self.total, self.own) if self._has_energy else 'energy not known'}"
        if self._temperatures is not None and self._temperatures.text:
            line += f", {self._temperatures.text}"
        return line + (f" (EMULATED: {device.name})" if has_emulated_figures(device) else f" ({device.name})")

    def _open(self, trainer: Any, device: Any) -> None:
        self._meter = EnergyMeter(device)
        self._temperatures = TemperatureLog(device.temperature_c)
        self._window_s = window_s_of(device)
        if self._records is not None and trainer.is_global_zero:
            _drop_later(self._records, trainer.global_step)
        self._left_out = self._spent_in_profiling()
        self._meter.start()
        self._plan_reading()

    def _read_step(self, trainer: Any, pl_module: Any) -> None:
        """Read at a step's end; log what the window holds if it is long enough."""
        reading = self._read()
        if self._records is not None and self._monitored is not None and trainer.is_global_zero:
            row = {"step": trainer.global_step, "time_s": reading.time_s, "energy_j": reading.energy_j}
            self._records.append([{**row, "source": reading.source, "mode": self._monitored.device.mode}])
        if self._window.time_s < self._window_s:
            return
        window, num_steps = self._window, self._window_steps
        self._window, self._window_steps = EnergyTotal(), 0
        self._plan_reading()
        metrics = {"step_time_s": window.time_s / num_steps}
        if window.complete and self._has_energy:
            metrics |= {"energy_j": window.energy_j / num_steps, "power_w": window.energy_j / window.time_s}
        pl_module.log_dict(self._named(metrics), prog_bar=True, on_step=True, on_epoch=False, batch_size=1)

    def _plan_reading(self) -> None:
        """A slow counter is read at the first step's end at which the window is long enough: each reading is a call."""
        assert self._meter is not None
        each_step = self._window_s == 0.0 or self._records is not None
        self._read_at_s = None if each_step else self._meter.open_since_s + self._window_s - self._window.time_s

    def _read(self) -> WindowReading:
        """Count the time and energy since the last reading."""
        assert self._meter is not None
        reading = self._without_profiling(self._meter.lap())
        self.own.add(reading)
        self._window.add(reading)
        self._plan_reading()
        if self._temperatures is not None:
            self._temperatures.add(reading.time_s)
        return reading

    def _without_profiling(self, reading: WindowReading) -> WindowReading:
        """The reading less what the profiler spent meanwhile, in whichever order the callbacks run."""
        before, spent = self._left_out, self._spent_in_profiling()
        self._left_out = spent
        time_s, energy_j = reading.time_s - (spent.time_s - before.time_s), reading.energy_j
        if energy_j is not None:
            energy_j = max(0.0, energy_j - (spent.energy_j - before.energy_j))
        return replace(reading, time_s=max(0.0, time_s), energy_j=energy_j)

    def _spent_in_profiling(self) -> EnergyTotal:
        spent = EnergyTotal() if self._profiler is None else self._profiler.spent
        return EnergyTotal(spent.energy_j, spent.time_s)

    def _reduce(self, trainer: Any) -> None:
        """Sum over the job's distinct GPUs, steps not read yet included. Collective."""
        if self._meter is not None and self._window_steps:
            with degrading(lambda line: self._give_up(trainer, line)):
                self._read()
        device = None if self._monitored is None else self._monitored.device
        own = (gpu_identity(device, trainer.global_rank), self.own.energy_j, self.own.time_s, float(self.own.complete))
        rows = gather_rows(trainer, own)
        energy_j = sum_over_gpus((row[0], row[1]) for row in rows)
        self.total = EnergyTotal(
            self._before.energy_j + energy_j,
            self._before.time_s + max(row[2] for row in rows),
            self._before.complete and all(row[3] for row in rows),
        )

    @property
    def _has_energy(self) -> bool:
        return self._monitored is not None and self._monitored.device.energy_source != "none"

    def _named(self, metrics: Mapping[str, float]) -> dict[str, float]:
        emulated = self._monitored is not None and has_emulated_figures(self._monitored.device)
        return {f"emulated_{name}" if emulated else name: value for name, value in metrics.items()}

    def _give_up(self, trainer: Any, line: str) -> None:
        say(trainer, f"energy is no longer monitored, training goes on: {line}")
        self.own.complete = False
        self._close_meter()

    def _close(self) -> None:
        self._started = False
        self._close_meter()
        if self._monitored is not None and self._monitored.owned:
            self._monitored.close()
            self._monitored = None

    def _close_meter(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None


def _drop_later(records: AppendLog, step: int) -> None:
    """Keep the records up to the step that training resumes from."""
    rows = [row for _, row in records.read()]
    if any("step" not in row for row in rows):
        raise EnergyLightningError(f"{records.path} holds no step records; move it away or choose another file")
    kept = rows_up_to(rows, step)
    if len(kept) < len(rows):
        records.replace_with(kept)
