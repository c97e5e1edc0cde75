"""What is told, in which order and how often: properties of the optimiser that hold for any measurements."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_lightning.search import PASSES, BatchSizes, MultiPassOptimizer, SearchError, SearchSpace

SPACE = SearchSpace.grid(frequency_mhz=[900, 1050, 1200, 1410], sm_count=[3, 6, 9, 12], launch=["norm_0", None])
SMALL = BatchSizes(initial=6, batch=4, num_batches=4, least_gain=0.0)
BAD = [math.nan, math.inf, -math.inf, -1.0, 0.0]
Tell = tuple[int, float, float]

quantity = st.one_of(st.floats(1e-6, 1e6), st.sampled_from(BAD))
tells = st.lists(st.tuples(st.integers(0, len(SPACE) - 1), quantity, quantity), max_size=12)


def told(values: list[Tell], passes: str = "default", sizes: BatchSizes = SMALL) -> MultiPassOptimizer:
    search = MultiPassOptimizer(SPACE, static_power_w=60.0, passes=passes, sizes=sizes)
    for i, time_s, energy_j in values:
        search.tell(SPACE[i], time_s=time_s, energy_j=energy_j)
    return search


def usable(tell: Tell) -> bool:
    return all(math.isfinite(value) and value > 0.0 for value in tell[1:])


@settings(max_examples=40, deadline=None)
@given(tells)
def test_every_tell_is_merged_or_counted_and_the_next_question_is_new(values: list[Tell]) -> None:
    search = told(values)
    good = [tell for tell in values if usable(tell)]
    assert sum(search.excluded.values()) == len(values) - len(good)
    expected = {}
    for i in {i for i, _, _ in good}:
        mine = [(t, e) for j, t, e in good if j == i]
        expected[i] = tuple(math.fsum(column) / len(mine) for column in zip(*mine, strict=True))
    means = {SPACE.index(p.choice): (p.time_s, p.energy_j) for p in search.measured()}  # type: ignore[arg-type]
    assert means == {i: pytest.approx(pair) for i, pair in expected.items()}
    asked = [SPACE.index(config) for config in search.ask(5)]
    assert len(set(asked)) == 5
    assert not set(asked) & {i for i, _, _ in values}


@settings(max_examples=25, deadline=None)
@given(tells, st.randoms(use_true_random=False))
def test_the_order_of_tells_changes_nothing(values: list[Tell], shuffler: random.Random) -> None:
    other = list(values)
    shuffler.shuffle(other)
    first, second = told(values), told(other)
    if first.num_told:
        front = [(p.time_s, p.energy_j) for p in first.front()]
        assert front == [(p.time_s, p.energy_j) for p in second.front()]
        assert first.predict().energy_j.tolist() == second.predict().energy_j.tolist()
    assert first.ask(4) == second.ask(4)


@pytest.mark.parametrize("passes", PASSES)
def test_answers_of_a_batch_may_come_in_any_order(passes: str) -> None:
    searches = [told([], passes, BatchSizes(6, 4, 5, least_gain=1e-3)) for _ in range(2)]
    asked = []
    while not searches[0].done:
        batches = [search.ask() for search in searches]
        assert batches[0] == batches[1]
        asked += batches[0]
        for search, batch in zip(searches, (batches[0], batches[1][::-1]), strict=True):
            for config in batch:
                time_s = 900.0 / config["frequency_mhz"] + 0.01 * config["sm_count"] + 0.1 * (config["launch"] is None)
                search.tell(config, time_s=time_s, energy_j=60.0 * time_s + config["frequency_mhz"] / 10.0)
    assert searches[1].done
    assert len(asked) > 10
    assert searches[0].front() == searches[1].front()


@settings(max_examples=25, deadline=None)
@given(tells, st.integers(1, 6), st.integers(0, 6))
def test_a_saved_state_goes_on_the_same(values: list[Tell], num_asked: int, num_answered: int) -> None:
    search = told(values)
    for config in search.ask(num_asked)[:num_answered]:
        search.tell(config, time_s=1.0, energy_j=90.0)
    state = json.loads(json.dumps(search.state_dict()))
    resumed = told([])
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert resumed.measured() == search.measured()
    assert resumed.done == search.done
    again = resumed.ask(num_asked + 3)  # first what was asked and never answered, then something new
    lost = max(0, num_asked - num_answered)
    pending = [SPACE[i] for i in state["pending"]]
    assert again[:lost] == pending
    assert not any(config in pending for config in search.ask(3))


@pytest.mark.parametrize("passes", PASSES)
def test_one_candidate_is_asked_once_and_is_the_front(passes: str) -> None:
    search = MultiPassOptimizer(SearchSpace.grid(frequency_mhz=[1410]), static_power_w=60.0, passes=passes)
    assert search.ask() == [{"frequency_mhz": 1410}]
    assert search.ask() == []
    search.tell({"frequency_mhz": 1410}, time_s=1.0, energy_j=100.0)
    assert search.done
    assert [(p.time_s, p.energy_j) for p in search.front()] == [(1.0, 100.0)]
    assert search.predict().time_s == pytest.approx([1.0], rel=1e-3)


@pytest.mark.parametrize("passes", PASSES)
def test_a_batch_larger_than_what_is_left_is_what_is_left(passes: str) -> None:
    search = told([(i, 1.0 + i, 100.0 - i) for i in range(20)], passes, BatchSizes(6, 40, 4, least_gain=0.0))
    asked = sorted(SPACE.index(config) for config in search.ask(1000))
    assert asked == list(range(20, len(SPACE)))
    assert search.ask(1) == []


def test_a_smoothed_front_is_not_chosen_by_luck() -> None:
    """One of 16 equal schedules came out 10% better than it is; the front that is not smoothed believes it."""
    search = MultiPassOptimizer(SPACE, static_power_w=60.0, sizes=SMALL)
    for i in range(len(SPACE)):
        clock, luck = SPACE[i]["frequency_mhz"], 0.9 if i == 13 else 1.0 + 0.01 * math.sin(7.0 * i)
        search.tell(SPACE[i], time_s=1000.0 / clock * luck, energy_j=100.0 * (clock / 1410.0) ** 2 * luck)
    lucky = [p for p in search.front() if p.choice == SPACE[13]]
    assert lucky
    truth_s = 1000.0 / SPACE[13]["frequency_mhz"]
    assert lucky[0].time_s == pytest.approx(0.9 * truth_s)
    smoothed = search.front(smoothed=True)
    assert all(p.time_s == pytest.approx(1000.0 / p.choice["frequency_mhz"], rel=0.06) for p in smoothed)  # type: ignore[index]
    assert [p.time_s for p in smoothed] == sorted(p.time_s for p in smoothed)


@pytest.mark.parametrize("num_repeats", [0, 1.5, math.nan])
def test_repeats_that_are_no_count_are_refused_and_leave_nothing_behind(num_repeats: float) -> None:
    optimizer = MultiPassOptimizer(SPACE, static_power_w=85.0)
    with pytest.raises(SearchError, match="num_repeats must be a whole number >= 1"):
        optimizer.tell(SPACE[0], time_s=1.0, energy_j=100.0, num_repeats=num_repeats)  # type: ignore[arg-type]
    assert optimizer.num_told == 0


def test_what_a_device_cannot_tell_is_none_and_excluded() -> None:
    optimizer = MultiPassOptimizer(SPACE, static_power_w=85.0)
    optimizer.tell(SPACE[0], time_s=1.0, energy_j=None)
    assert optimizer.excluded == {"energy is nan": 1}
    with pytest.raises(SearchError, match="time_s must be a number, got 'fast'"):
        optimizer.tell(SPACE[0], time_s="fast", energy_j=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.0, (1.0,), (1.0, 2.0, 3.0), None, ("a", 1.0)])
def test_a_prior_of_another_shape_is_refused(value: Any) -> None:
    with pytest.raises(SearchError, match="prior"):
        MultiPassOptimizer(SPACE, static_power_w=85.0, prior=lambda config: value)


@pytest.mark.parametrize("seed", [-1, 1.5, None])
def test_a_seed_that_is_no_count_is_refused(seed: Any) -> None:
    with pytest.raises(SearchError, match="seed must be a whole number >= 0"):
        MultiPassOptimizer(SPACE, static_power_w=85.0, seed=seed)


@pytest.mark.parametrize("count", [0, -1, 1.5, math.nan, "3"])
def test_asking_for_no_count_is_refused(count: Any) -> None:
    with pytest.raises(SearchError, match="ask for at least one configuration"):
        MultiPassOptimizer(SPACE, static_power_w=85.0).ask(count)


@pytest.mark.parametrize(
    "changed",
    [
        {"told": [[999, 1.0, 1.0, 1]]},
        {"told": [[0, math.nan, 1.0, 1]]},
        {"told": [[0, 1.0, 1.0, 0]]},
        {"pending": [999]},
        {"seed": -1},
    ],
)
def test_a_damaged_state_is_refused_before_anything_changes(changed: dict[str, Any]) -> None:
    optimizer = MultiPassOptimizer(SPACE, static_power_w=85.0)
    with pytest.raises(SearchError, match="unreadable search state"):
        optimizer.load_state_dict(optimizer.state_dict() | changed)
    assert (optimizer.num_told, optimizer.seed) == (0, 0)
