"""What a rank does first when it is told to end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


def before_sigterm(act: Callable[[], None]) -> None:
    """Call `act` when SIGTERM comes, and then whoever handled it so far.

    For Lightning's handler, which broadcasts: where only one rank got the signal it hangs there, and would keep the GPU
    as it is until somebody kills it. Lightning puts the handlers from before the fit back at its end. Nothing happens
    outside of the main thread, which alone may handle signals; nor while that thread waits inside a collective.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    so_far = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        act()
        if callable(so_far):
            so_far(number, frame)
        elif so_far == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
