"""EmulatedDevice: virtual time, energy and temperature of one GPU that runs a workload's partitions.

The real training may run on the CPU meanwhile; every figure that this device gives is a model's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from energy_lightning.emulation import GPU, Estimate, emulate_iteration_end, emulate_phase
from energy_lightning.emulation.gpu import Floats
from energy_lightning.emulation.gradients import emulate_added
from energy_lightning.emulation.thermal import heat, leakage_w
from energy_lightning.emulation.throttling import Rows, unlimited, within_power_limit
from energy_lightning.types import DeviceError, DeviceMode, EnergySource, PhasePlan, Schedule
from energy_lightning.workload import Partition, Workload

_Work = tuple[str, object, object]


class EmulatedDevice:
    """A `Device` on a virtual clock.

    Args:
        gpu: the GPU model.
        workload: the job whose phases `run_phase` executes.
        seed: None: no noise; else each run's time and power are multiplied by 1 + noise_std x a normal draw.
        noise_std: relative noise of one run.
        counter_refresh_s: the energy counter moves only every so often (NVML: about 0.1 s); 0: always exact.
        stage: pipeline stage that this GPU belongs to.

    A run whose mean power would exceed the power limit runs at the highest clock that does not; `frequency_mhz` then
    tells that clock. Not modelled: power excursions inside a run, temperature limits, the time to set a power limit.
    """

    emulated = virtual_clock = True
    energy_source: EnergySource = "emulated"
    uuid: str | None = None
    mode: DeviceMode = "full"
    mode_reason = "emulated: a GPU model keeps time and energy, every clock and power limit can be set"
    can_lock_frequency = can_set_power_limit = True

    def __init__(
        self,
        gpu: GPU,
        workload: Workload,
        *,
        seed: int | None = None,
        noise_std: float = 0.01,
        counter_refresh_s: float = 0.0,
        stage: int = 0,
    ) -> None:
        if not 0.0 <= noise_std < 0.2:
            raise DeviceError(f"noise_std must be a fraction from 0 to 0.2, got {noise_std!r}")
        if not 0.0 <= counter_refresh_s <= 10.0:
            raise DeviceError(f"counter_refresh_s must be from 0 to 10 s, got {counter_refresh_s!r}")
        self.gpu, self.workload, self.stage = gpu, workload, stage
        self.name = f"{gpu.display_name} (emulated)"
        self.num_sms, self.frequencies_mhz = gpu.num_sms, gpu.frequencies_mhz
        self.static_power_w, self.blocking_power_w = gpu.static_power_w, gpu.blocking_power_w
        self.power_limit_range_w: tuple[float, float] | None = gpu.power_limit_range_w
        self.counter_refresh_s, self.switch_time_s = counter_refresh_s, gpu.switch_time_s
        self._limited = gpu  # with the power limit in force
        self._noise = None if seed is None else np.random.default_rng(seed)
        self._noise_std = noise_std
        self._time_s = self._energy_j = self._counter_j = 0.0
        self._power_w = gpu.static_power_w
        self._temperature_c = heat(gpu.thermal, gpu.thermal.ambient_c, gpu.static_power_w, 1e6)[0]  # idle, settled
        self._locked_mhz: int | None = None
        self._actual_mhz = gpu.max_frequency_mhz
        self._throttled = False
        self._estimates: dict[tuple[_Work, int], Estimate] = {}

    # clock, energy, temperature

    def now_s(self) -> float:
        """Virtual time in s since the device was opened."""
        return self._time_s

    def energy_j(self) -> float:
        """Energy in J since the device was opened, as its counter shows it (see `counter_refresh_s`)."""
        return self._counter_j

    def power_w(self) -> float:
        """Mean power in W of the last run or rest."""
        return self._power_w

    def temperature_c(self) -> float:
        """Chip temperature in C."""
        return self._temperature_c

    def synchronize(self) -> None:
        """Nothing is pending on a virtual clock."""

    def idle(self, time_s: float) -> None:
        """Rest for `time_s` at static power; the chip cools."""
        if not time_s >= 0.0:
            raise DeviceError(f"cannot idle for {time_s!r} s; give a time >= 0")
        self._advance(time_s, self.gpu.static_power_w)

    # frequency

    def lock_frequency(self, frequency_mhz: int) -> None:
        """Lock the SM clock; a change takes `switch_time_s` at blocking power."""
        self.gpu.check_frequency(frequency_mhz)
        if frequency_mhz != (self._locked_mhz or self.gpu.max_frequency_mhz):
            self._advance(self.switch_time_s, self.blocking_power_w)
        self._locked_mhz = self._actual_mhz = frequency_mhz
        self._throttled = False

    def reset_frequency(self) -> None:
        """Back to the highest clock."""
        if self._locked_mhz is not None:
            self.lock_frequency(self.gpu.max_frequency_mhz)
            self._locked_mhz = None

    def frequency_mhz(self) -> int:
        """SM clock of the last run (lower than the locked one where the power limit throttled), else the locked one."""
        return self._actual_mhz

    def requested_frequency_mhz(self) -> int | None:
        """The locked SM clock; None: none is."""
        return self._locked_mhz

    def throttle_reasons(self) -> tuple[str, ...]:
        """("sw_power_cap",) where the power limit held the last run below the clock asked for."""
        return ("sw_power_cap",) if self._throttled else ()

    # power limit

    @property
    def power_limit_w(self) -> float:
        """The power limit in force."""
        return self._limited.power_limit_w

    def set_power_limit(self, power_limit_w: float) -> float:
        """Set the power limit of the runs to come; returns it. DeviceError outside `power_limit_range_w`."""
        least_w, most_w = self.gpu.power_limit_range_w
        if not least_w <= power_limit_w <= most_w:
            raise DeviceError(f"{self.name} takes power limits of {least_w:g} to {most_w:g} W, got {power_limit_w!r}")
        self._limited = self.gpu.with_constants(power__limit_w=float(power_limit_w))
        return self.power_limit_w

    def reset_power_limit(self) -> None:
        """Back to the GPU model's limit."""
        self._limited = self.gpu

    def close(self) -> None:
        """Lock and power limit are given back."""
        self._locked_mhz = None
        self.reset_power_limit()

    # work

    def run_partition(self, partition: Partition, schedule: Schedule | None = None, *, repeats: int = 1) -> Estimate:
        """Execute `partition` `repeats` times; returns what one execution took (noise and heat included).

        "grad_bucket" is executed behind the workload's sequential backward, of which nothing is counted.
        """
        return self._run(("partition", partition, schedule), repeats)

    def run_phase(self, phase_plan: PhasePlan, *, repeats: int = 1) -> Estimate:
        """Execute one microbatch's phase at the locked frequency (the plan's own frequency is not looked at)."""
        return self._run(("phase", replace(phase_plan, frequency_mhz=None), None), repeats)

    def run_iteration_end(self, phase_plan: PhasePlan) -> Estimate:
        """Gradient reduction over data parallelism and the optimizer step; schedules of `phase_plan` apply."""
        return self._run(("end", replace(phase_plan, frequency_mhz=None), None), 1)

    def set_workload(self, workload: Workload) -> None:
        """Go on with another workload (a batch of another size); time, energy and temperature stay."""
        if workload != self.workload:
            self.workload = workload
            self._estimates.clear()

    def _run(self, work: _Work, repeats: int) -> Estimate:
        if repeats < 1:
            raise DeviceError(f"repeats must be at least 1, got {repeats}")
        estimate = self._within_power_limit(work)
        time_s, power_w = estimate.time_s * repeats, estimate.power_w
        if self._noise is not None:
            time_noise, power_noise = self._noise.normal(0.0, self._noise_std, 2)
            time_s, power_w = time_s * (1.0 + time_noise), power_w * (1.0 + power_noise)
        energy_j = self._advance(time_s, power_w)
        return Estimate(time_s / repeats, energy_j / repeats)

    def _within_power_limit(self, work: _Work) -> Estimate:
        wanted_mhz = self._locked_mhz or self.gpu.max_frequency_mhz
        more_w = leakage_w(self.gpu.thermal, self._temperature_c)

        def at_clocks(clocks_mhz: Floats, rows: Rows) -> tuple[Floats, Floats]:
            estimates = [self._estimate(work, int(clock)) for clock in clocks_mhz]
            time_s = np.array([estimate.time_s for estimate in estimates])
            return time_s, np.array([estimate.energy_j for estimate in estimates]) + more_w * time_s

        _, _, held_mhz = within_power_limit(at_clocks, self._limited, np.array([float(wanted_mhz)]))
        self._actual_mhz = int(held_mhz[0])
        self._throttled = self._actual_mhz < wanted_mhz
        return self._estimate(work, self._actual_mhz)

    def _estimate(self, work: _Work, frequency_mhz: int) -> Estimate:
        known = self._estimates.get((work, frequency_mhz))
        if known is None:
            known = self._estimates[work, frequency_mhz] = self._compute_estimate(work, frequency_mhz)
        return known

    def _compute_estimate(self, work: _Work, frequency_mhz: int) -> Estimate:
        """At the reference temperature and without the power limit, which depends on the real temperature."""
        _, subject, schedule = work
        gpu = unlimited(self.gpu)
        if isinstance(subject, Partition):
            assert schedule is None or isinstance(schedule, Schedule)
            return emulate_added(self.workload, subject, gpu, frequency_mhz, schedule, stage=self.stage)
        assert isinstance(subject, PhasePlan)
        phase_plan = replace(subject, frequency_mhz=frequency_mhz)
        estimate = emulate_phase if work[0] == "phase" else emulate_iteration_end
        return estimate(self.workload, gpu, phase_plan, stage=self.stage)

    def _advance(self, time_s: float, power_w: float) -> float:
        """Move the clock; returns the energy drawn (leakage at the real temperature included)."""
        start_s, start_j = self._time_s, self._energy_j
        self._temperature_c, energy_j = heat(self.gpu.thermal, self._temperature_c, power_w, time_s)
        self._time_s, self._energy_j = start_s + time_s, start_j + energy_j
        if time_s > 0.0:
            self._power_w = energy_j / time_s
        if self.counter_refresh_s == 0.0:
            self._counter_j = self._energy_j
            return energy_j
        last_refresh_s = np.floor(self._time_s / self.counter_refresh_s) * self.counter_refresh_s
        if last_refresh_s > start_s:
            self._counter_j = start_j + energy_j * float((last_refresh_s - start_s) / time_s)
        return energy_j
