import math

import numpy as np
import pytest

from energy_lightning.search import SearchError, SearchSpace


def test_a_grid_has_every_combination_in_order() -> None:
    space = SearchSpace.grid(frequency_mhz=[900, 1410], launch=["norm_0", None])
    assert [space[i] for i in range(len(space))] == [
        {"frequency_mhz": 900, "launch": "norm_0"},
        {"frequency_mhz": 900, "launch": None},
        {"frequency_mhz": 1410, "launch": "norm_0"},
        {"frequency_mhz": 1410, "launch": None},
    ]
    assert [space.index(space[i]) for i in range(len(space))] == [0, 1, 2, 3]


def test_equal_candidates_are_kept_once_and_numpy_numbers_are_plain() -> None:
    space = SearchSpace.from_candidates([{"x": np.int64(1)}, {"x": 2}, {"x": 1}] * 2000)
    assert len(space) == 2
    assert type(space[0]["x"]) is int
    assert space.index({"x": 2.0}) == 1


def test_codes_order_strings_and_mark_none() -> None:
    space = SearchSpace.from_candidates([{"launch": "b", "sm": 4}, {"launch": "a", "sm": None}])
    np.testing.assert_array_equal(space.codes(), [[0.0, 4.0], [1.0, math.nan]])


def test_changing_a_returned_candidate_does_not_change_the_space() -> None:
    space = SearchSpace.grid(x=[1, 2])
    space[0]["x"] = 7
    assert space[0] == {"x": 1}


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([], "at least one candidate"),
        ([{}], "at least one candidate"),
        ([{"x": 1}, {"y": 1}], r"candidate 1 has the parameters \['y'\]"),
        ([{"x": math.nan}], "must be finite"),
        ([{"x": [1]}], "number, string"),
    ],
)
def test_bad_candidates_are_named(candidates: list[dict[str, object]], message: str) -> None:
    with pytest.raises(SearchError, match=message):
        SearchSpace.from_candidates(candidates)


def test_empty_grid_parameter_and_unknown_configuration() -> None:
    with pytest.raises(SearchError, match="'sm_count'"):
        SearchSpace.grid(sm_count=[])
    space = SearchSpace.grid(x=[1, 2])
    for config in ({"x": 3}, {"y": 1}, {"x": 1, "y": 1}, {"x": True}):
        with pytest.raises(SearchError, match="not one of the 2 candidates"):
            space.index(config)
