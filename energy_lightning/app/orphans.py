"""A process whose parent was killed ends too: SIGKILL of a command, or of torchrun, is meant for the whole job."""

from __future__ import annotations

import os
import signal
import threading
import time

_CHECK_S = 0.5


def end_with_parent(parent_pid: int, *, grace_s: float = 0.0) -> None:
    """Kill this process when its parent has died; with `grace_s`, SIGTERM comes that much (s) before."""

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_CHECK_S)
        if grace_s:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
