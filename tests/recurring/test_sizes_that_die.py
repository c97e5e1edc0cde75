"""A size whose runs all end without a report is not all that a job tries."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from energy_lightning.recurring import POLICIES, BatchSizeOptimizer


def sizes_of(folder: Path, policy: str, rounds: int, dying: set[int]) -> list[int]:
    """What is suggested where runs of some sizes end by an error; all others cost 100 J."""
    optimizer = BatchSizeOptimizer(
        [8, 16, 32], default=16, max_power_w=100.0, eta=1.0, policy=policy, store=folder / "job.sqlite"
    )
    sizes = []
    for _ in range(rounds):
        size = optimizer.suggest()
        sizes.append(size)
        if size in dying:
            optimizer.abandon(size)
        else:
            optimizer.observe(size, energy_j=100.0, time_s=1.0, reached_target=True)
    return sizes


@pytest.mark.parametrize("policy", POLICIES)
def test_the_others_run_meanwhile_and_it_is_tried_again_ever_more_seldom(policy: str, tmp_path: Path) -> None:
    """It was suggested night for night once the default had run."""
    sizes = sizes_of(tmp_path, policy, 40, {8})
    tried = [index for index, size in enumerate(sizes) if size == 8]
    apart = [later - earlier for earlier, later in pairwise(tried)]
    assert apart == [2, 3, 5, 9, 17][: len(apart)]
    assert len(tried) >= 4


def test_a_default_that_dies_stays_the_default_while_nothing_is_known(tmp_path: Path) -> None:
    assert sizes_of(tmp_path, "learned", 5, {16}) == [16] * 5


def test_a_size_that_has_run_to_an_end_is_not_held_back(tmp_path: Path) -> None:
    """A night that was interrupted says nothing of the size."""
    sizes_of(tmp_path, "learned", 10, set())
    optimizer = BatchSizeOptimizer.of_store(tmp_path / "job.sqlite")
    best = optimizer.suggest()
    for _ in range(6):
        optimizer.abandon(best)
        best = optimizer.suggest()
    assert optimizer.settings.view(optimizer.runs(), None).running == {optimizer.batch_sizes.index(best)}
