"""What a search remembers of how it came to each measurement."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from energy_lightning.search import PASSES, BatchSizes, MultiPassOptimizer, SearchSpace

SPACE = SearchSpace.grid(frequency_mhz=list(range(900, 1411, 30)), sm_count=[3, 6, 9])
SIZES = BatchSizes(initial=10, batch=10, num_batches=2, least_gain=0.0)


def searched(passes: str) -> MultiPassOptimizer:
    search = MultiPassOptimizer(SPACE, static_power_w=80.0, passes=passes, sizes=SIZES)
    while batch := search.ask():
        for config in batch:
            time_s = 700.0 / config["frequency_mhz"] + 0.01 * config["sm_count"]
            search.tell(config, time_s=time_s, energy_j=80.0 * time_s + config["frequency_mhz"] / 14.0)
    return search


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        (
            "published",
            {"initial sample": 10, "total energy": 8, "dynamic energy": 4, "static energy": 4, "uncertainty": 4},
        ),
        ("default", {"initial sample": 10, "expected improvement": 20}),
        ("random", {"random": 30}),
    ],
)
def test_every_measurement_names_the_pass_that_proposed_it(passes: str, expected: dict[str, int]) -> None:
    search = searched(passes)
    history = search.history()
    assert Counter(finding.found_by for finding in history) == expected
    assert [finding.ask for finding in history] == [0] * 10 + [1] * 10 + [2] * 10
    assert [(f.time_s, f.energy_j) for f in history] == [(p.time_s, p.energy_j) for p in search.measured()]


@pytest.mark.parametrize("passes", PASSES)
def test_it_survives_a_restart(passes: str) -> None:
    search = searched(passes)
    again = MultiPassOptimizer(SPACE, static_power_w=80.0, passes=passes, sizes=SIZES)
    again.load_state_dict(json.loads(json.dumps(search.state_dict())))
    assert again.history() == search.history()


def test_what_was_told_unasked_says_so() -> None:
    search = MultiPassOptimizer(SPACE, static_power_w=80.0)
    search.tell(SPACE[3], time_s=1.0, energy_j=100.0)
    (finding,) = search.history()
    assert (finding.found_by, finding.ask) == ("told", None)
