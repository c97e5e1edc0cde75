"""What SIGTERM does first, and that whoever handled it before still does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from energy_lightning.callbacks.termination import before_sigterm


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What handlers have said; "theirs" is the one before ours."""
    words: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: words.append("theirs"))
    yield words
    signal.signal(signal.SIGTERM, before)


def test_the_latest_acts_first_and_the_handler_before_still_runs(said: list[str]) -> None:
    before_sigterm(lambda: said.append("strategy"))
    before_sigterm(lambda: said.append("limits"))
    signal.raise_signal(signal.SIGTERM)
    assert said == ["limits", "strategy", "theirs"]


def test_outside_of_the_main_thread_the_handler_stays(said: list[str]) -> None:
    thread = threading.Thread(target=before_sigterm, args=(lambda: said.append("ours"),))
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGTERM)
    assert said == ["theirs"]
