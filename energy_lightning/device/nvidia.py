"""NvidiaDevice: one NVIDIA GPU, read through Zeus and NVML, set through NVML or zeusd as far as that is permitted.

The parts: `finding` tells which GPU, `readings` reads it, `control` finds who may set it, `guarded` sets it, `guard`
gives it back.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from types import ModuleType
from typing import Any

from energy_lightning.device.blocking_cache import load_blocking_power_w
from energy_lightning.device.control import Permissions, find_control
from energy_lightning.device.finding import FoundGpu, find_gpu
from energy_lightning.device.guard import HardwareGuard, default_state_dir
from energy_lightning.device.guarded import GuardedControl
from energy_lightning.device.host import Host
from energy_lightning.device.modes import mode_of
from energy_lightning.device.readings import GpuReadings
from energy_lightning.device.refresh import probe_refresh_s
from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError, DeviceMode, EnergySource

_SWITCH_TIME_S = 0.01  # several ms (Kareus, arXiv 2601.17654); rounded up where no model of the GPU says better


class NvidiaDevice:
    """A `Device` on real hardware.

    Readings may be taken while another thread sets the clock. After `close` nothing is set any more.

    Args:
        torch_device: a torch CUDA device, "cuda:1", the index of a visible GPU, or "GPU-..."; None: torch's current
            one, or the only GPU. torch need not have CUDA: the index is then looked up in CUDA_VISIBLE_DEVICES.
        static_power_w: power drawn whatever the GPU does; None: from the packaged model of this GPU, else the power now
            (open the device while it is idle).
        guard: gives back what is set here; None: one of this device alone.
        job: what the ranks have in common that may share the GPU; None: this process alone.
        host: the process; None: this one.

    Attributes:
        emulated_hardware: an emulated NVML answers; the name says so too, so that no figure passes for a measurement.
        is_mig: a slice of a GPU: energy and power are the whole GPU's, shared with its other slices.
        cuda_index: torch's index of this GPU; None where torch has no CUDA.
        state_dir: where records and measurements of this machine's GPUs are kept.
        now_s: wall time in s; the host's clock itself, for training asks it several times a step.

    Raises:
        ImportError: pynvml or zeus is missing. DeviceError: no driver, or a GPU that cannot be told apart.
    """

    emulated = virtual_clock = False

    def __init__(
        self,
        torch_device: Any = None,
        *,
        static_power_w: float | None = None,
        guard: HardwareGuard | None = None,
        job: str | None = None,
        host: Host | None = None,
    ) -> None:
        nvml = _start_nvml()
        self._host = Host() if host is None else host
        self.now_s = self._host.clock_s
        gpu, self._readings = _find(nvml, torch_device, self._host)
        self.uuid: str | None = gpu.uuid
        self._uuid, self.is_mig, self.cuda_index = gpu.uuid, gpu.is_mig, gpu.cuda_index
        self.energy_source: EnergySource = self._readings.energy_source
        self.emulated_hardware = self._readings.is_emulated
        self._model = _packaged_model(self._readings.name)
        slice_of = " (MIG slice; energy of the whole GPU)" if gpu.is_mig else ""
        self.name = self._readings.name + slice_of + (" (emulated NVML)" if self.emulated_hardware else "")
        self.num_sms = self._count_sms()
        self.frequencies_mhz = self._readings.supported_mhz()
        self.power_limit_range_w = self._readings.power_limit_range_w()
        self._last_limit_w: float | None = None
        with suppress(DeviceError):  # boards without limits
            self._last_limit_w = self.power_limit_w
        self.static_power_w = self._find_static_power_w(static_power_w)
        self.switch_time_s = self._model.switch_time_s if self._model else _SWITCH_TIME_S
        self.state_dir = default_state_dir(self._host.environment)
        permissions = self._usable(find_control(nvml, gpu))
        self._control = GuardedControl(self.name, gpu.uuid, permissions, guard, self._new_guard, job)

    # what is permitted

    def _usable(self, permissions: Permissions) -> Permissions:
        """Without what the board does not list."""
        reason = permissions.reason
        if permissions.can_lock_frequency and not self.frequencies_mhz:
            reason = "; ".join(part for part in (reason, "the driver does not list the SM clocks") if part)
        return replace(
            permissions,
            can_lock_frequency=permissions.can_lock_frequency and bool(self.frequencies_mhz),
            can_set_power_limit=permissions.can_set_power_limit and self.power_limit_range_w is not None,
            reason=reason,
        )

    def _new_guard(self, zeusd_socket: str | None) -> HardwareGuard:
        return HardwareGuard(self.state_dir, zeusd_socket=zeusd_socket)

    @property
    def guard(self) -> HardwareGuard:
        """Gives back what is set here."""
        return self._control.guard

    @property
    def can_lock_frequency(self) -> bool:
        """Whether the SM clock can be locked; falls where the driver refuses."""
        return self._control.can_lock

    @property
    def can_set_power_limit(self) -> bool:
        """Whether the power limit can be set; falls where the driver refuses."""
        return self._control.can_limit

    @property
    def mode(self) -> DeviceMode:
        """What is permitted: "full" where clocks or power limits can be set, "time-only" without energy."""
        return mode_of(self.energy_source, has_control=self._control.can_lock or self._control.can_limit)

    @property
    def mode_reason(self) -> str:
        """What can be set and how, what is missing, what would permit it."""
        parts = (self._control.reason, self._readings.energy_fault)
        return "; ".join(part for part in parts if part)

    # what the GPU is

    def _count_sms(self) -> int:
        if self.cuda_index is not None:
            return int(self._host.torch.cuda.get_device_properties(self.cuda_index).multi_processor_count)
        if self._model is None:
            raise DeviceError(f"the SM count of {self.name} is unknown without torch's CUDA; import torch first")
        return self._model.num_sms

    def _find_static_power_w(self, given_w: float | None) -> float:
        if given_w is not None and not (0.0 <= given_w < math.inf):
            raise DeviceError(f"static_power_w must be a finite number >= 0, got {given_w!r}")
        found_w = given_w if given_w is not None else self._model.static_power_w if self._model else self.power_w()
        if found_w is None:
            raise DeviceError(f"{self.name} reports no power and has no packaged model; give static_power_w")
        return found_w

    @property
    def blocking_power_w(self) -> float:
        """As measured on this GPU before (`measure.blocking_power_w`), else the packaged model's, else static power."""
        measured_w = load_blocking_power_w(self.state_dir, self._uuid)
        return measured_w or (self._model.blocking_power_w if self._model else self.static_power_w)

    @cached_property
    def counter_refresh_s(self) -> float:
        """How often the energy counter moves; 0.0 without one. The first call probes it, at most about 1 s."""
        return probe_refresh_s(self) if self.energy_source == "counter" else 0.0

    # readings

    def energy_j(self) -> float | None:
        """Energy in J since the driver was loaded; None on boards without the counter."""
        return self._readings.energy_j()

    def power_w(self) -> float | None:
        """Board power in W now."""
        return self._readings.power_w()

    def temperature_c(self) -> float | None:
        """Chip temperature in C."""
        return self._readings.temperature_c()

    def frequency_mhz(self) -> int:
        """SM clock now."""
        return self._readings.frequency_mhz()

    def requested_frequency_mhz(self) -> int | None:
        """SM clock locked through this device; None: none is."""
        return self._control.locked_mhz

    def throttle_reasons(self) -> tuple[str, ...]:
        """What holds the clock down now; () when nothing does or the board does not tell."""
        return self._readings.throttle_reasons()

    @property
    def power_limit_w(self) -> float:
        """The power limit that is enforced now."""
        self._last_limit_w = self._readings.enforced_limit_w()
        return self._last_limit_w

    def synchronize(self) -> None:
        """Wait for the GPU's work (through torch, if it drives the GPU)."""
        if self.cuda_index is not None:
            self._host.torch.cuda.synchronize(self.cuda_index)

    def idle(self, time_s: float) -> None:
        """Sleep."""
        self._host.sleep(time_s)

    # control

    def lock_frequency(self, frequency_mhz: int) -> None:
        """Lock the SM clock. Raises DeviceError on a clock that the GPU lacks.

        Where the driver refuses, one line says so, `can_lock_frequency` becomes False and nothing is recorded as set.
        """
        if self.can_lock_frequency:
            self._check_clock(frequency_mhz)
            self._control.lock(frequency_mhz)

    def reset_frequency(self) -> None:
        """Give the clock back as it was, if it was locked here."""
        self._control.unlock()

    def set_power_limit(self, power_limit_w: float) -> float:
        """Set the power limit; returns the one enforced afterwards (boards round). DeviceError outside the range.

        Where the driver refuses, one line says so, `can_set_power_limit` becomes False and nothing is recorded as set;
        a GPU that is lost does not even tell its limit: the one told last is returned.
        """
        self._check_limit(power_limit_w)
        self._control.set_limit(power_limit_w, self._readings.set_limit_w)
        try:
            return self.power_limit_w
        except DeviceError:
            if self._last_limit_w is None or self.can_set_power_limit:
                raise
            return self._last_limit_w

    def reset_power_limit(self) -> None:
        """Back to the limit before the first `set_power_limit`."""
        self._control.reset_limit()

    def close(self) -> None:
        """Give the hardware back; idempotent. Nothing is set from then on."""
        self._control.close()

    def _check_clock(self, frequency_mhz: int) -> None:
        if frequency_mhz not in self.frequencies_mhz:
            nearest = sorted(sorted(self.frequencies_mhz, key=lambda f: abs(f - frequency_mhz))[:2])
            near = ", ".join(map(str, nearest))
            raise DeviceError(f"{self.name} has no SM clock of {frequency_mhz} MHz; nearest: {near}")

    def _check_limit(self, power_limit_w: float) -> None:
        least_w, most_w = self.power_limit_range_w or (0.0, math.inf)
        if not least_w <= power_limit_w <= most_w:  # NaN fails too
            raise DeviceError(f"{self.name} takes power limits of {least_w:g} to {most_w:g} W, got {power_limit_w!r}")


def _start_nvml() -> ModuleType:
    try:
        import pynvml
    except ImportError as error:
        raise ImportError("NvidiaDevice needs the module pynvml: pip install nvidia-ml-py") from error
    module: ModuleType = pynvml
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        raise DeviceError(f"NVML cannot start: {error}; is the NVIDIA driver loaded?") from error
    return module


def _find(nvml: Any, torch_device: Any, host: Host) -> tuple[FoundGpu, GpuReadings]:
    try:
        gpu = find_gpu(nvml, torch_device, host)
        return gpu, GpuReadings(nvml, gpu)
    except nvml.NVMLError as error:
        which = "torch's current GPU" if torch_device is None else f"GPU {torch_device}"
        raise DeviceError(f"{which} does not answer: {error}; see nvidia-smi") from error


def _packaged_model(name: str) -> GPU | None:
    return next((gpu for gpu in map(GPU.load, GPU.names()) if gpu.display_name == name), None)
