"""RestoreGuard: whatever was set on the hardware is undone, however the run ends in Python.

Restores on `restore`, on leaving `with`, and at interpreter exit. Not covered: signals that end the process without
running Python's exit handlers (SIGKILL).
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from types import TracebackType

_log = logging.getLogger(__name__)


class RestoreGuard:
    """Undo steps by setting, run once and in reverse order."""

    def __init__(self, register: Callable[[Callable[[], None]], object] = atexit.register) -> None:
        self._undo: dict[str, Callable[[], None]] = {}
        register(self.restore)

    def remember(self, setting: str, undo: Callable[[], None]) -> None:
        """Call `undo` at the end; the first one for a setting stays (it restores what was there before us)."""
        self._undo.setdefault(setting, undo)

    def restore(self) -> None:
        """Run every undo step; a failing one is logged and does not stop the others. Idempotent."""
        while self._undo:
            setting, undo = self._undo.popitem()
            try:
                undo()
            except (OSError, RuntimeError, ValueError) as error:
                _log.error("could not restore %s: %s; restore it by hand", setting, error)

    def __enter__(self) -> RestoreGuard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.restore()
