"""What a forked child must do before anything else: close what only its parent may hold."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def call_in_forked_child(method: Callable[[], None]) -> None:
    """Call a bound method in every child that this process forks, for as long as its object lives."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    os.register_at_fork(after_in_child=call)
