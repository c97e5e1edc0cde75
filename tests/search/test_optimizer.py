"""One contract for every kind of passes, and what each promises beyond it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from energy_lightning.frontier import hypervolume
from energy_lightning.search import PASSES, BatchSizes, MultiPassOptimizer, SearchError, SearchSpace

Config = dict[str, Any]
SPACE = SearchSpace.grid(frequency_mhz=list(range(900, 1411, 102)), sm_count=[3, 6, 9, 12], launch=["norm_0", "attn_0"])
SMALL = BatchSizes(initial=8, batch=4, num_batches=4, least_gain=0.0)
STATIC_W = 80.0


def measure(config: Config) -> dict[str, float]:
    """A smooth trade-off with one best SM count and launch point."""
    slow = 1.0 + 0.01 * (config["sm_count"] - 6) ** 2 + (0.05 if config["launch"] == "norm_0" else 0.0)
    time_s = slow * (0.3 + 700.0 / config["frequency_mhz"])
    return {"time_s": time_s, "energy_j": STATIC_W * time_s + 100.0 * slow * (config["frequency_mhz"] / 1410.0) ** 2}


def optimizer(passes: str = "published", space: SearchSpace = SPACE, **options: Any) -> MultiPassOptimizer:
    return MultiPassOptimizer(space, static_power_w=STATIC_W, passes=passes, **{"sizes": SMALL, **options})


def run(search: MultiPassOptimizer, steps: int = 100) -> list[list[Config]]:
    batches = []
    while not search.done and len(batches) < steps:
        batches.append(search.ask())
        for config in batches[-1]:
            search.tell(config, **measure(config))
    return batches


@pytest.mark.parametrize("passes", PASSES)
class TestContract:
    def test_no_configuration_is_asked_twice_and_the_sizes_hold(self, passes: str) -> None:
        search = optimizer(passes)
        batches = run(search)
        asked = [tuple(config.items()) for batch in batches for config in batch]
        assert len(asked) == len(set(asked)) == search.num_told <= search.most == 24
        assert len(batches[0]) == 8
        assert search.ask() == []

    def test_front_is_the_front_of_what_was_told(self, passes: str) -> None:
        search = optimizer(passes)
        run(search)
        told = [(p.time_s, p.energy_j) for p in search.measured()]
        expected = {p for p in told if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in told)}
        front = search.front()
        assert {(p.time_s, p.energy_j) for p in front} == expected
        assert [p.time_s for p in front] == sorted(p.time_s for p in front)
        values = [measure(p.choice) for p in front]  # type: ignore[arg-type]
        assert [(v["time_s"], v["energy_j"]) for v in values] == [(p.time_s, p.energy_j) for p in front]

    def test_equal_seeds_ask_the_same_and_a_saved_state_continues_the_same(self, passes: str) -> None:
        whole, first, second = optimizer(passes, seed=3), optimizer(passes, seed=3), optimizer(passes)
        expected = run(whole)
        head = run(first, steps=2)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert head + run(second) == expected

    def test_a_space_smaller_than_the_initial_sample_is_measured_whole(self, passes: str) -> None:
        search = optimizer(passes, SearchSpace.grid(x=[1, 2, 3]))
        assert len(search.ask()) == 3
        for x in (1, 2, 3):
            search.tell({"x": x}, time_s=float(x), energy_j=1.0 / x)
        assert search.done
        assert len(search.front()) == 3

    def test_pending_configurations_are_not_asked_again(self, passes: str) -> None:
        search = optimizer(passes)
        run(search, steps=2)
        first, second = search.ask(3), search.ask(3)
        assert len(first) == len(second) == 3
        assert not any(config in first for config in second)

    def test_invalid_measurements_neither_return_nor_spread(self, passes: str) -> None:
        search = optimizer(passes)
        (bad, *rest) = search.ask()
        search.tell(bad, invalid_reason="unreachable: power cap")
        for config in rest:
            search.tell(config, **measure(config))
        batches = run(search)
        assert bad not in [config for batch in batches for config in batch]
        assert all(math.isfinite(p.time_s) and math.isfinite(p.energy_j) for p in search.front())
        assert search.excluded == {"unreachable: power cap": 1}

    def test_identical_values_everywhere(self, passes: str) -> None:
        search = optimizer(passes)
        while not search.done:
            for config in search.ask():
                search.tell(config, time_s=1.0, energy_j=100.0)
        assert [(p.time_s, p.energy_j) for p in search.front()] == [(1.0, 100.0)]

    def test_predictions_cover_the_space(self, passes: str) -> None:
        search = optimizer(passes)
        run(search)
        predicted = search.predict()
        actual = [measure(SPACE[i])["time_s"] for i in range(len(SPACE))]
        error = abs(predicted.time_s / actual - 1.0)
        assert error.mean() < 0.05
        assert (predicted.time_std_s >= 0.0).all()


def test_repeats_merge_into_their_mean() -> None:
    search = optimizer()
    config = SPACE[0]
    search.tell(config, time_s=10.0, energy_j=5.0)
    search.tell(config, time_s=10.2, energy_j=5.2)
    (point,) = search.front()
    assert (point.time_s, point.energy_j, point.choice) == (pytest.approx(10.1), pytest.approx(5.1), config)
    search.tell(config, time_s=9.9, energy_j=5.0, num_repeats=2)
    assert search.front()[0].time_s == pytest.approx(10.0)


def test_impossible_values_are_counted_and_all_bad_is_a_named_error() -> None:
    search = optimizer()
    for time_s in (math.nan, math.inf, -1.0, 0.0):
        search.tell(SPACE[0], time_s=time_s, energy_j=1.0)
    search.tell(SPACE[1], time_s=1.0)
    reasons = {"time is nan": 1, "time is infinite": 1, "time is negative": 1, "time is zero": 1, "energy is nan": 1}
    assert search.excluded == reasons
    for view in (search.front, search.predict):
        with pytest.raises(SearchError, match="1 x time is nan"):
            view()
    search.tell(SPACE[0], time_s=1.0, energy_j=100.0)  # a later success counts
    assert len(search.front()) == 1


def test_fronts_of_the_three_energies() -> None:
    search = optimizer()
    search.tell(SPACE[0], time_s=1.0, energy_j=200.0)
    search.tell(SPACE[1], time_s=2.0, energy_j=210.0)  # more in total, but 160 J of it static
    assert [(p.time_s, p.energy_j) for p in search.front("total")] == [(1.0, 200.0)]
    assert [(p.time_s, p.energy_j) for p in search.front("dynamic")] == [(1.0, 120.0), (2.0, 50.0)]
    assert [(p.time_s, p.energy_j) for p in search.front("static")] == [(1.0, 80.0)]
    with pytest.raises(SearchError, match="known: total, dynamic, static"):
        search.front("heat")  # type: ignore[arg-type]


def test_published_sizes_and_early_stop() -> None:
    assert [BatchSizes.published(n).most for n in (1, 2, 3, 4)] == [84, 112, 112, 224]
    flat = MultiPassOptimizer(SPACE, static_power_w=STATIC_W, passes="published", sizes=BatchSizes(8, 4, 8))
    while not flat.done:
        for config in flat.ask():
            flat.tell(config, time_s=1.0, energy_j=100.0)
    assert flat.num_told == 16  # two batches without gain


def test_default_stops_by_itself_when_nothing_is_gained() -> None:
    search = MultiPassOptimizer(SPACE, static_power_w=STATIC_W)
    while not search.done:
        for config in search.ask():
            search.tell(config, time_s=1.0, energy_j=100.0)
    assert search.num_told == 28  # 12, and four batches of 4 without gain


@pytest.mark.parametrize("seed", range(3))
def test_default_finds_the_front_of_a_smooth_table_in_a_third_of_it(seed: int) -> None:
    truth = [measure(SPACE[i]) for i in range(len(SPACE))]
    values = [(v["time_s"], v["energy_j"]) for v in truth]
    whole = hypervolume(*zip(*values, strict=True), (1.5, 250.0))
    search = MultiPassOptimizer(SPACE, static_power_w=STATIC_W, seed=seed, sizes=BatchSizes(6, 2, 5, 0.0))
    run(search)
    found = [(p.time_s, p.energy_j) for p in search.front()]
    assert hypervolume(*zip(*found, strict=True), (1.5, 250.0)) > 0.97 * whole


def test_a_prior_is_followed_at_once_and_corrected_by_measurements() -> None:
    """The prior is 20% off and tilted along the clock, but knows the best schedule."""

    def prior(config: Config) -> tuple[float, float]:
        tilt = 1.2 * (config["frequency_mhz"] / 1410.0) ** 0.3
        return measure(config)["time_s"] * tilt, measure(config)["energy_j"] * tilt

    search = MultiPassOptimizer(SPACE, static_power_w=STATIC_W, prior=prior, sizes=BatchSizes(6, 3, 2, 0.0))
    first = search.ask()
    assert sum(config["sm_count"] == 6 and config["launch"] == "attn_0" for config in first) >= 3
    for config in first:
        search.tell(config, **measure(config))
    predicted = search.predict().energy_j
    actual = [measure(SPACE[i])["energy_j"] for i in range(len(SPACE))]
    assert abs(predicted / actual - 1.0).mean() < 0.02


def test_a_killed_run_is_asked_again_what_it_never_told() -> None:
    search, resumed = optimizer(), optimizer()
    lost = search.ask(3)
    resumed.load_state_dict(search.state_dict())
    assert resumed.ask(5)[:3] == lost


@pytest.mark.parametrize("change", [{"schema": 99}, {"space": "other"}, {"told": [[1]]}, {"told": None}])
def test_foreign_or_broken_states_are_refused_and_change_nothing(change: dict[str, Any]) -> None:
    search = optimizer()
    run(search, steps=1)
    before = search.state_dict()
    with pytest.raises(SearchError, match="search state"):
        search.load_state_dict({**before, **change})
    assert search.state_dict() == before


def test_bad_arguments_are_named() -> None:
    with pytest.raises(SearchError, match="known: default, published, random"):
        optimizer("magic")
    with pytest.raises(SearchError, match="static_power_w"):
        MultiPassOptimizer(SPACE, static_power_w=math.nan)
    with pytest.raises(SearchError, match="prior of"):
        optimizer(prior=lambda config: (math.nan, 1.0))
    with pytest.raises(SearchError, match="not one of"):
        optimizer().tell({"x": 1}, time_s=1.0, energy_j=1.0)
    with pytest.raises(SearchError, match="at least one"):
        optimizer().ask(0)
    with pytest.raises(SearchError, match="initial"):
        BatchSizes(0, 1, 1)
