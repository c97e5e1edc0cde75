"""What one NVIDIA GPU tells: energy, power, temperature, clocks, throttle reasons. J, W, C, MHz.

Energy and power are read through Zeus's object of the GPU, which its ZeusMonitor reads too: a window here and one there
see the same counter. ZeusMonitor itself is not used, for it finds its GPUs by turning CUDA_VISIBLE_DEVICES into whole
numbers (UUIDs raise ValueError, MIG slices leave it without GPUs), keeps the list of the first call for the life of the
process, takes times from a clock that may be set back, and gives a counter that fell as negative energy. Zeus's object
for one GPU takes NVML's index and reads no environment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from energy_lightning.device.finding import FoundGpu, text
from energy_lightning.types import DeviceError, EnergySource

_log = logging.getLogger(__name__)

_HOLDING = ("SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
"""NVML's reasons that hold the clock down; left out: idleness, and the locks and displays that a user has chosen."""

_WORKING_STATE = 2  # NVML's performance states up to this one are for work


class GpuReadings:
    """Readings of one GPU. A reading that the board lacks, or stops giving, is None.

    Args:
        nvml: module pynvml, started.
        gpu: the GPU.

    Raises:
        DeviceError: Zeus cannot open the GPU.
    """

    def __init__(self, nvml: Any, gpu: FoundGpu) -> None:
        from zeus.device.exception import ZeusBaseGPUError
        from zeus.device.gpu.nvidia import NVIDIAGPU

        self._nvml, self._handle, self._fault = nvml, gpu.handle, ZeusBaseGPUError
        try:
            self._zeus = NVIDIAGPU(gpu.index)
        except ZeusBaseGPUError as error:
            raise DeviceError(f"Zeus cannot open {gpu.uuid}: {error}") from error
        self.name = text(nvml.nvmlDeviceGetName(gpu.handle)).removeprefix("NVIDIA ")
        self.is_emulated = text(nvml.nvmlSystemGetDriverVersion()).startswith("EMULATED")
        self._power_call = self._choose_power_call()
        self.energy_source, self.energy_fault = self._choose_source()

    def _choose_power_call(self) -> Callable[[], int] | None:
        """Power of the last moment where the board tells it, else NVML's power, which some boards average over 1 s."""
        for call in (self._zeus.get_instant_power_usage, self._usage_mw):
            if self._ask(call) is not None:
                return call
        return None

    def _usage_mw(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetPowerUsage(self._handle))
        except self._nvml.NVMLError as error:
            raise self._fault(str(error)) from error

    def _choose_source(self) -> tuple[EnergySource, str]:
        """Where energy comes from, and why it is not the counter ("" if it is)."""
        try:
            self._zeus.get_total_energy_consumption()
        except self._fault as error:
            source: EnergySource = "none" if self._power_call is None else "power"
            return source, f"no energy counter ({error})" + (" and no power reading" if source == "none" else "")
        return "counter", ""

    def _ask(self, call: Callable[[], int]) -> int | None:
        try:
            return int(call())
        except self._fault as error:
            _log.debug("%s: %s", self.name, error)
            return None

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded; None without a counter."""
        if self.energy_source != "counter":
            return None
        energy_mj = self._ask(self._zeus.get_total_energy_consumption)
        return None if energy_mj is None else energy_mj * 1e-3

    def power_w(self) -> float | None:
        """Board power now."""
        power_mw = None if self._power_call is None else self._ask(self._power_call)
        return None if power_mw is None else power_mw * 1e-3

    def temperature_c(self) -> float | None:
        """Chip temperature, by the call that every driver has (Zeus's needs a recent one)."""
        try:
            return float(self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU))
        except self._nvml.NVMLError:
            return None

    def frequency_mhz(self) -> int:
        """SM clock now."""
        return self._clock_mhz(self._nvml.NVML_CLOCK_SM)

    def _clock_mhz(self, kind: int) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetClockInfo(self._handle, kind))
        except self._nvml.NVMLError as error:
            raise DeviceError(f"{self.name} does not tell its clocks: {error}") from error

    def supported_mhz(self) -> tuple[int, ...]:
        """SM clocks that go with the memory clock in use, ascending; () where the board does not list them."""
        try:
            memory_mhz = self._memory_mhz(self._nvml.nvmlDeviceGetSupportedMemoryClocks(self._handle))
            return tuple(sorted(self._nvml.nvmlDeviceGetSupportedGraphicsClocks(self._handle, memory_mhz)))
        except self._nvml.NVMLError as error:
            _log.info("%s does not list its clocks: %s", self.name, error)
            return ()

    def _memory_mhz(self, supported_mhz: Sequence[int]) -> int:
        try:
            now_mhz = self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_MEM)
            state = self._nvml.nvmlDeviceGetPerformanceState(self._handle)
        except self._nvml.NVMLError:  # virtual GPUs list clocks without telling these
            return max(supported_mhz)
        return memory_clock_in_use(supported_mhz, now_mhz=now_mhz, state=state)

    def power_limit_range_w(self) -> tuple[float, float] | None:
        """(least, most) power limit that can be set; None on boards without one."""
        try:
            least_mw, most_mw = self._nvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
        except self._nvml.NVMLError:
            return None
        return least_mw * 1e-3, most_mw * 1e-3

    def set_limit_w(self) -> float:
        """The power limit that is set. A board may enforce a lower one, see `enforced_limit_w`."""
        return self._limit_w(self._nvml.nvmlDeviceGetPowerManagementLimit)

    def enforced_limit_w(self) -> float:
        """The power limit that is enforced now."""
        return self._limit_w(self._nvml.nvmlDeviceGetEnforcedPowerLimit)

    def _limit_w(self, read: Callable[[Any], int]) -> float:
        try:
            return read(self._handle) / 1e3  # NVML gives mW
        except self._nvml.NVMLError as error:
            raise DeviceError(f"{self.name} does not tell its power limit: {error}") from error

    def throttle_reasons(self) -> tuple[str, ...]:
        """What holds the clock down now, in NVML's words: ("sw_power_cap",); () when nothing does or it is not told."""
        try:
            mask = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)  # the name that every driver has
        except self._nvml.NVMLError:
            return ()
        bits = {name: getattr(self._nvml, f"nvmlClocksThrottleReason{name}") for name in _HOLDING}
        return tuple(_snake(name) for name, bit in bits.items() if mask & bit)


def memory_clock_in_use(supported_mhz: Sequence[int], *, now_mhz: int, state: int) -> int:
    """The memory clock under work: the one now, unless the GPU idles (some boards lower it then): the highest.

    `state` is NVML's performance state, 0 (fastest) to 15; in 0 to 2 boards work.
    """
    working = state <= _WORKING_STATE and now_mhz in supported_mhz
    return now_mhz if working else max(supported_mhz)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("_")
