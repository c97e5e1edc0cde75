"""A board that is switched on: its chip, who may do what, what fails, and the log of what was set."""

from __future__ import annotations

from dataclasses import dataclass

from energy_lightning.device.nvml_emulator.board import EmulatedBoard
from energy_lightning.device.nvml_emulator.chip import Chip
from energy_lightning.device.nvml_emulator.client.codes import Code, Fault


@dataclass(frozen=True, slots=True)
class ControlCall:
    """One call that sets or resets something: when (s, the emulator's clock), by whom, what, and how it ended."""

    time_s: float
    pid: int
    function: str
    arguments: tuple[int, ...]
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardState:
    """What one board is set to and does, looked at from outside of NVML.

    locked_mhz, memory_locked_mhz: (least, most) or None. power_limit_w: the limit in force. sm_mhz: the clock that
    runs; target_mhz: the one asked for. load: 0 to 1. energy_j: drawn since the emulator started, exact, whatever the
    counter shows. sets: every control call so far, refused ones included.
    """

    uuid: str
    locked_mhz: tuple[int, int] | None
    memory_locked_mhz: tuple[int, int] | None
    power_limit_w: float
    persistence: bool
    sm_mhz: int
    target_mhz: int
    load: float
    power_w: float
    energy_j: float
    temperature_c: float
    sets: tuple[ControlCall, ...]


class LiveBoard:
    """One board at `index` of its machine."""

    def __init__(self, board: EmulatedBoard, index: int) -> None:
        self.board, self.index, self.chip = board, index, Chip(board)
        self.uuid, self.serial = board.uuid_at(index), board.serial_at(index)
        self.pci_bus_id = board.pci_bus_id_at(index)
        self.permissions = frozenset(board.permissions)
        self.persistence = board.persistence
        self.memory_locked_mhz: tuple[int, int] | None = None
        self.processes: dict[int, int] = {}  # pid -> bytes of device memory
        self.lost = False
        self.extra_reasons = 0
        self.log: list[ControlCall] = []
        self._failing = {name: (0, code) for name, code in board.errors.items()} | dict(board.fail_after)

    def fail(self, function: str, after: int, code: int) -> None:
        """From now on `function` works `after` times and then ends with `code`; code 0: it works again."""
        self._failing[function] = (after, code)

    def check(self, function: str) -> None:
        """Fault where a call of `function` fails whatever its arguments are."""
        if self.lost:
            raise Fault(Code.GPU_IS_LOST)
        if function in self._failing:
            left, code = self._failing[function]
            if left == 0 and code:
                raise Fault(code)

    def count(self, function: str) -> None:
        """A call of `function` has worked."""
        if function in self._failing:
            left, code = self._failing[function]
            self._failing[function] = (max(left - 1, 0), code)

    def allow(self, supported: bool, permission: str) -> None:
        """Fault unless the board can do it and the user may."""
        if not supported:
            raise Fault(Code.NOT_SUPPORTED)
        if permission not in self.permissions:
            raise Fault(Code.NO_PERMISSION)

    def state(self) -> BoardState:
        """What the board is set to and does now."""
        chip = self.chip
        return BoardState(
            uuid=self.uuid,
            locked_mhz=chip.locked_mhz,
            memory_locked_mhz=self.memory_locked_mhz,
            power_limit_w=chip.limit_w,
            persistence=self.persistence,
            sm_mhz=chip.clock_mhz(),
            target_mhz=chip.target_mhz(),
            load=chip.load,
            power_w=chip.power_w(),
            energy_j=chip.energy_j,
            temperature_c=chip.temperature_c,
            sets=tuple(self.log),
        )


def require(condition: bool, code: int = Code.INVALID_ARGUMENT) -> None:
    """Fault with `code` unless `condition`."""
    if not condition:
        raise Fault(code)
