"""Who sets clocks and limits of one GPU: this process through NVML, the privileged helper zeusd, or nobody.

What is permitted is found out once, at the start, by `preflight`, without changing anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from energy_lightning.device.finding import FoundGpu
from energy_lightning.device.preflight import clock_and_limit_faults
from energy_lightning.types import DeviceError

HOW_TO_PERMIT = (
    "it needs root or the capability SYS_ADMIN (docker run --cap-add SYS_ADMIN), or the daemon zeusd, run by an "
    "administrator, with ZEUSD_SOCK_PATH set to its socket"
)

_SLICED = "MIG: energy is the whole GPU's, shared with its other slices; a change would hit them too, so nothing is set"


class Refused(DeviceError):
    """The driver, or who stands before it, does not let us change a setting; one line says what is missing.

    Attributes:
        needs_permission: the caller's privilege is missing, which every other setting needs too.
    """

    def __init__(self, message: str, *, needs_permission: bool = False) -> None:
        super().__init__(message)
        self.needs_permission = needs_permission


class Control(Protocol):
    """Sets one GPU. Every method raises `Refused` and then has changed nothing.

    Attributes:
        via: how, for people.
        zeusd_socket: the daemon's socket; None: NVML itself.
    """

    @property
    def via(self) -> str: ...  # noqa: D102
    @property
    def zeusd_socket(self) -> str | None: ...  # noqa: D102

    def lock_clocks(self, least_mhz: int, most_mhz: int) -> None:
        """Keep the SM clock within a range."""
        ...

    def reset_clocks(self) -> None:
        """Give the SM clock back to the driver."""
        ...

    def set_power_limit(self, power_limit_w: float) -> None:
        """Set the board's power limit."""
        ...


@dataclass(frozen=True, slots=True)
class Permissions:
    """What may be set on one GPU.

    Attributes:
        control: who sets it; None: nobody.
        can_lock_frequency, can_set_power_limit: which of the two.
        reason: what is missing and what would permit it; "" where nothing is.
    """

    control: Control | None
    can_lock_frequency: bool = False
    can_set_power_limit: bool = False
    reason: str = ""


class NvmlControl:
    """Sets a GPU through NVML."""

    via, zeusd_socket = "through NVML", None

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def lock_clocks(self, least_mhz: int, most_mhz: int) -> None:
        """Keep the SM clock within a range."""
        self._set("locking the SM clock", self._nvml.nvmlDeviceSetGpuLockedClocks, least_mhz, most_mhz)

    def reset_clocks(self) -> None:
        """Give the SM clock back to the driver."""
        self._set("unlocking the SM clock", self._nvml.nvmlDeviceResetGpuLockedClocks)

    def set_power_limit(self, power_limit_w: float) -> None:
        """Set the board's power limit."""
        limit_mw = round(power_limit_w * 1e3)  # NVML takes mW
        self._set("setting the power limit", self._nvml.nvmlDeviceSetPowerManagementLimit, limit_mw)

    def _set(self, what: str, call: Callable[..., object], *values: int) -> None:
        try:
            call(self._handle, *values)
        except self._nvml.NVMLError as error:
            denied = error.value == self._nvml.NVML_ERROR_NO_PERMISSION
            hint = f": {HOW_TO_PERMIT}" if denied else ""
            raise Refused(f"{what} was refused ({error}){hint}", needs_permission=denied) from error


class ZeusdControl:
    """Sets a GPU through zeusd, which counts GPUs as NVML does on its side.

    Args:
        client: zeus.utils.zeusd.ZeusdClient.
        index: the GPU.
        socket: where the daemon listens.
    """

    def __init__(self, client: Any, index: int, socket: str) -> None:
        self._client, self._index = client, index
        self.via, self.zeusd_socket = f"through zeusd at {socket}", socket

    def lock_clocks(self, least_mhz: int, most_mhz: int) -> None:
        """Keep the SM clock within a range."""
        self._set("locking the SM clock", self._client.set_gpu_locked_clocks, least_mhz, most_mhz)

    def reset_clocks(self) -> None:
        """Give the SM clock back to the driver."""
        self._set("unlocking the SM clock", self._client.reset_gpu_locked_clocks)

    def set_power_limit(self, power_limit_w: float) -> None:
        """Set the board's power limit."""
        self._set("setting the power limit", self._client.set_power_limit, round(power_limit_w * 1e3))  # zeusd takes mW

    def _set(self, what: str, call: Callable[..., object], *values: int) -> None:
        try:
            call([self._index], *values)
        except zeusd_errors() as error:
            raise Refused(f"{what} was refused by zeusd at {self.zeusd_socket} ({error})") from error


def zeusd_errors() -> tuple[type[Exception], ...]:
    """What a call to zeusd may raise: Zeus's errors, and those of its HTTP client, which it passes on."""
    import httpx
    from zeus.exception import ZeusBaseError

    return ZeusBaseError, httpx.HTTPError


def find_control(nvml: Any, gpu: FoundGpu) -> Permissions:
    """What this process may set on `gpu`, through zeusd where Zeus finds one (ZEUSD_SOCK_PATH), else through NVML."""
    if gpu.is_mig:
        return Permissions(None, reason=_SLICED)
    socket, fault = _zeusd_socket(), ""
    if socket is not None:
        try:
            return Permissions(_open_zeusd(nvml, gpu, socket), True, True)
        except Refused as error:
            fault = f"; {error}"
    permissions = _through_nvml(nvml, gpu)
    return permissions if permissions.control else Permissions(None, reason=permissions.reason + fault)


def _zeusd_socket() -> str | None:
    from zeus.utils.zeusd import ZeusdConfig

    config = ZeusdConfig.from_env()
    return None if config is None else config.socket_path


def _open_zeusd(nvml: Any, gpu: FoundGpu, socket: str) -> ZeusdControl:
    """Raises Refused where the daemon is away, may not control, or may count GPUs otherwise than we do."""
    from zeus.utils.zeusd import ZeusdClient, ZeusdConfig, require_capabilities

    try:
        client = ZeusdClient(ZeusdConfig.from_env() or ZeusdConfig.uds(socket))
        require_capabilities(client, read_gpu=True, control_gpu=True, gpu_ids=[gpu.index])
        before_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
        daemon_mj = client.get_gpu_energy([gpu.index])[gpu.index]
        after_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
    except zeusd_errors() as error:
        raise Refused(f"zeusd at {socket} cannot be used ({error})") from error
    except nvml.NVMLError as error:
        raise Refused(f"zeusd at {socket} cannot be told to mean the same GPU ({error})") from error
    if not before_mj <= daemon_mj <= after_mj:  # a container shows some GPUs only, and counts them from 0
        raise Refused(
            f"GPU {gpu.index} of zeusd at {socket} is another one than {gpu.uuid}: their energy counters differ; show "
            "the container all GPUs of the machine, and choose with CUDA_VISIBLE_DEVICES"
        )
    return ZeusdControl(client, gpu.index, socket)


def _through_nvml(nvml: Any, gpu: FoundGpu) -> Permissions:
    """What NVML permits, and what is missing."""
    clock, limit = clock_and_limit_faults(nvml, gpu.handle)
    if clock is not None and limit is not None and clock.needs_permission and limit.needs_permission:
        return Permissions(None, reason=f"clocks and power limits cannot be set: {HOW_TO_PERMIT}")
    missing = {what: fault for what, fault in {"SM clock": clock, "power limit": limit}.items() if fault is not None}
    parts = [
        f"the {what} cannot be set ({fault.message})" + (f": {HOW_TO_PERMIT}" if fault.needs_permission else "")
        for what, fault in missing.items()
    ]
    control = None if len(missing) == 2 else NvmlControl(nvml, gpu.handle)
    return Permissions(control, clock is None, limit is None, "; ".join(parts))
