"""What the commands around the energy predictors share: a job in its folder, warnings as lines, a console."""

from __future__ import annotations

import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from energy_lightning.app.folder import COMPLETED, RUNNING, RunFolder, recorded
from energy_lightning.app.settings import check_missing

_LOG_S = 60.0  # between two lines of progress
WIDTH = 110  # of tables that do not go to a terminal


class Screen:
    """A place for what people should read.

    Attributes:
        told: texts of the warnings that were printed.
    """

    def __init__(self) -> None:
        self.told: set[str] = set()
        self._console = Console() if sys.stdout.isatty() else Console(width=WIDTH)

    def say(self, what: str | Table) -> None:
        """Print a line, a text or a table, as it is."""
        if isinstance(what, Table):
            self._console.print(what)
        else:
            self._console.print(what, highlight=False, soft_wrap=True, markup=False)

    @contextmanager
    def status(self) -> Iterator[Callable[[str], None]]:
        """Progress: what is given is its text. A line that changes on a terminal, a line a minute in a log."""
        if not self._console.is_terminal:
            yield _Sparing(self.say)
            return
        with self._console.status("") as status:
            yield status.update

    @contextmanager
    def telling_warnings(self, *, units_known: bool = False) -> Iterator[list[str]]:
        """Print the predictors' warnings as lines that start with `warning:`, each once; their texts are given.

        `units_known`: the energies are this program's own, in joules, however small the model; not of doubtful units.
        """
        from energy_lightning.predict import PredictionWarning, UnitWarning  # here: not every job predicts

        texts: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield texts
        for warning in caught:
            text = str(warning.message)
            if not issubclass(warning.category, PredictionWarning):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            elif units_known and issubclass(warning.category, UnitWarning):
                self.told.add(text)
            elif text not in texts:
                texts.append(text)
                self.told.add(text)
                self.say(f"warning: {text}")


class Job(Screen):
    """One job of a command: its settings, its folder, and a place for what people should read.

    Attributes:
        values: the settings, resolved.
        folder: where files go; it exists.
    """

    def __init__(self, config: Any, path: Path) -> None:
        from omegaconf import OmegaConf

        super().__init__()
        check_missing(config)
        if "output_dir" in config:
            config.output_dir = str(path)  # where several jobs are run, each has its own
        values: Any = OmegaConf.to_container(config, resolve=True)
        self.values: dict[str, Any] = values
        self.folder = RunFolder(path)
        path.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(config, self.folder.config, resolve=True)
        self.folder.update(status=RUNNING, error=None)

    def complete(self, files: list[str], **results: Any) -> None:
        """Write the results into summary.json, and say where the files are."""
        self.folder.update(status=COMPLETED, **results)
        self.say(f"{self.folder.path}: {', '.join([*files, 'summary.json'])}")


class _Sparing:
    """Says what it is given at most once a minute, and nothing in the first."""

    def __init__(self, say: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._say, self._now_s, self._last_s = say, now_s, now_s()

    def __call__(self, text: str) -> None:
        if self._now_s() - self._last_s >= _LOG_S:
            self._last_s = self._now_s()
            self._say(text)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, as batch systems send it, ends the work as Ctrl-C does; only the main thread can arrange that."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_job(config: Any, path: Path, work: Callable[[Job], None]) -> str:
    """Do `work` on a job; its status, as in the summary. A user's mistake costs one line."""
    return recorded(RunFolder(path), lambda: work(Job(config, path)))
