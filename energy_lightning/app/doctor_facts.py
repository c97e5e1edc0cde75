"""Finds out what this machine can do, without changing anything on it.

Devices are not opened, for that takes a lease and undoes what dead jobs left; their parts are asked. What is permitted
shows in calls that change nothing (see energy_lightning.device.preflight); where another job has the GPU even those are
left out.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from energy_lightning.collectives import CollectivesChoice, available_collectives
from energy_lightning.device.control import HOW_TO_PERMIT, Permissions, find_control
from energy_lightning.device.finding import FoundGpu, text
from energy_lightning.device.host import Host
from energy_lightning.device.modes import mode_of
from energy_lightning.device.readings import GpuReadings
from energy_lightning.device.refresh import probe_refresh_s
from energy_lightning.device.state_file import GpuRecord, GpuState, boot_id, default_state_dir
from energy_lightning.device.visible import visible_gpus
from energy_lightning.emulation import GPU
from energy_lightning.report.doctor import Examination, GpuFacts
from energy_lightning.types import DeviceError, DeviceMode

PACKAGES = ("energy-lightning", "torch", "lightning", "transformers", "zeus", "nvidia-ml-py", "mscclpp", "nccl4py")
_MODES: tuple[DeviceMode, ...] = ("full", "measure-only", "time-only")
_FOR_A_JOB = (
    'sudo setpriv --reuid="$(id -u)" --regid="$(id -g)" --init-groups --inh-caps=+sys_admin --ambient-caps=+sys_admin '
    'env "PATH=$PATH" energy-lightning train ...'
)
_IN_A_CONTAINER = "docker run --cap-add SYS_ADMIN --gpus all ...   (this container, started anew)"


def import_nvml() -> Any:
    """Module pynvml."""
    import pynvml

    return pynvml


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """What an examination looks at; tests give others.

    Attributes:
        host: the process: its environment, torch, clock.
        load_nvml: gives module pynvml.
        list_collectives: gives the backends of this machine.
        process_exists: whether there is a process of this number.
        in_container: whether this is a container.
    """

    host: Host = field(default_factory=Host)
    load_nvml: Callable[[], Any] = import_nvml
    list_collectives: Callable[[], list[CollectivesChoice]] = available_collectives
    process_exists: Callable[[int], bool] = field(default_factory=lambda: _process_exists)
    in_container: Callable[[], bool] = field(default_factory=lambda: _in_container)

    def examine(self) -> Examination:
        """Look at everything; what cannot be found out is a line in `faults`."""
        faults: list[str] = []
        nvml = self._start(faults)
        gpus = () if nvml is None else tuple(self._gpus(nvml, faults))
        collectives = tuple(self.list_collectives())
        used = [gpu for gpu in gpus if gpu.visible_as is not None]
        return Examination(
            versions=self._versions(nvml),
            visible=self.host.environment.get("CUDA_VISIBLE_DEVICES"),
            gpus=gpus,
            faults=tuple(faults),
            collectives=collectives,
            used_device=self._used_device(gpus, used),
            used_collectives=_used_collectives(collectives, with_cuda=self.host.has_cuda),
            emulated=not self.host.has_cuda,
            mode=_least(used) if self.host.has_cuda else None,
            mode_with_nvidia=None if self.host.has_cuda else _least(used),
            permit=self._permit(used or list(gpus)),
            state_dir=str(self._state_dir),
        )

    @property
    def _state_dir(self) -> Path:
        return default_state_dir(self.host.environment)

    # the driver

    def _start(self, faults: list[str]) -> Any:
        """Module pynvml with the driver behind it, or None and a line that says why not."""
        try:
            nvml = self.load_nvml()
            nvml_error = nvml.NVMLError
            if not (isinstance(nvml_error, type) and issubclass(nvml_error, Exception)):
                raise ValueError(f"its NVMLError is no exception but {nvml_error!r}")
        except (ImportError, AttributeError, OSError, SyntaxError, ValueError) as error:
            faults.append(
                f"module pynvml cannot be used ({type(error).__name__}: {error}): pip install --force-reinstall "
                "nvidia-ml-py, and uninstall any package called pynvml"
            )
            return None
        try:
            nvml.nvmlInit()
            nvml.nvmlDeviceGetCount()
        except nvml_error as error:
            faults.append(f"NVML cannot start: {error}; is the NVIDIA driver loaded?")
            return None
        except AttributeError as error:
            faults.append(f"module pynvml is not that of nvidia-ml-py ({error}): uninstall any package called pynvml")
            return None
        return nvml

    def _versions(self, nvml: Any) -> dict[str, str]:
        versions = {"python": platform.python_version(), **{name: _installed(name) for name in PACKAGES}}
        torch = self.host.torch
        versions["CUDA build of torch"] = str(torch.version.cuda or "none (CPU)") if torch is not None else ""
        versions["driver"] = "" if nvml is None else text(nvml.nvmlSystemGetDriverVersion())
        return versions

    # GPUs

    def _gpus(self, nvml: Any, faults: list[str]) -> Iterator[GpuFacts]:
        uuids: list[str | None] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                uuids.append(text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))))
            except nvml.NVMLError as error:
                uuids.append(None)
                faults.append(f"GPU {index}: {error}")
        places = self._places(uuids, faults)
        for index, uuid in enumerate(uuids):
            if uuid is None:
                continue
            try:
                yield self._gpu(nvml, index, uuid, places.get(index))
            except (nvml.NVMLError, DeviceError, ImportError) as error:
                faults.append(f"GPU {index} ({uuid}): {error}")

    def _places(self, uuids: Sequence[str | None], faults: list[str]) -> dict[int, int]:
        """NVML index -> number under which CUDA shows the GPU; of `uuids` None does not answer."""
        value = self.host.environment.get("CUDA_VISIBLE_DEVICES")
        if value is not None and value.strip().startswith("MIG-"):  # one slice, which is cuda:0
            return self._place_of_slice(value, uuids)
        try:
            return {found: place for place, found in enumerate(visible_gpus(value, uuids))}
        except DeviceError as error:
            faults.append(str(error))
            return {}

    def _place_of_slice(self, value: str, uuids: Sequence[str | None]) -> dict[int, int]:
        nvml = self.load_nvml()
        try:
            part = nvml.nvmlDeviceGetHandleByUUID(value.split(",")[0].strip())
            whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
            return {index: 0 for index, uuid in enumerate(uuids) if uuid == text(nvml.nvmlDeviceGetUUID(whole))}
        except nvml.NVMLError:
            return {}

    def _gpu(self, nvml: Any, index: int, uuid: str, visible_as: int | None) -> GpuFacts:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu = FoundGpu(handle, index, uuid, _is_mig(nvml, handle), None)
        readings = GpuReadings(nvml, gpu)
        held, left = self._records(uuid)
        permissions = Permissions(None, reason=held) if held else find_control(nvml, gpu)
        clocks = readings.supported_mhz()
        can_lock, can_limit = permissions.can_lock_frequency and bool(clocks), permissions.can_set_power_limit
        limits = readings.power_limit_range_w()
        return GpuFacts(
            index=index,
            uuid=uuid,
            name=readings.name,
            visible_as=visible_as,
            is_mig=gpu.is_mig,
            emulated=readings.is_emulated,
            model=next((name for name in GPU.names() if GPU.load(name).display_name == readings.name), None),
            energy_source=readings.energy_source,
            energy_note=readings.energy_fault,
            counter_refresh_s=self._refresh_s(readings),
            clocks_mhz=(clocks[0], clocks[-1]) if clocks else None,
            power_limit_w=_or_none(readings.enforced_limit_w),
            power_limit_range_w=limits,
            temperature_c=readings.temperature_c(),
            can_lock_frequency=None if held else can_lock,
            can_set_power_limit=None if held else can_limit,
            control=permissions.reason or (permissions.control.via if permissions.control else ""),
            left_behind=left,
            mode=mode_of(readings.energy_source, has_control=can_lock or can_limit),
        )

    def _refresh_s(self, readings: GpuReadings) -> float | None:
        if readings.energy_source != "counter":
            return None
        return probe_refresh_s(_Counter(readings, self.host))  # type: ignore[arg-type]  # all of a device that it uses

    def _records(self, uuid: str) -> tuple[str, tuple[str, ...]]:
        """(which job has the GPU or "", commands that undo what a dead one left). Only reads."""
        path = GpuState(self._state_dir, uuid).path(".json")
        try:
            record = GpuRecord.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return "", ()
        except (OSError, ValueError) as error:
            return "", (f"{path} cannot be read ({error}): nvidia-smi -i {uuid} --reset-gpu-clocks",)
        pids = [int(pid) for holder in record.holders if (pid := holder.partition("-")[0]).isdecimal()]
        alive = [pid for pid in pids if record.boot == boot_id() and self.process_exists(pid)]
        if alive:
            return f"{record.job} (process {', '.join(map(str, alive))}) has it since {record.since}", ()
        return "", tuple(undo.command for undo in record.undo)

    # what will be used

    def _used_device(self, gpus: tuple[GpuFacts, ...], used: list[GpuFacts]) -> str:
        emulated = "an EMULATED GPU (gpu=a100-sxm4-40gb unless another is chosen): time and energy are a model's"
        if self.host.has_cuda and used:
            names = ", ".join(f"cuda:{gpu.visible_as} {gpu.name}" for gpu in used)
            return f"{names} (torch sees them)"
        if self.host.has_cuda:
            return "the GPU that torch sees, without measuring: NVML does not tell which it is"
        if not gpus:
            return f"{emulated}; there is no NVIDIA GPU, the training itself runs on the CPU"
        if self.host.environment.get("CUDA_VISIBLE_DEVICES") is not None and not used:
            return f"{emulated}; CUDA_VISIBLE_DEVICES hides every GPU"
        torch = self.host.torch
        build = "is a build for CPUs: install one for CUDA" if torch is None or torch.version.cuda is None else "fails"
        return f"{emulated}; NVML has GPUs, but torch sees none (torch's CUDA {build})"

    def _permit(self, gpus: list[GpuFacts]) -> str | None:
        """The one command, where a permission is what is missing."""
        if not any(HOW_TO_PERMIT in gpu.control for gpu in gpus):
            return None
        return _IN_A_CONTAINER if self.in_container() else _FOR_A_JOB


def _least(gpus: list[GpuFacts]) -> DeviceMode | None:
    """The mode that all of them allow; None where there are none."""
    return max((gpu.mode for gpu in gpus), key=_MODES.index, default=None)


class _Counter:
    """As much of a device as probing its counter takes."""

    def __init__(self, readings: GpuReadings, host: Host) -> None:
        self.energy_j, self.now_s, self.idle = readings.energy_j, host.clock_s, host.sleep


def _used_collectives(found: tuple[CollectivesChoice, ...], *, with_cuda: bool) -> str:
    usable = [choice for choice in found if choice.usable and (with_cuda or choice.name == "gloo")]
    if not usable:
        return "none: jobs of several processes cannot run"
    first, sm_count = usable[0], "honours the SM counts of schedules"
    return f"{first.name} {first.version or ''}, {sm_count if first.supports_sm_count else 'takes no SM count'}"


def _is_mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:  # GPUs that cannot be sliced have no such mode
        return False


def _or_none(read: Callable[[], float]) -> float | None:
    try:
        return read()
    except DeviceError:
        return None


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _in_container() -> bool:
    return any(Path(path).exists() for path in ("/.dockerenv", "/run/.containerenv"))
