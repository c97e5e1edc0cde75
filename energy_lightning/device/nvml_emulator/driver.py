"""EmulatedDriver: all boards of one machine behind one door, for calls of NVML and for the test that watches them."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from energy_lightning.device.nvml_emulator.board import EmulatedBoard, check_function, check_permissions
from energy_lightning.device.nvml_emulator.client.codes import Code, Fault
from energy_lightning.device.nvml_emulator.client.signatures import SIGNATURES
from energy_lightning.device.nvml_emulator.clocks import CLOCKS, REASONS
from energy_lightning.device.nvml_emulator.identity import IDENTITY, SLICES, Serve
from energy_lightning.device.nvml_emulator.live import BoardState, ControlCall, LiveBoard, require
from energy_lightning.device.nvml_emulator.sensors import SENSORS
from energy_lightning.types import DeviceError

DRIVER_VERSION = "EMULATED 615.71"
"""What nvmlSystemGetDriverVersion says: by it anyone can tell that no hardware answers."""

_CUDA_VERSION = 13000
_FIRST_HANDLE = 0x454D0000  # handles are numbers that no pointer has; one page of 64 per board, slices after the board
_PER_BOARD = 64
_BOARDS = {**IDENTITY, **SENSORS, **CLOCKS}
_CONTROL = tuple(name for name in SIGNATURES if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")))


class EmulatedDriver:
    """Serves NVML's functions on plain values.

    Args:
        boards: in NVML's order.
        now_s: monotonic clock in s; energy and clocks follow it.
        init_error: return code that nvmlInit ends with (9: driver not loaded); 0: it works.
    """

    def __init__(self, boards: Sequence[EmulatedBoard], *, now_s: Callable[[], float], init_error: int = 0) -> None:
        self.boards = [LiveBoard(board, index) for index, board in enumerate(boards)]
        identities = [live.uuid for live in self.boards] + [uuid for board in boards for uuid in board.mig_uuids]
        if twice := sorted({uuid for uuid in identities if identities.count(uuid) > 1}):
            raise DeviceError(f"two emulated GPUs have the UUID {twice[0]}; give each its own")
        self._now_s, self._start_s = now_s, now_s()
        self._init_error = init_error
        self._lock = threading.RLock()
        self._machine: dict[str, Serve] = {
            "nvmlInit_v2": self._init,
            "nvmlInitWithFlags": lambda flags: self._init(),
            "nvmlShutdown": lambda: (),
            "nvmlSystemGetDriverVersion": lambda: (DRIVER_VERSION,),
            "nvmlSystemGetNVMLVersion": lambda: ("13.615.71",),
            "nvmlSystemGetCudaDriverVersion": lambda: (_CUDA_VERSION,),
            "nvmlSystemGetCudaDriverVersion_v2": lambda: (_CUDA_VERSION,),
            "nvmlDeviceGetCount_v2": lambda: (len(self.boards),),
            "nvmlDeviceGetHandleByIndex_v2": self._by_index,
            "nvmlDeviceGetHandleBySerial": lambda serial: self._find(lambda live: live.serial == serial),
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetHandleByPciBusId_v2": self._by_pci_bus_id,
        }

    # NVML

    def call(self, name: str, inputs: Sequence[Any], pid: int) -> tuple[int, tuple[Any, ...]]:
        """One call of the C function `name` by the process `pid`; return code and outputs, () where it failed."""
        with self._lock:
            try:
                if name in self._machine:
                    return int(Code.SUCCESS), self._machine[name](*inputs)
                return int(Code.SUCCESS), self._serve(name, pid, *inputs)
            except Fault as fault:
                return fault.code, ()

    def _serve(self, name: str, pid: int, handle: int, *inputs: Any) -> tuple[Any, ...]:
        live, part = self._board_of(handle)
        live.chip.update(self._time_s())
        try:
            live.check(name)
            if part is not None:
                return self._serve_slice(name, live, part)
            if name == "nvmlDeviceGetMigDeviceHandleByIndex":
                return self._slice_handle(live, *inputs)
            answer = _BOARDS[name](live, *inputs)
        except Fault as fault:
            self._note(live, name, pid, inputs, fault.code)
            raise
        live.count(name)
        self._note(live, name, pid, inputs, Code.SUCCESS)
        return answer

    def _note(self, live: LiveBoard, name: str, pid: int, inputs: Sequence[Any], code: int) -> None:
        if name in _CONTROL:
            live.log.append(ControlCall(self._now_s(), pid, name, tuple(inputs), int(code)))

    def _serve_slice(self, name: str, live: LiveBoard, part: int) -> tuple[Any, ...]:
        if name == "nvmlDeviceGetDeviceHandleFromMigDeviceHandle":
            return (self._handle(live),)
        require(name in SLICES, Code.NOT_SUPPORTED)
        return SLICES[name](live, part)

    def _init(self) -> tuple[()]:
        require(not self._init_error, self._init_error)
        return ()

    def _time_s(self) -> float:
        return self._now_s() - self._start_s

    # handles

    def _handle(self, live: LiveBoard, part: int | None = None) -> int:
        return _FIRST_HANDLE + _PER_BOARD * live.index + (0 if part is None else 1 + part)

    def _board_of(self, handle: int) -> tuple[LiveBoard, int | None]:
        index, within = divmod(handle - _FIRST_HANDLE, _PER_BOARD)
        require(0 <= index < len(self.boards))
        live = self.boards[index]
        require(within <= len(live.board.mig_uuids))
        return live, within - 1 if within else None

    def _found(self, live: LiveBoard, part: int | None = None) -> tuple[int]:
        require(not live.lost, Code.GPU_IS_LOST)
        return (self._handle(live, part),)

    def _find(self, wanted: Callable[[LiveBoard], bool]) -> tuple[int]:
        for live in self.boards:
            if wanted(live):
                return self._found(live)
        raise Fault(Code.NOT_FOUND)

    def _by_index(self, index: int) -> tuple[int]:
        require(index < len(self.boards))
        return self._found(self.boards[index])

    def _by_uuid(self, uuid: str) -> tuple[int]:
        for live in self.boards:
            if uuid in live.board.mig_uuids:
                return self._found(live, live.board.mig_uuids.index(uuid))
        return self._find(lambda live: live.uuid == uuid)

    def _by_pci_bus_id(self, bus_id: str) -> tuple[int]:
        wanted = _bus(bus_id)
        require(bool(wanted), Code.NOT_FOUND)
        return self._find(lambda live: _bus(live.pci_bus_id) == wanted)

    def _slice_handle(self, live: LiveBoard, part: int) -> tuple[int]:
        require(bool(live.board.mig_uuids), Code.NOT_SUPPORTED)
        require(part < len(live.board.mig_uuids), Code.NOT_FOUND)
        return (self._handle(live, part),)

    # the test that watches

    def state(self, index: int) -> BoardState:
        """What the board at `index` is set to and does now."""
        with self._lock:
            return self._now(index).state()

    def load(self, index: int, fraction: float) -> None:
        """The board is busy for this share of the time, 0 to 1, from now on."""
        if not 0.0 <= fraction <= 1.0:
            raise DeviceError(f"an emulated GPU is busy for a share from 0 to 1, got {fraction!r}")
        with self._lock:
            self._now(index).chip.set_load(fraction)

    def hold_power(self, index: int, power_w: float) -> None:
        """The board draws `power_w` from now on, whatever its clock and limit, until the next `load`."""
        if not 0.0 <= power_w < math.inf:
            raise DeviceError(f"an emulated GPU draws a power >= 0 W, got {power_w!r}")
        with self._lock:
            self._now(index).chip.set_load(0.0, power_w)

    def reset_counter(self, index: int, energy_j: float = 0.0) -> None:
        """The energy counter shows `energy_j` at once and counts on from there, as after a reload of the driver."""
        with self._lock:
            self._now(index).chip.set_counter(energy_j)

    def cap_clock(self, index: int, clock_mhz: int | None, reason: str = "sw_power_cap") -> None:
        """The SM clock stays at or below `clock_mhz` and `reason` is told; None: no more."""
        if reason not in REASONS:
            raise DeviceError(f"unknown clock event reason {reason!r}; known: {', '.join(REASONS)}")
        with self._lock:
            live = self._now(index)
            live.chip.set_cap(live.chip.clocks_mhz[-1] if clock_mhz is None else clock_mhz)
            live.extra_reasons = 0 if clock_mhz is None else REASONS[reason]

    def permit(self, index: int, *permissions: str) -> None:
        """From now on the user may set these, of "sm_clock", "memory_clock", "power_limit", "persistence"; no other."""
        check_permissions(permissions)
        with self._lock:
            self._now(index).permissions = frozenset(permissions)

    def fail(self, index: int, function: str, code: int, after: int = 0) -> None:
        """From now on the C function works `after` times and then ends with `code`; code 0: it works again."""
        check_function(function)
        with self._lock:
            self._now(index).fail(function, after, int(code))

    def lose(self, index: int, lost: bool = True) -> None:
        """The board fell off the bus: every call about it ends with GPU_IS_LOST."""
        with self._lock:
            self._now(index).lost = lost

    def occupy(self, index: int, pid: int, memory_bytes: int) -> None:
        """The process `pid` holds memory on the board and is listed; 0 bytes: no more."""
        with self._lock:
            processes = self._now(index).processes
            processes.pop(pid, None)
            if memory_bytes:
                processes[pid] = memory_bytes

    def _now(self, index: int) -> LiveBoard:
        if not 0 <= index < len(self.boards):
            raise DeviceError(f"no emulated GPU {index}; there are {len(self.boards)}")
        live = self.boards[index]
        live.chip.update(self._time_s())
        return live


def _bus(bus_id: str) -> tuple[int, ...]:
    """Domain (0 where none is given), bus and device; () where `bus_id` is no PCI bus id."""
    found = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.0", bus_id.lower())
    return tuple(int(part or "0", 16) for part in found.groups()) if found else ()
