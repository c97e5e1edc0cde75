"""Numbers and differences in words."""

from __future__ import annotations

import math

import pytest

from energy_lightning.recurring.wording import counted, more_or_less


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (119.5, 100.0, "19.5% more energy"),
        (88.0, 100.0, "12.0% less energy"),
        (100.04, 100.0, "as much energy"),
        (0.0, 100.0, "100.0% less energy"),
        (100.0, 0.0, "energy not known"),
        (100.0, math.nan, "energy not known"),
    ],
)
def test_differences_say_which_way_they_go(now: float, before: float, expected: str) -> None:
    assert more_or_less("energy", now, before) == expected


@pytest.mark.parametrize(("number", "expected"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_one_is_not_many(number: int, expected: str) -> None:
    assert counted(number, "run") == expected
