import math

import numpy as np
import pytest
from scipy import stats

from energy_lightning.frontier import FrontierError, NoisyValue, is_tie, merge_repeats, saving


def test_repeats_of_one_configuration_merge() -> None:
    merged = merge_repeats([("a", 10.0, 5.0), ("b", 1.0, 1.0), ("a", 10.2, 5.2)])
    first, second = merged.candidates
    assert (first.config, second.config) == ("a", "b")
    assert first.time_s.mean == pytest.approx(10.1)
    assert first.energy_j.mean == pytest.approx(5.1)
    assert first.time_s.num_repeats == 2
    assert first.time_s.std == pytest.approx(0.2 / math.sqrt(2))
    assert second.time_s == NoisyValue(1.0)
    assert merged.excluded == {}


def test_equal_mappings_are_one_configuration() -> None:
    merged = merge_repeats([({"x": 1, "launch": None}, 1.0, 2.0), ({"launch": None, "x": 1}, 3.0, 4.0)])
    assert [c.time_s.mean for c in merged.candidates] == [2.0]


def test_impossible_values_are_left_out_and_counted_by_reason() -> None:
    nan, inf = math.nan, math.inf
    bad = [("a", nan, 1.0), ("a", inf, 1.0), ("a", -1.0, 1.0), ("a", 0.0, 1.0), ("b", 1.0, nan), ("c", 0.0, 2.0)]
    merged = merge_repeats([*bad, ("d", 1.0, 2.0)])
    assert [c.config for c in merged.candidates] == ["d"]
    expected = {"time is nan": 1, "time is infinite": 1, "time is negative": 1, "time is zero": 2, "energy is nan": 1}
    assert merged.excluded == expected


def test_nothing_valid_is_an_error_that_names_the_reasons() -> None:
    with pytest.raises(FrontierError, match="2 x time is nan"):
        merge_repeats([("a", math.nan, 1.0), ("b", math.nan, 1.0)])
    with pytest.raises(FrontierError, match="no trials"):
        merge_repeats([])


def test_difference_under_the_noise_is_a_tie() -> None:
    a, b = NoisyValue(100.0, 5.0, 3), NoisyValue(98.0, 5.0, 3)
    assert is_tie(a, b)
    assert saving(a, b) == 0.0
    assert not is_tie(NoisyValue(100.0, 0.5, 3), NoisyValue(98.0, 0.5, 3))


@pytest.mark.parametrize("seed", range(10))
def test_ties_agree_with_welchs_test(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(100.0, 2.0, size=4), rng.normal(100.0 + seed, 3.0, size=6)
    p_value = stats.ttest_ind(x, y, equal_var=False).pvalue
    values = [NoisyValue(float(v.mean()), float(v.std(ddof=1)), len(v)) for v in (x, y)]
    assert is_tie(*values) == (p_value >= 0.05)


def test_single_measurements_need_the_known_noise() -> None:
    a, b = NoisyValue(100.0), NoisyValue(98.0)
    assert not is_tie(a, b)
    assert is_tie(a, b, relative_noise=0.015)
    assert saving(a, b) == pytest.approx(0.02)
    assert is_tie(a, a)


def test_bad_noise_values_are_refused() -> None:
    with pytest.raises(FrontierError, match="num_repeats"):
        NoisyValue(1.0, 0.0, 0)
    with pytest.raises(FrontierError, match="confidence"):
        is_tie(NoisyValue(1.0), NoisyValue(1.0), confidence=1.0)
    for bad in (math.nan, -0.1, math.inf):
        with pytest.raises(FrontierError, match="relative_noise"):
            is_tie(NoisyValue(1.0), NoisyValue(1.1), relative_noise=bad)
