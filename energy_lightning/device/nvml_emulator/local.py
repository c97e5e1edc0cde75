"""NvmlEmulator: emulated boards under pynvml in this process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from energy_lightning.device.nvml_emulator.board import EmulatedBoard
from energy_lightning.device.nvml_emulator.client.library import EmulatedLibrary, install
from energy_lightning.device.nvml_emulator.controls import BoardView, Controls
from energy_lightning.device.nvml_emulator.driver import EmulatedDriver


class NvmlEmulator(Controls):
    """While entered, pynvml in this process talks to these boards; unmodified Zeus and others on it do too.

    On leaving, pynvml is as before. Zeus keeps the GPUs it found in a global; it looks anew inside and afterwards has
    the ones from before. A forked child has a copy of the boards of its own, a spawned one none: for jobs of several
    processes take NvmlServer.

    Args:
        boards: in NVML's order.
        now_s: monotonic clock in s that energy, clocks and temperatures follow.
        init_error: return code that nvmlInit ends with (9: driver not loaded); 0: it works.

    Raises:
        DeviceError: two GPUs of one UUID, or a board's unknown GPU model. ImportError on entering: no pynvml.
    """

    def __init__(
        self, boards: Sequence[EmulatedBoard], *, now_s: Callable[[], float] = time.monotonic, init_error: int = 0
    ) -> None:
        self._driver = EmulatedDriver(boards, now_s=now_s, init_error=init_error)
        self.boards = tuple(BoardView(self, index) for index in range(len(boards)))
        self._installed: Any = None

    def __enter__(self) -> NvmlEmulator:
        self._installed = installed(EmulatedLibrary(self._call))
        self._installed.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._installed.__exit__(kind, error, traceback)

    def _call(self, name: str, inputs: list[Any]) -> tuple[int, tuple[Any, ...]]:
        return self._driver.call(name, inputs, os.getpid())

    def _control(self, name: str, *arguments: Any) -> Any:
        return getattr(self._driver, name)(*arguments)


@contextmanager
def installed(library: EmulatedLibrary) -> Iterator[None]:
    """`library` under this process's pynvml; both pynvml and what Zeus found on it are as before afterwards."""
    import pynvml

    gpus = _exchange_zeus_gpus(None)
    replaced = install(pynvml, library)
    try:
        yield
    finally:
        _exchange_zeus_gpus(gpus)  # what Zeus lets go shuts its own library down, so before pynvml gets the other one
        replaced.restore()


def _exchange_zeus_gpus(gpus: Any) -> Any:
    """Put `gpus` (None: look anew) where Zeus keeps what it found; returns what was there."""
    module = sys.modules.get("zeus.device.gpu")
    if module is None:
        return None
    before, module._gpus = module._gpus, gpus  # type: ignore[attr-defined]
    module.nvml_is_available.cache_clear()
    return before
