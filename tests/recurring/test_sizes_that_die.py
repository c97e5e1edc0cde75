"""A size whose runs end without a report is not all that a job tries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from energy_lightning.recurring import POLICIES, BatchSizeOptimizer, JobSettings, Run
from energy_lightning.recurring.runs import View

SIZES = [8, 16, 32, 64]
STATES = {"+": "done", "x": "dead", "~": "running"}


def view_of(settings: JobSettings, suggested: str) -> View:
    """After suggestions such as "8x 16+ 32~": died, reported (as many J as the size), runs."""
    runs = [
        Run(
            run_id=number,
            batch_size=int(word[:-1]),
            state=STATES[word[-1]],
            reached_target=True,
            energy_j=float(word[:-1]) if word[-1] == "+" else None,
            time_s=1.0 if word[-1] == "+" else None,
        )
        for number, word in enumerate(suggested.split(), start=1)
    ]
    return settings.view(runs, None)


@pytest.mark.parametrize(
    ("suggested", "rest"),
    [
        ("16+ 8x", [8]),
        ("16+ 8x 16+", []),
        ("16+ 8x 16+ 8x", [8]),
        ("16+ 8x 16+ 8x 16+ 16+", [8]),  # as long as the row from its first death to its last
        ("16+ 8x 16+ 8x 16+ 32x 16+", []),
        ("16+ 8x 16~", []),  # others that run now count
        ("8~ 16x 8~", []),
        ("8x 8x 8x 8+", []),  # it has run to an end since
        ("8+ 8x", []),
        ("8+ 8+ 8x 8x", []),
        ("8+ 8+ 8x 8x 8x", [8]),  # more often than it ran to an end
        ("8+ 16+ 8x 8+ 8x 8x", []),
        ("16+" + 10 * " 8x" + 9 * " 16+", [8]),  # ten jobs that one failure ended are ten nights at most
        ("16+" + 10 * " 8x" + 10 * " 16+", []),
        ("16x 16x", [16]),
    ],
)
def test_how_long_a_size_rests(suggested: str, rest: list[int]) -> None:
    view = view_of(JobSettings.parse(SIZES, default=16, max_power_w=100.0), suggested)
    assert [SIZES[arm] for arm in sorted(view.resting)] == rest
    assert view.resting <= view.running


@pytest.mark.parametrize("policy", POLICIES)
def test_where_all_that_is_known_rests_the_best_of_it_runs(policy: str) -> None:
    """A week of nights that the scheduler ends, whatever the size."""
    settings = JobSettings.parse([8, 16], default=16, max_power_w=100.0, eta=1.0, policy=policy)
    view = view_of(settings, "8+ 16+ 8x 16x 8x 16x")
    assert view.resting == {0, 1}
    assert settings.batch_sizes[settings.choose(view, np.random.default_rng(0))] == 8


def suggested(
    folder: Path, policy: str, rounds: int, dies: Callable[[int, int], bool], *, window: int | None = None
) -> list[int]:
    """What is suggested where runs end by an error as `dies` of size and its suggestions so far says; 8 is cheap."""
    optimizer = BatchSizeOptimizer(
        SIZES, default=16, max_power_w=100.0, eta=1.0, policy=policy, window=window, store=folder / "job.sqlite"
    )
    sizes: list[int] = []
    for _ in range(rounds):
        size = optimizer.suggest()
        sizes.append(size)
        if dies(size, sizes.count(size)):
            optimizer.abandon(size)
        else:
            optimizer.observe(size, energy_j={8: 50.0, 16: 100.0}.get(size, 110.0), time_s=1.0, reached_target=True)
    return sizes


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("reports", "window"), [(0, None), (1, None), (1, 20)])
def test_a_size_that_cannot_run_is_tried_ever_more_seldom(
    policy: str, reports: int, window: int | None, tmp_path: Path
) -> None:
    """It was suggested night for night: from its first death on, or where it had run to an end once."""
    sizes = suggested(tmp_path, policy, 40, lambda size, nth: size == 8 and nth > reports, window=window)
    assert sizes.count(8) - reports <= math.log2(len(sizes)) + 2.0
    assert {8, 32} <= set(sizes)  # nor does it end the walk to larger ones


@pytest.mark.parametrize("policy", POLICIES)
def test_while_nothing_is_known_the_default_is_kept_however_often_it_dies(policy: str, tmp_path: Path) -> None:
    assert suggested(tmp_path, policy, 6, lambda *_: True) == [16] * 6


@pytest.mark.parametrize("policy", POLICIES)
def test_a_known_size_is_kept_for_as_many_bad_nights_as_good_ones_and_then_the_next_best_runs(
    policy: str, tmp_path: Path
) -> None:
    optimizer = BatchSizeOptimizer(
        SIZES, default=16, max_power_w=100.0, eta=1.0, policy=policy, store=tmp_path / "job.sqlite"
    )
    for size, energy_j in ((8, 50.0), (16, 80.0), (32, 200.0), (64, 400.0)):
        for _ in range(3):
            optimizer.observe(size, energy_j=energy_j, time_s=1.0, reached_target=True)
    sizes = []
    for _ in range(6):
        sizes.append(optimizer.suggest())
        optimizer.abandon(sizes[-1])
    assert sizes == [8, 8, 8, 8, 16, 16]
    assert Counter(run.state for run in optimizer.runs()) == {"done": 12, "dead": 6}
    assert optimizer.best() == 8
