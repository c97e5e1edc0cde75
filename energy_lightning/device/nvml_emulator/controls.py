"""Controls: what a test or a rehearsal does to emulated boards, alike whether they live here or in another process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from energy_lightning.device.nvml_emulator.live import BoardState

CONTROLS = ("state", "load", "hold_power", "reset_counter", "cap_clock", "permit", "fail", "lose", "occupy")
"""Methods of `Controls`, and of the driver behind them."""


class Controls(ABC):
    """Look at the boards and change what the world does to them; `index` counts boards in NVML's order."""

    @abstractmethod
    def _control(self, name: str, *arguments: Any) -> Any:
        """Call the method `name` of the driver that holds the boards."""

    def state(self, index: int) -> BoardState:
        """What a board is set to and does now."""
        state: BoardState = self._control("state", index)
        return state

    def load(self, index: int, fraction: float) -> None:
        """The board is busy for this share of the time, 0 to 1, from now on."""
        self._control("load", index, fraction)

    def hold_power(self, index: int, power_w: float) -> None:
        """The board draws `power_w` from now on, whatever its clock and limit, until the next `load`."""
        self._control("hold_power", index, power_w)

    def reset_counter(self, index: int, energy_j: float = 0.0) -> None:
        """The energy counter shows `energy_j` at once and counts on from there, as after a reload of the driver."""
        self._control("reset_counter", index, energy_j)

    def cap_clock(self, index: int, clock_mhz: int | None, reason: str = "sw_power_cap") -> None:
        """The SM clock stays at or below `clock_mhz` and `reason` is told as clock event reason; None: no more."""
        self._control("cap_clock", index, clock_mhz, reason)

    def permit(self, index: int, *permissions: str) -> None:
        """From now on the user may set these, of "sm_clock", "memory_clock", "power_limit", "persistence"; no other."""
        self._control("permit", index, *permissions)

    def fail(self, index: int, function: str, code: int, after: int = 0) -> None:
        """From now on the C function works `after` times and then ends with `code`; code 0: it works again."""
        self._control("fail", index, function, int(code), after)

    def lose(self, index: int, lost: bool = True) -> None:
        """The board fell off the bus: every call about it ends with GPU_IS_LOST; False: it is back."""
        self._control("lose", index, lost)

    def occupy(self, index: int, pid: int, memory_bytes: int) -> None:
        """The process `pid` holds memory on the board and is listed; 0 bytes: no more."""
        self._control("occupy", index, pid, memory_bytes)


@dataclass(frozen=True, slots=True)
class BoardView:
    """One board of a host: `nvml.boards[0].state`."""

    host: Controls
    index: int

    @property
    def state(self) -> BoardState:
        """What the board is set to and does now."""
        return self.host.state(self.index)
