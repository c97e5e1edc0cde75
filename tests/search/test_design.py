from collections import Counter

import numpy as np
import pytest

from energy_lightning.search import SearchSpace
from energy_lightning.search.design import levels, take_balanced

SPACE = SearchSpace.grid(frequency_mhz=[900, 1200, 1410], sm_count=[2, 4, 8, 16], launch=["norm_0", "attn_0", None])


@pytest.mark.parametrize("seed", range(5))
def test_every_value_comes_up_about_equally_often_on_a_grid(seed: int) -> None:
    chosen = take_balanced(levels(SPACE), np.empty(0, np.intp), np.arange(len(SPACE)), 12, np.random.default_rng(seed))
    assert len(set(chosen)) == 12
    for name in SPACE.names:
        counts = Counter(SPACE[i][name] for i in chosen)
        assert set(counts) == set(SPACE.column(name))
        assert max(counts.values()) - min(counts.values()) <= 2  # one parameter may give way to another


def test_values_measured_before_are_made_up_for() -> None:
    closed = np.flatnonzero([SPACE[i]["sm_count"] != 16 for i in range(len(SPACE))])[:9]
    open_ = np.setdiff1d(np.arange(len(SPACE)), closed)
    chosen = take_balanced(levels(SPACE), closed, open_, 3, np.random.default_rng(0))
    assert 16 in [SPACE[i]["sm_count"] for i in chosen]
    assert set(chosen) <= set(open_.tolist())


def test_all_that_is_left_is_taken() -> None:
    chosen = take_balanced(levels(SPACE), np.arange(30), np.arange(30, 36), 6, np.random.default_rng(0))
    assert sorted(chosen) == list(range(30, 36))
