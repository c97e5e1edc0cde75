"""A clock that moves when told to, for emulated boards."""

from __future__ import annotations

import pytest
from manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
