"""What users give to recurring jobs and power limits: numpy's numbers are taken, what makes no sense is named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energy_lightning.recurring import (
    BatchSizeOptimizer,
    JointOptimizer,
    PowerLimitSample,
    PowerObjective,
    PowerSweep,
    RecurringError,
    StoreError,
    choose_power_limit,
    power_limit_steps,
    scaled_learning_rate,
)

NAN = math.nan


def optimizer(folder: Path, sizes: Any = (8, 16, 32), **settings: Any) -> BatchSizeOptimizer:
    return BatchSizeOptimizer(
        sizes, **{"default": 32, "max_power_w": 100.0, "store": folder / "job.sqlite", **settings}
    )


def test_numbers_of_numpy_are_settings_and_come_back_from_the_store(tmp_path: Path) -> None:
    settings = {"eta": np.float32(0.25), "beta": np.float64(3.0), "window": np.int64(5), "lease_s": np.int32(60)}
    chosen = optimizer(
        tmp_path,
        np.array([32, 8, 16]),
        default=np.int64(32),
        max_power_w=np.float32(250.0),
        seed=np.int64(3),
        **settings,
    )
    again = BatchSizeOptimizer.of_store(tmp_path / "job.sqlite", seed=3)
    assert again.settings == chosen.settings
    assert (again.batch_sizes, again.default, again.settings.window, again.cost(4.0, 1.0)) == (
        (8, 16, 32),
        32,
        5,
        188.5,
    )
    assert again.suggest() == 32


@pytest.mark.parametrize("sizes", [[8.0, 32.0], {8, 32}, iter([32, 8]), np.array([8.0, 32.0], dtype=np.float32)])
def test_sizes_may_come_in_any_container(sizes: Any, tmp_path: Path) -> None:
    assert optimizer(tmp_path, sizes).batch_sizes == (8, 32)


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ("832", "'832'"),
        (832, "832"),
        (None, "None"),
        ([8, 32, "16"], "'16'"),
        ([True, 32], "True"),
        ([8.5, 32], "8.5"),
        ([8, NAN, 32], "nan"),
        ([8, math.inf, 32], "inf"),
        ([[8], [32]], "[8]"),
        ([0, 32], "0"),
        ([8, 2**60, 32], str(2**60)),
        ([], "[]"),
        ([32], "[32]"),
        ([32, 32.0], "[32, 32.0]"),
    ],
)
def test_batch_sizes_that_cannot_be_are_named(sizes: Any, shown: str, tmp_path: Path) -> None:
    with pytest.raises(RecurringError, match=rf"batch.sizes?\b.*got {re.escape(shown)}"):
        optimizer(tmp_path, sizes)
    assert not list(tmp_path.iterdir())


WRONG: dict[str, list[Any]] = {
    "default": ["32", None, True, 32.5, [32]],
    "eta": ["x", None, True, [1], NAN, -0.1],
    "beta": ["x", None, True, 1.0, NAN, math.inf],
    "max_power_w": ["250 W", None, True, 0.0, NAN],
    "window": ["x", True, NAN, math.inf, 3.5, 2],
    "lease_s": ["x", None, 0.0, NAN],
    "seed": ["x", None, -1, 1.5, True, NAN],
    "clock": [5.0, None],
    "policy": [None, ["learned"], "best"],
    "store": [None, 5, b"job", ":memory:"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_settings_that_cannot_be_are_named(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(RecurringError, match=re.escape(name)) as error:
        optimizer(tmp_path, **{name: value})
    assert repr(value) in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"reached_target": None}, "reached_target must be True or False, got None"),
        ({"reached_target": "yes"}, "got 'yes'"),
        ({"reached_target": NAN}, "got nan"),
        ({"reached_target": np.array([True, False])}, "reached_target"),
        ({"emulated": None}, "emulated must be True or False, got None"),
        ({"power_limit_w": -1.0}, "power_limit_w must be positive and finite, got -1"),
        ({"power_limit_w": NAN}, "power_limit_w"),
        ({"power_limit_w": "200"}, "power_limit_w must be a number, got '200'"),
        ({"energy_j": True}, "energy_j must be a number, got True"),
        ({"time_s": "60 s"}, "time_s must be a number, got '60 s'"),
        ({"batch_size": "32"}, "batch_size must be a whole number, 1 or more, got '32'"),
        ({"batch_size": 12}, r"12 is none of \[8, 16, 32\]"),
    ],
)
def test_reports_that_cannot_be_are_named_and_the_run_stays_open(
    report: dict[str, Any], message: str, tmp_path: Path
) -> None:
    chosen = optimizer(tmp_path)
    given = {"batch_size": chosen.suggest(), "energy_j": 1.0, "time_s": 1.0, "reached_target": True, **report}
    with pytest.raises(RecurringError, match=message):
        chosen.observe(given.pop("batch_size"), **given)
    assert [(run.state, run.energy_j) for run in chosen.runs()] == [("running", None)]


def test_a_target_that_was_compared_by_numpy_is_taken(tmp_path: Path) -> None:
    chosen = optimizer(tmp_path)
    for reached in (np.bool_(True), np.array(0.9) > 0.8, 1):
        chosen.observe(32, energy_j=1.0, time_s=1.0, reached_target=reached)  # type: ignore[arg-type]
    assert [run.reached_target for run in chosen.runs()] == [True] * 3


@pytest.mark.parametrize(
    "call",
    [
        lambda chosen: chosen.suggest(power_limit_w=0.0),
        lambda chosen: chosen.best(power_limit_w="200"),
        lambda chosen: chosen.beliefs(power_limit_w=NAN),
        lambda chosen: chosen.use_max_power("x"),
        lambda chosen: chosen.abandon("32"),
        lambda chosen: chosen.adopt(1, None),
        lambda chosen: chosen.should_stop(energy_j=None, time_s=1.0),
        lambda chosen: chosen.profile(32, [(100.0, 1.0)]),
        lambda chosen: chosen.profile(32, 5),
        lambda chosen: chosen.profile(32, [(True, 1.0, 1.0)]),
    ],
)
def test_questions_that_cannot_be_are_refused_and_leave_the_store(
    call: Callable[[JointOptimizer], Any], tmp_path: Path
) -> None:
    chosen = JointOptimizer([8, 32], default=32, max_power_w=100.0, store=tmp_path / "job.sqlite")
    before = (tmp_path / "job.sqlite").read_bytes()
    with pytest.raises(RecurringError, match=r"power_limit_w|batch_size|energy_j|profile|number"):
        call(chosen)
    assert (tmp_path / "job.sqlite").read_bytes() == before


def test_of_store_tells_which_settings_are_the_stores_own(tmp_path: Path) -> None:
    optimizer(tmp_path)
    with pytest.raises(RecurringError, match="takes eta from the store: to change it give it to BatchSizeOptimizer"):
        BatchSizeOptimizer.of_store(tmp_path / "job.sqlite", eta=0.1)
    with pytest.raises(StoreError, match="BatchSizeOptimizer, JointOptimizer or RecurringJob was given"):
        BatchSizeOptimizer.of_store(tmp_path / "other.sqlite")


@pytest.mark.parametrize(
    "profile", [5, None, "abc", [100.0], [None], [(100.0, 1.0)], [("a", 1.0, 1.0)], [(True, 1, 1)]]
)
def test_profiles_that_cannot_be_are_named(profile: Any) -> None:
    with pytest.raises(RecurringError, match=r"profile|power_limit_w"):
        choose_power_limit(profile)


def test_a_goals_name_is_an_objective() -> None:
    rows = [(100.0, 2.0, 1.0), (np.float32(200.0), np.int64(1), np.float64(5.0))]
    chosen = [choose_power_limit(rows, goal).power_limit_w for goal in ("energy", "time")]  # type: ignore[arg-type]
    assert chosen == [100.0, 200.0]
    with pytest.raises(RecurringError, match="unknown goal 'speed'"):
        choose_power_limit(rows, "speed")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PowerObjective(max_slowdown="5%"), r"max_slowdown must be a number, got '5%': give e.g. 0.05"),  # type: ignore[arg-type]
        (lambda: PowerObjective(max_slowdown=True), "max_slowdown"),
        (lambda: PowerObjective(eta="x"), "eta"),  # type: ignore[arg-type]
        (lambda: PowerObjective(max_power_w="x"), "max_power_w"),  # type: ignore[arg-type]
        (lambda: PowerObjective(goal=["energy"]), "known: energy"),  # type: ignore[arg-type]
        (lambda: choose_power_limit([(1, 1, 1)], noise="1%"), "noise must be a number, got '1%'"),  # type: ignore[arg-type]
        (lambda: PowerLimitSample(power_limit_w="a", time_s=1.0, energy_j=1.0), "power_limit_w"),  # type: ignore[arg-type]
        (lambda: PowerSweep([1.0], max_tries=2.5), "max_tries must be a whole number, 1 or more, got 2.5"),  # type: ignore[arg-type]
        (lambda: power_limit_steps((1.0, 2.0), "x"), "step_w"),  # type: ignore[arg-type]
        (lambda: scaled_learning_rate(0.1, batch_size=8, default=8, rule=["x"]), "linear, sqrt, none"),  # type: ignore[arg-type]
    ],
)
def test_limits_and_goals_that_cannot_be_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(RecurringError, match=message):
        make()
