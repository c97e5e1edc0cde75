"""Undo: what a GPU's setting was before us, as data that any process can apply through NVML or zeusd.

Only the standard library is imported here: the watchdog loads this file on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from energy_lightning.errors import DeviceError

Setting = Literal["sm_clock", "power_limit"]
Previous = float | tuple[int, int] | None

_SAME_LIMIT_W = 1.0  # two readings of one limit differ by rounding only


class UndoError(DeviceError):
    """A setting that could not be given back now; its record is kept."""


class AbsentGpuError(UndoError):
    """The GPU is not on this machine."""


@dataclass(frozen=True, slots=True)
class Undo:
    """One setting of one GPU as it was.

    Attributes:
        uuid: "GPU-...", as NVML spells it.
        setting: "sm_clock" or "power_limit".
        previous: power limit in W; SM clock: the locked range (least, most) in MHz, None: not locked. NVML cannot tell
            whether the SM clock is locked, so None also stands for a lock by somebody else, which is then lost.
        applied: limit in W that the device reported after our last change; None: not known, a change is in flight.
    """

    uuid: str
    setting: Setting
    previous: Previous
    applied: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file or a pipe."""
        previous = list(self.previous) if isinstance(self.previous, tuple) else self.previous
        return {"uuid": self.uuid, "setting": self.setting, "previous": previous, "applied": self.applied}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Undo:
        """Inverse of `to_dict`. Raises ValueError on anything else."""
        try:
            uuid, setting, previous, applied = (values[key] for key in ("uuid", "setting", "previous", "applied"))
            if isinstance(previous, list):
                least, most = (int(clock_mhz) for clock_mhz in previous)
                previous = (least, most)
        except (KeyError, TypeError) as error:
            raise ValueError(f"an undo record needs uuid, setting, previous, applied; got {values!r}") from error
        undo = cls(uuid, setting, previous, applied)
        undo.check()
        return undo

    def check(self) -> None:
        """Raises ValueError where the values do not fit the setting."""
        fits = {
            "sm_clock": self.previous is None or isinstance(self.previous, tuple),
            "power_limit": _is_watts(self.previous),
        }
        if not (
            isinstance(self.uuid, str)
            and fits.get(self.setting, False)
            and (self.applied is None or _is_watts(self.applied))
        ):
            raise ValueError(
                f"an undo record is a uuid, one of {', '.join(get_args(Setting))} and what it was (W, or a range in "
                f"MHz or nothing); got {self!r}"
            )

    def __str__(self) -> str:
        if self.setting == "power_limit":
            return f"{self.uuid}: power limit {self.previous:g} W"
        if isinstance(self.previous, tuple):
            return f"{self.uuid}: SM clock locked to {self.previous[0]}-{self.previous[1]} MHz"
        return f"{self.uuid}: SM clock not locked"

    @property
    def command(self) -> str:
        """What an administrator types to do the same."""
        if self.setting == "power_limit":
            return f"nvidia-smi -i {self.uuid} --power-limit={self.previous:g}"
        if isinstance(self.previous, tuple):
            return f"nvidia-smi -i {self.uuid} --lock-gpu-clocks={self.previous[0]},{self.previous[1]}"
        return f"nvidia-smi -i {self.uuid} --reset-gpu-clocks"


class GpuControl:
    """Sets clocks and limits of the GPUs of this machine.

    Args:
        nvml: the module pynvml or its like; None imports it when first used.
        zeusd_socket: set through the Zeus daemon listening there (package zeus); None: set through NVML itself.
    """

    def __init__(self, nvml: Any = None, zeusd_socket: str | None = None) -> None:
        self.zeusd_socket = zeusd_socket
        self._nvml = nvml

    def through(self, zeusd_socket: str | None) -> GpuControl:
        """The same, through a Zeus daemon or through NVML."""
        return GpuControl(self._nvml, zeusd_socket)

    def apply(self, undo: Undo, *, restarted: bool = False) -> str | None:
        """Give one setting back; doing it twice is harmless.

        A power limit that is no longer the one we set was changed by somebody else since: it stays, and the line that
        says so is returned. The SM clock has no such check, because NVML cannot tell what it is locked to.

        Args:
            undo: the setting and what it was.
            restarted: the machine was restarted since the change. That brings limits back to the vendor's default; an
                earlier limit is set again.

        Raises AbsentGpuError, or UndoError with the command that an administrator can run.
        """
        nvml = self._load()
        try:
            nvml.nvmlInit()
            handle = nvml.nvmlDeviceGetHandleByUUID(undo.uuid)
            if undo.setting == "sm_clock":
                self._give_clock_back(handle, undo.previous)
                return None
            return self._give_limit_back(handle, undo, restarted=restarted)
        except (nvml.NVMLError, OSError, RuntimeError) as error:
            missing = ("NVML_ERROR_NOT_FOUND", "NVML_ERROR_INVALID_ARGUMENT")
            kind = UndoError
            if getattr(error, "value", None) in {getattr(nvml, name, None) for name in missing} - {None}:
                kind = AbsentGpuError
            raise kind(f"cannot give back {undo} ({error}); an administrator can: {undo.command}") from error

    def _load(self) -> Any:
        if self._nvml is None:
            try:
                import pynvml
            except ImportError as error:
                raise UndoError("clocks and limits need the module pynvml: pip install nvidia-ml-py") from error
            self._nvml = pynvml
        return self._nvml

    def _give_clock_back(self, handle: Any, previous: Previous) -> None:
        if self.zeusd_socket is not None:
            index = self._nvml.nvmlDeviceGetIndex(handle)
            if isinstance(previous, tuple):
                self._zeusd(lambda client: client.set_gpu_locked_clocks([index], *previous))
            else:
                self._zeusd(lambda client: client.reset_gpu_locked_clocks([index]))
        elif isinstance(previous, tuple):
            self._nvml.nvmlDeviceSetGpuLockedClocks(handle, *previous)
        else:
            self._nvml.nvmlDeviceResetGpuLockedClocks(handle)

    def _give_limit_back(self, handle: Any, undo: Undo, *, restarted: bool) -> str | None:
        assert isinstance(undo.previous, (int, float))
        now_w = self._nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3  # NVML gives mW
        if abs(now_w - undo.previous) < _SAME_LIMIT_W:
            return None
        ours_w = [undo.applied] if undo.applied is not None else [now_w]
        if restarted:
            ours_w.append(self._nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3)  # mW
        if all(abs(now_w - limit_w) >= _SAME_LIMIT_W for limit_w in ours_w):
            return (
                f"{undo.uuid}: the power limit is {now_w:g} W, not the {undo.applied:g} W that was set by this job: "
                f"somebody changed it since, so it stays (before the job: {undo.previous:g} W)"
            )
        limit_mw = round(undo.previous * 1e3)
        if self.zeusd_socket is not None:
            index = self._nvml.nvmlDeviceGetIndex(handle)
            self._zeusd(lambda client: client.set_power_limit([index], limit_mw))
        else:
            self._nvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
        return None

    def _zeusd(self, call: Callable[[Any], object]) -> None:
        """Raises OSError where the daemon cannot be reached or refuses."""
        import httpx  # what zeus speaks through
        from zeus.exception import ZeusBaseError
        from zeus.utils.zeusd import ZeusdClient, ZeusdConfig

        try:
            call(ZeusdClient(ZeusdConfig.uds(socket_path=self.zeusd_socket)))
        except (ZeusBaseError, httpx.HTTPError) as error:
            raise OSError(f"zeusd at {self.zeusd_socket}: {error}") from error


def _is_watts(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 < value < 1e5
