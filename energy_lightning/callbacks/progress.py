"""A progress bar over profiling, with time left, beside whichever bar the trainer shows."""

from __future__ import annotations

from typing import Any


class ProfilingProgress:
    """One bar: configurations measured, of those expected, with the time left. Shown on rank 0 only.

    Uses the live display of a RichProgressBar when the trainer has one (a terminal takes only one), else tqdm; shows
    nothing when the trainer's progress bar is off.
    """

    def __init__(self, trainer: Any, description: str) -> None:
        bar = trainer.progress_bar_callback if trainer.is_global_zero else None
        shown = bar is not None and bar.is_enabled
        self._rich = getattr(bar, "progress", None) if shown else None
        self._task = (
            None if self._rich is None else self._rich.add_task(f"[white]{description}", total=1, visible=False)
        )
        self._tqdm = None
        if shown and self._rich is None:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]

            self._tqdm = tqdm(desc=description, unit="config", leave=False, dynamic_ncols=True, mininterval=0.2)

    def update(self, num_done: int, num_remaining: int) -> None:
        """Show how far profiling is; `num_remaining` is an upper bound and may fall faster than `num_done` rises."""
        if self._rich is not None:
            self._rich.update(self._task, completed=num_done, total=num_done + num_remaining, visible=True)
            self._rich.refresh()
        if self._tqdm is not None:
            self._tqdm.total = num_done + num_remaining
            self._tqdm.update(num_done - self._tqdm.n)
            self._tqdm.refresh()  # updates are rare: show each

    def close(self) -> None:
        """Take the bar away; idempotent."""
        if self._rich is not None:
            self._rich.remove_task(self._task)
            self._rich = None
        if self._tqdm is not None:
            self._tqdm.close()
            self._tqdm = None
