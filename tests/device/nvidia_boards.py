"""NVIDIA devices on emulated boards, on a clock that only moves when told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from energy_lightning.device.guard import HardwareGuard
from energy_lightning.device.host import Host
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.device.watchdog_process import WatchdogPipe

AAAA, BBBB = "GPU-aaaa0000-0000-0000-0000-000000000001", "GPU-bbbb0000-0000-0000-0000-000000000002"
NO_CUDA = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))


def cuda_properties(uuid: str | None, *, num_sms: int = 108, **others: Any) -> Any:
    """What torch.cuda.get_device_properties gives; torch tells UUIDs without their "GPU-"."""
    told = {} if uuid is None else {"uuid": uuid.partition("-")[2]}
    return SimpleNamespace(name="some GPU", multi_processor_count=num_sms, **told, **others)


def cuda_torch(*devices: Any, current: int = 0) -> Any:
    """A torch whose CUDA devices have these properties."""
    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: current,
        get_device_properties=lambda index: devices[index],
        synchronize=lambda index: None,
    )
    return SimpleNamespace(cuda=cuda)


class Machine:
    """Emulated boards and one virtual clock for them and the devices."""

    def __init__(self, nvml: NvmlEmulator, state_dir: Path, time_s: list[float]) -> None:
        self.nvml, self.state_dir, self._time_s = nvml, state_dir, time_s
        self.guards: list[HardwareGuard] = []

    def wait(self, time_s: float) -> None:
        self._time_s[0] += time_s

    def host(self, visible: str | None = None, torch: Any = NO_CUDA) -> Host:
        environment = {"XDG_STATE_HOME": str(self.state_dir)}
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        return Host(environment=environment, torch=torch, clock_s=lambda: self._time_s[0], sleep=self.wait)

    def guard(self) -> HardwareGuard:
        """Without a watchdog process: these tests let nobody die."""
        self.guards.append(HardwareGuard(self.state_dir, start_watchdog=lambda begin, gone: Mock(spec=WatchdogPipe)))
        return self.guards[-1]

    def open(self, torch_device: Any = 0, *, visible: str | None = None, **options: Any) -> NvidiaDevice:
        host = self.host(visible, options.pop("torch", NO_CUDA))
        return NvidiaDevice(torch_device, guard=options.pop("guard", None) or self.guard(), host=host, **options)

    def settings(self, index: int = 0) -> tuple[tuple[int, int] | None, float]:
        """(locked clocks, power limit) of a board."""
        state = self.nvml.state(index)
        return state.locked_mhz, state.power_limit_w

    def calls(self, index: int = 0) -> list[str]:
        """Control calls that were made after the permission was looked for (the first two), refused ones too."""
        return [call.function for call in self.nvml.state(index).sets[2:]]


@contextmanager
def machine(state_dir: Path, *boards: EmulatedBoard) -> Iterator[Machine]:
    time_s = [100.0]
    with NvmlEmulator(boards or [EmulatedBoard(uuid=AAAA)], now_s=lambda: time_s[0]) as nvml:
        found = Machine(nvml, state_dir, time_s)
        yield found
        for guard in found.guards:
            guard.close()
