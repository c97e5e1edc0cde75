"""NvidiaDevice: one NVIDIA GPU through NVML (module pynvml, from nvidia-ml-py).

The GPU is found by the UUID of the torch device, never by index: CUDA_VISIBLE_DEVICES may reorder them. Without the
permission to lock clocks the device measures only. Not covered yet: MIG slices, zeusd, a helper after SIGKILL.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from energy_lightning.device.guard import RestoreGuard
from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError, DeviceMode, EnergySource

_log = logging.getLogger(__name__)
_SWITCH_TIME_S = 0.01  # several ms (Kareus, arXiv 2601.17654); rounded up where no model of the GPU says better


class NvidiaDevice:
    """A `Device` on real hardware.

    Args:
        torch_device: a torch CUDA device (or its index, or "cuda:1"); None: torch's current one, or the only GPU.
        static_power_w: power drawn whatever the GPU does; None: from the packaged model of this GPU, else the power now
            (open the device while it is idle).
        nvml, torch, sleep: for tests; None imports pynvml and takes torch if it has been imported.

    Raises:
        ImportError: pynvml is missing. DeviceError: no driver, or a GPU that cannot be told apart.
    """

    emulated = virtual_clock = False

    def __init__(
        self,
        torch_device: Any = None,
        *,
        static_power_w: float | None = None,
        nvml: Any = None,
        torch: Any = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nvml = _import_nvml() if nvml is None else nvml
        self._torch = sys.modules.get("torch") if torch is None else torch
        self._torch_device = torch_device
        self._sleep = sleep
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise DeviceError(f"NVML cannot start: {error}; is the NVIDIA driver loaded?") from error
        self._handle = self._find_handle()
        self._guard = RestoreGuard()
        self.name = _text(self._nvml.nvmlDeviceGetName(self._handle)).removeprefix("NVIDIA ")
        model = _packaged_model(self.name)
        self.frequencies_mhz = self._supported_mhz()
        self.num_sms = self._count_sms(model)
        self.uuid: str | None = _text(self._nvml.nvmlDeviceGetUUID(self._handle))
        self.power_limit_range_w: tuple[float, float] | None = None
        self.can_set_power_limit = False
        self.counter_refresh_s = 0.1
        self._locked_mhz: int | None = None
        self.energy_source = self._choose_source()
        self.can_lock_frequency = bool(self.frequencies_mhz)
        self.switch_time_s = model.switch_time_s if model else _SWITCH_TIME_S
        idle_w = static_power_w or (model.static_power_w if model else self.power_w())
        if idle_w is None:
            raise DeviceError(f"{self.name} reports no power and has no packaged model; give static_power_w")
        self.static_power_w: float = idle_w
        self.blocking_power_w: float = model.blocking_power_w if model else idle_w

    @property
    def mode(self) -> DeviceMode:
        """What is permitted."""
        if self.energy_source == "none":
            return "time-only"
        return "full" if self.can_lock_frequency else "measure-only"

    @property
    def mode_reason(self) -> str:
        """One line for people."""
        return "clocks can be locked" if self.can_lock_frequency else "locking clocks is not permitted"

    # what the driver knows

    def _find_handle(self) -> Any:
        if self._torch is not None and self._torch.cuda.is_available():
            index = self._torch.cuda.current_device() if self._torch_device is None else self._torch_device
            uuid = f"GPU-{self._torch.cuda.get_device_properties(index).uuid}"
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        if self._torch_device is not None:
            raise DeviceError(f"torch sees no CUDA GPU, so {self._torch_device!r} cannot be found")
        count = self._nvml.nvmlDeviceGetCount()
        if count != 1:
            raise DeviceError(f"{count} GPUs and no torch device to tell which; give torch_device")
        return self._nvml.nvmlDeviceGetHandleByIndex(0)

    def _supported_mhz(self) -> tuple[int, ...]:
        try:
            memory_mhz = max(self._nvml.nvmlDeviceGetSupportedMemoryClocks(self._handle))
            clocks = self._nvml.nvmlDeviceGetSupportedGraphicsClocks(self._handle, memory_mhz)
        except self._nvml.NVMLError as error:
            _log.warning("%s does not list its clocks (%s): measuring only", self.name, error)
            return ()
        return tuple(sorted(clocks))

    def _count_sms(self, model: GPU | None) -> int:
        if self._torch is not None and self._torch.cuda.is_available():
            index = self._torch.cuda.current_device() if self._torch_device is None else self._torch_device
            return int(self._torch.cuda.get_device_properties(index).multi_processor_count)
        if model is None:
            raise DeviceError(f"the SM count of {self.name} is unknown without torch; import torch first")
        return model.num_sms

    def _choose_source(self) -> EnergySource:
        readings: tuple[tuple[EnergySource, Callable[[Any], int]], ...] = (
            ("counter", self._nvml.nvmlDeviceGetTotalEnergyConsumption),
            ("power", self._nvml.nvmlDeviceGetPowerUsage),
        )
        for source, read in readings:
            try:
                read(self._handle)
            except self._nvml.NVMLError as error:
                _log.warning("%s has no energy %s (%s)", self.name, source, error)
            else:
                return source
        return "none"

    # readings

    def now_s(self) -> float:
        """Wall time in s."""
        return time.perf_counter()

    def energy_j(self) -> float | None:
        """Energy in J since the driver was loaded; None on boards without the counter."""
        if self.energy_source != "counter":
            return None
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1e-3  # NVML gives mJ

    def power_w(self) -> float | None:
        """Board power in W now."""
        try:
            return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) * 1e-3  # NVML gives mW
        except self._nvml.NVMLError:
            return None

    def temperature_c(self) -> float | None:
        """Chip temperature in C."""
        try:
            return float(self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU))
        except self._nvml.NVMLError:
            return None

    def frequency_mhz(self) -> int:
        """SM clock now."""
        return int(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))

    def requested_frequency_mhz(self) -> int | None:
        """SM clock locked through this device."""
        return self._locked_mhz

    def throttle_reasons(self) -> tuple[str, ...]:
        """Not read yet."""
        return ()

    @property
    def power_limit_w(self) -> float:
        """Enforced power limit in W."""
        return float(self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle)) / 1e3  # NVML gives mW

    def set_power_limit(self, power_limit_w: float) -> float:
        """Not permitted yet."""
        return self.power_limit_w

    def reset_power_limit(self) -> None:
        """Nothing was set."""

    def synchronize(self) -> None:
        """Wait for the GPU's work (through torch, if it is loaded)."""
        if self._torch is not None and self._torch.cuda.is_available():
            self._torch.cuda.synchronize(self._torch_device)

    def idle(self, time_s: float) -> None:
        """Sleep."""
        self._sleep(time_s)

    # control

    def lock_frequency(self, frequency_mhz: int) -> None:
        """Lock the SM clock.

        Where the driver refuses permission, one line says so, `can_lock_frequency` becomes False and nothing else
        happens. Raises DeviceError on a clock that the GPU lacks.
        """
        if not self.can_lock_frequency:
            return
        if frequency_mhz not in self.frequencies_mhz:
            nearest = sorted(sorted(self.frequencies_mhz, key=lambda f: abs(f - frequency_mhz))[:2])
            near = ", ".join(map(str, nearest))
            raise DeviceError(f"{self.name} has no SM clock of {frequency_mhz} MHz; nearest: {near}")
        try:
            self._nvml.nvmlDeviceSetGpuLockedClocks(self._handle, frequency_mhz, frequency_mhz)
        except self._nvml.NVMLError as error:
            self._measure_only(error)
            return
        # NVML cannot tell an earlier lock, so what comes back is the driver's own clock management.
        self._guard.remember("SM clock", self._unlock)
        self._locked_mhz = frequency_mhz

    def reset_frequency(self) -> None:
        """Give the clock back to the driver, if it was locked."""
        self._guard.restore()

    def close(self) -> None:
        """give the hardware back; idempotent."""
        self._guard.restore()

    def _unlock(self) -> None:
        self._locked_mhz = None
        try:
            self._nvml.nvmlDeviceResetGpuLockedClocks(self._handle)
        except self._nvml.NVMLError as error:
            raise DeviceError(
                f"{self.name} keeps its locked clock: {error}; run nvidia-smi --reset-gpu-clocks"
            ) from error

    def _measure_only(self, error: Exception) -> None:
        self.can_lock_frequency = False
        _log.warning(
            "%s: locking the SM clock was refused (%s); it needs root or CAP_SYS_ADMIN. Measuring only.",
            self.name,
            error,
        )


def _import_nvml() -> ModuleType:
    try:
        import pynvml
    except ImportError as error:
        raise ImportError("NvidiaDevice needs the module pynvml: pip install nvidia-ml-py") from error
    module: ModuleType = pynvml
    return module


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _packaged_model(name: str) -> GPU | None:
    return next((gpu for gpu in map(GPU.load, GPU.names()) if gpu.display_name == name), None)
