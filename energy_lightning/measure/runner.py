"""Measuring one partition configuration: lock the clock, warm up, run it over a whole window, cool down.

    lock -> warm-up runs -> is the clock the one asked for? -> [window: n runs, one energy reading] -> cool-down

With a `precision` the window ends early once time and energy are known well enough (see `adaptive_window`), and the
cool-down is shorter in the same proportion, so that the GPU is busy for the same share of the time.

The device's clock decides what "5 s" means: seconds on a real GPU, virtual (and free) seconds on an emulated one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from energy_lightning.measure.adaptive import LAP_S, Precision, WindowResult, adaptive_window
from energy_lightning.measure.configuration import PartitionConfig
from energy_lightning.measure.energy import WindowReading
from energy_lightning.measure.meter import EnergyMeter
from energy_lightning.measure.window_settings import WindowSettings
from energy_lightning.types import DeviceError, Measurement, Schedule

if TYPE_CHECKING:
    import numpy as np

    from energy_lightning.device import Device, EmulatedDevice
    from energy_lightning.workload import Partition

T = TypeVar("T")
UNREACHABLE = "unreachable"
_SETTLING_CHANGES = 2  # times of a change of the clock that pass before the first run
_FAILURES = (ValueError, ArithmeticError, LookupError, OSError, RuntimeError)  # of devices and of torch
Run = Callable[[int], None]  # run the prepared configuration this many times
Request = tuple["Partition", PartitionConfig]


class ControlLostError(DeviceError):
    """The permission to set clocks was lost in the middle of profiling: what is known at other clocks is no use."""


class PeerFailedError(DeviceError):
    """Measuring failed on another rank, which knows why."""


class PartitionRunner(Protocol):
    """Something that can execute a partition on a device, again and again."""

    def prepare(self, partition: Partition, schedule: Schedule | None) -> Run:
        """A function that executes the partition n times under the schedule; it may return before the GPU is done.

        Where the partition has a real collective, all ranks of its group must make the same calls with the same n:
        PartitionMeter sees to that (`agree`, `longest`).
        """
        ...

    def release(self) -> None:
        """Free what prepared partitions hold; what was prepared before is not to be run any more."""
        ...


class EmulatedRunner:
    """Runs partitions on an emulated device: virtual time and energy pass, real time does not."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device

    def prepare(self, partition: Partition, schedule: Schedule | None) -> Run:
        """See PartitionRunner."""

        def run(num_runs: int) -> None:
            self._device.run_partition(partition, schedule, repeats=num_runs)

        return run

    def release(self) -> None:
        """Nothing is held."""


class CallableRunner:
    """Runs partitions that are Python callables launching real work on a device.

    Args:
        make: builds the callable of one execution from a partition and its schedule (buffers are allocated here,
            outside the windows).
    """

    def __init__(self, make: Callable[[Partition, Schedule | None], Callable[[], None]]) -> None:
        self._make = make

    def prepare(self, partition: Partition, schedule: Schedule | None) -> Run:
        """See PartitionRunner."""
        run_once = self._make(partition, schedule)

        def run(num_runs: int) -> None:
            for _ in range(num_runs):
                run_once()

        return run

    def release(self) -> None:
        """Nothing is held here: callables go when nobody refers to them."""


class PartitionMeter:
    """Measures partition configurations on one device.

    Args:
        device: the GPU under test; its frequency is reset when a batch ends, however it ends.
        runner: executes partitions on it.
        settings: window, cool-down, retries.
        refresh_s: how often the energy counter moves (see `probe_refresh_s`); shorter windows are void.
        agree: whether something holds on all ranks, from whether it holds on this one. Windows end, and attempts are
            given up or repeated, on all ranks alike: a rank that measured alone would wait for the others for ever.
        longest: the longest time of all ranks, from this rank's; it decides how many executions fill a window.
    """

    def __init__(
        self,
        device: Device,
        runner: PartitionRunner,
        settings: WindowSettings | None = None,
        *,
        refresh_s: float = 0.0,
        agree: Callable[[bool], bool] = bool,
        longest: Callable[[float], float] = float,
    ) -> None:
        self._device, self._runner, self._settings = device, runner, settings or WindowSettings()
        self._agree, self._longest = agree, longest
        self._meter = EnergyMeter(device, refresh_s=refresh_s)
        self._locked_mhz: int | None = None  # by the attempt under way
        self._seen_mhz, self._throttle_reasons = 0, tuple[str, ...]()  # while the last runs were under way
        self._watching_failed: Exception | None = None
        self._lowest_capped_mhz: dict[str, int] = {}  # partition -> clock that was not to be had after all retries
        self.window_time_s = 0.0  # of the device's clock, inside windows
        self.cool_down_time_s = 0.0  # of the device's clock, after windows and failed tries
        self.num_measured = 0

    def measure_all(self, requests: Sequence[Request], rng: np.random.Generator) -> list[Measurement]:
        """One measurement a request, in the requests' order, made in shuffled order (heat must not favour any)."""
        results: dict[int, Measurement] = {}
        try:
            for i in rng.permutation(len(requests)):
                results[int(i)] = self.measure(*requests[i])
        finally:
            try:
                self._device.reset_frequency()
            finally:
                self._runner.release()
        return [results[i] for i in range(len(requests))]

    def measure(self, partition: Partition, config: PartitionConfig) -> Measurement:
        """Measure one configuration. The clock stays locked afterwards (see `measure_all`).

        A failure is a result: a clock that cannot be had after all retries (the reason names what held it), or a window
        that stays void, comes back as a measurement with an `invalid_reason`. Where the clock cannot be had, time and
        energy are those of the clock that the GPU ran at (`actual_mhz`). A clock known to be too high for a partition
        is tried once, not again and again: every try costs a cool-down. Raises ControlLostError.
        """
        run = self._together(lambda: self._runner.prepare(partition, config.schedule))
        self.num_measured += 1
        capped = config.frequency_mhz >= self._lowest_capped_mhz.get(partition.name, config.frequency_mhz + 1)
        for retries_left in range(0 if capped else self._settings.max_retries, -1, -1):
            measurement = self._attempt(run, config, is_last=retries_left == 0)
            if self._agree(measurement.valid):
                break
        if not self._agree(not (measurement.invalid_reason or "").startswith(UNREACHABLE)):
            known = self._lowest_capped_mhz.get(partition.name, config.frequency_mhz)
            self._lowest_capped_mhz[partition.name] = min(known, config.frequency_mhz)
        return measurement

    def close(self) -> None:
        """Stop background sampling, if any."""
        self._meter.close()

    def _attempt(self, run: Run, config: PartitionConfig, *, is_last: bool) -> Measurement:
        device, cool_down_s = self._device, self._settings.cool_down_s
        try:
            self._together(lambda: self._lock(config))  # a rank that cannot leaves nobody alone in a collective
            run_time_s = self._longest(self._together(lambda: self._watched(lambda: self._warm_up(run))))
            fault = self._clock_fault(config)
            if not self._agree(fault is None) and not is_last:
                return self._result(config, run_time_s, None, fault or f"{UNREACHABLE} on another rank")
            window = self._together(lambda: self._watched(lambda: self._window(run, run_time_s)))
            reading = window.reading
            self.window_time_s += reading.time_s
            if self._settings.precision is not None:
                cool_down_s *= min(1.0, reading.time_s / self._settings.window_s)
            void = None if reading.source == "none" else reading.invalid_reason  # time alone is worth having
            return self._result(config, window.time_s, window.energy_j, self._clock_fault(config) or void)
        finally:
            device.idle(cool_down_s)
            self.cool_down_time_s += cool_down_s

    def _window(self, run: Run, run_time_s: float) -> WindowResult:
        settings = self._settings

        def watched(num_runs: int) -> None:
            run(num_runs)
            self._watch_clock()

        if settings.precision is not None:
            num_runs = max(1, round(LAP_S / run_time_s))
            precision = Precision(settings.precision, settings.least_window_s, settings.window_s)
            return adaptive_window(self._device, self._meter, watched, num_runs, precision, self._agree)
        num_runs = max(1, math.ceil(settings.window_s / run_time_s))
        self._meter.start(synchronize=True)
        watched(num_runs)
        reading = self._meter.stop(synchronize=True)
        return WindowResult(reading.time_s / num_runs, _per_run(reading, num_runs), reading)

    def _together(self, work: Callable[[], T]) -> T:
        """This rank's part of what all ranks do; what fails on one of them is raised on all."""
        done, fault = list[T](), None
        try:
            done.append(work())
        except _FAILURES as error:
            fault = error
        if not self._agree(fault is None):
            raise fault or PeerFailedError("measuring failed on another rank; its log says why")
        return done[0]

    def _lock(self, config: PartitionConfig) -> None:
        device, self._locked_mhz = self._device, None
        if self._locks:
            device.lock_frequency(config.frequency_mhz)
            if not device.can_lock_frequency:
                raise ControlLostError(f"{device.name} may not be clocked any more")
            self._locked_mhz = config.frequency_mhz
            self._check_lock()
            if not device.virtual_clock:  # there the change itself takes its time
                device.idle(_SETTLING_CHANGES * device.switch_time_s)

    def _check_lock(self) -> None:
        """The handler of a signal that ends the run gives the clock back: from then on nothing here says anything."""
        if self._locked_mhz not in (None, self._device.requested_frequency_mhz()):
            raise DeviceError(f"the clock of {self._device.name} was given back while it was measured")

    def _warm_up(self, run: Run) -> float:
        """Run a few times; returns the time of one execution in s."""
        device = self._device
        run(1)  # the first one may allocate or compile
        device.synchronize()
        start_s = device.now_s()
        run(self._settings.warmup_runs)
        self._watch_clock()
        device.synchronize()
        time_s: float = (device.now_s() - start_s) / self._settings.warmup_runs
        if not time_s > 0.0:  # NaN fails too
            raise DeviceError(f"the clock of {device.name} stood still over {self._settings.warmup_runs} runs")
        return time_s

    @property
    def _locks(self) -> bool:
        return self._settings.lock_clock and self._device.can_lock_frequency

    def _watch_clock(self) -> None:
        """Look at the clock while the runs just given to the GPU are still under way: at rest no limit holds it."""
        try:
            self._seen_mhz = self._device.frequency_mhz()
            self._throttle_reasons = self._device.throttle_reasons()
        except _FAILURES as error:
            self._watching_failed = error

    def _watched(self, work: Callable[[], T]) -> T:
        """`work`, and after it what failed while the clock was watched: other ranks are in the same runs until then."""
        self._watching_failed = None
        done = work()
        if self._watching_failed is not None:
            raise self._watching_failed
        self._check_lock()
        return done

    def _clock_fault(self, config: PartitionConfig) -> str | None:
        """What is wrong with the clock; nothing ever is where it is not locked: what runs is what is measured."""
        off_mhz = abs(self._seen_mhz - config.frequency_mhz)
        if not self._locks or off_mhz <= self._settings.clock_tolerance_mhz:
            return None
        why = f" ({', '.join(self._throttle_reasons)})" if self._throttle_reasons else ""
        return f"{UNREACHABLE}: asked for {config.frequency_mhz} MHz, seen {self._seen_mhz} MHz{why}"

    def _result(self, config: PartitionConfig, time_s: float, energy_j: float | None, fault: str | None) -> Measurement:
        return Measurement(
            time_s=time_s,
            energy_j=energy_j,
            source=self._meter.source,
            temperature_c=self._device.temperature_c(),
            requested_mhz=config.frequency_mhz if self._locks else None,
            actual_mhz=self._seen_mhz,
            invalid_reason=fault,
        )


def _per_run(reading: WindowReading, num_runs: int) -> float | None:
    return None if reading.energy_j is None else reading.energy_j / num_runs
