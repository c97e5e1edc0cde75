"""PowerLimitOptimizer on a GPU whose times and energies under each limit are known by a formula."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from limited_gpus import LimitedGPU, PowerLimitOptimizer, StepTrainer, step_of

from energy_lightning.recurring import RecurringError
from energy_lightning.types import MeasurementError

LIMITS_W = [260.0, 235.0, 210.0, 185.0, 160.0, 135.0, 110.0]
SHORT: dict[str, Any] = {"warmup_steps": 2, "profile_steps": 5}


def run(
    folder: Path, gpu: LimitedGPU, num_steps: int = 100, *, accumulate: int = 1, fit: Any = None, **options: Any
) -> tuple[Any, StepTrainer]:
    callback = PowerLimitOptimizer(device=gpu, **{**SHORT, **options})
    trainer = StepTrainer(folder, gpu, [callback], accumulate=accumulate)
    trainer.fit(num_steps, **(fit or {}))
    return callback, trainer


def best_by_hand(goal: str, slowdown: float = 0.0, eta: float = 0.5) -> float:
    """Cheapest of the seven limits, ties within 1% to the highest, by comparing every pair."""
    value = {
        "energy": lambda w: step_of(w)[1],
        "time": lambda w: step_of(w)[0],
        "cost": lambda w: eta * step_of(w)[1] + (1 - eta) * 260.0 * step_of(w)[0],
        "max_slowdown": lambda w: step_of(w)[1],
    }[goal]
    allowed = [w for w in LIMITS_W if goal != "max_slowdown" or step_of(w)[0] <= (1 + slowdown) * step_of(260.0)[0]]
    return max(w for w in allowed if not any(value(other) * 1.01 < value(w) for other in allowed))


@pytest.mark.parametrize(
    ("options", "goal"),
    [
        ({"objective": "energy"}, ("energy",)),
        ({"objective": "time"}, ("time",)),
        ({}, ("cost",)),
        ({"objective": "cost", "eta": 0.9}, ("cost", 0.0, 0.9)),
        ({"max_slowdown": 0.05}, ("max_slowdown", 0.05)),
        ({"max_slowdown": 0.2}, ("max_slowdown", 0.2)),
    ],
    ids=lambda value: str(value),
)
def test_settles_on_the_best_limit_for_the_objective(
    options: dict[str, Any], goal: tuple[Any, ...], tmp_path: Path
) -> None:
    gpu = LimitedGPU()
    callback, trainer = run(tmp_path, gpu, **options)
    assert [one.power_limit_w for one in callback.profile] == LIMITS_W
    for one in callback.profile:
        assert (one.time_s, one.energy_j) == pytest.approx(step_of(one.power_limit_w), rel=1e-9)
    assert callback.power_limit_w == best_by_hand(*goal)
    assert trainer.limits_w[-1] == callback.power_limit_w
    assert trainer.lightning_module.logged == [{"power_limit_w": callback.power_limit_w}]


def test_steps_are_spent_as_said_and_the_earlier_limit_comes_back(tmp_path: Path) -> None:
    gpu = LimitedGPU(before_w=250.0)
    _, trainer = run(tmp_path, gpu, wait_steps=3)
    expected = [250.0] * 3 + [limit_w for limit_w in LIMITS_W for _ in range(7)]
    assert trainer.limits_w[: len(expected)] == expected
    assert gpu.power_limit_w == 250.0  # neither the highest nor a default


@pytest.mark.parametrize("validates", [True, False])
def test_validation_and_epoch_ends_do_not_enter_a_window(validates: bool, tmp_path: Path) -> None:
    """Epochs of three steps are shorter than a window of five."""
    callback, _ = run(tmp_path, LimitedGPU(), fit={"epoch_steps": 3, "validates": validates})
    assert len(callback.profile) == 7
    for one in callback.profile:
        assert (one.time_s, one.energy_j) == pytest.approx(step_of(one.power_limit_w), rel=1e-9)


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    callback, _ = run(tmp_path, LimitedGPU(), accumulate=4)
    for one in callback.profile:
        time_s, energy_j = step_of(one.power_limit_w)
        assert (one.time_s, one.energy_j) == pytest.approx((4 * time_s, 4 * energy_j), rel=1e-9)


def test_a_second_run_knows_the_profile_and_other_jobs_do_not(tmp_path: Path) -> None:
    first, _ = run(tmp_path, LimitedGPU())
    gpu = LimitedGPU()
    second, trainer = run(tmp_path, gpu, num_steps=5)
    assert gpu.asked_w == [first.power_limit_w]
    assert second.profile == first.profile
    assert "no power limit is tried again" in trainer.lightning_module.lines[0]
    other = LimitedGPU()
    run(tmp_path, other, accumulate=2)  # another job, the same file
    assert len(other.asked_w) == 8
    text = (tmp_path / "power_limits.jsonl").read_text()
    assert len({json.loads(line)["key"] for line in text.splitlines()}) == 2


def test_a_sweep_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    callback, trainer = run(tmp_path, gpu, num_steps=1 + 3 * 7)
    assert callback.power_limit_w is None
    assert gpu.power_limit_w == 250.0
    assert "2 of 7 power limits" in trainer.lightning_module.lines[-1]
    gpu = LimitedGPU()
    callback, _ = run(tmp_path, gpu)
    assert gpu.asked_w[:5] == LIMITS_W[2:]
    assert [one.power_limit_w for one in callback.profile] == LIMITS_W


def test_a_void_window_is_repeated_and_a_hopeless_limit_left_out(tmp_path: Path) -> None:
    gpu = LimitedGPU()

    def before_step(step: int) -> None:
        gpu.forgets_energy = step == 14  # the last of the first window at 235 W: the counter falls
        gpu.reasons = ("sw_power_cap", "hw_thermal_slowdown") if gpu.power_limit_w == 160.0 else ("sw_power_cap",)

    callback, trainer = run(tmp_path, gpu, fit={"before_step": before_step}, objective="energy")
    assert [trainer.limits_w.count(limit_w) for limit_w in LIMITS_W[:5]] == [7, 14, 7, 7, 21]
    assert gpu.asked_w == LIMITS_W  # set on change only; 110 W is where it ends
    assert [one.power_limit_w for one in callback.profile] == [w for w in LIMITS_W if w != 160.0]
    said = "\n".join(trainer.lightning_module.lines)
    assert "235 W is measured again: rank 0: reset: the energy counter fell" in said
    assert "160 W is left out: rank 0: throttled by heat or its supply (hw_thermal_slowdown)" in said
    assert "not measured: 160 W" in said


def test_the_first_window_waits_for_a_warm_gpu_but_not_for_ever(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    gpu.celsius = 30.0

    def before_step(step: int) -> None:
        gpu.celsius = min(50.0, 30.0 + step)

    _, trainer = run(tmp_path, gpu, fit={"before_step": before_step})
    assert trainer.limits_w.index(235.0) == 1 + 3 * 7  # after three windows
    first = json.loads((tmp_path / "power_limits.jsonl").read_text().splitlines()[0])
    assert first["temperature_c"] == 50.0


def test_a_slow_counter_gets_a_longer_window(tmp_path: Path) -> None:
    """Its refresh of 0.2 s asks for 2 s: 20 steps of 0.1 s at the highest limit, where five were planned."""
    gpu = LimitedGPU()
    gpu.counter_refresh_s = gpu._refresh_s = 0.2
    callback, _ = run(tmp_path, gpu, num_steps=300)
    rows = [json.loads(line) for line in (tmp_path / "power_limits.jsonl").open()]
    assert all(row["num_steps"] * step_of(row["power_limit_w"])[0] >= 2.0 * (1 - 1e-9) for row in rows)
    assert rows[0]["num_steps"] in (20, 21)  # rounded up
    for one in callback.profile:
        assert one.energy_j == pytest.approx(step_of(one.power_limit_w)[1], rel=0.12)  # a refresh in ten or more


def test_the_limit_that_the_gpu_reports_is_the_one_used(tmp_path: Path) -> None:
    gpu = LimitedGPU(rounds_to_w=5.0)
    callback, _ = run(tmp_path, gpu, limits_w=[260.0, 183.0], objective="energy")
    assert gpu.asked_w == [260.0, 183.0]  # 185 W is in force then
    rows = [json.loads(line) for line in (tmp_path / "power_limits.jsonl").open()]
    assert [(row["asked_w"], row["power_limit_w"]) for row in rows] == [(260.0, 260.0), (183.0, 185.0)]
    assert callback.power_limit_w == 185.0


def test_limits_outside_the_range_are_named_and_nothing_is_set(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    with pytest.raises(RecurringError, match="300 W is outside what the GPUs take, 100 to 260 W"):
        run(tmp_path, gpu, limits_w=[200.0, 300.0])
    assert (gpu.asked_w, gpu.power_limit_w) == ([], 250.0)


def test_without_permission_one_line_and_training_goes_on(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    gpu.can_set_power_limit, gpu.mode, gpu.mode_reason = False, "measure-only", "needs root or zeusd"
    callback, trainer = run(tmp_path, gpu)
    assert (gpu.asked_w, trainer.limits_w) == ([], [250.0] * 100)
    assert trainer.lightning_module.lines == [
        "energy_lightning: no power limit is tried, training goes on: rank 0: needs root or zeusd"
    ]
    assert not (tmp_path / "power_limits.jsonl").exists()
    assert callback.power_limit_w is None


def test_permission_lost_in_the_sweep_gives_the_earlier_limit_back(tmp_path: Path) -> None:
    gpu = LimitedGPU()

    def before_step(step: int) -> None:
        gpu.can_set_power_limit = step < 20

    callback, trainer = run(tmp_path, gpu, fit={"before_step": before_step})
    assert trainer.limits_w[-1] == 250.0
    assert callback.power_limit_w is None
    assert "may not set power limits any more" in trainer.lightning_module.lines[-1]


def test_somebody_elses_limit_voids_the_window(tmp_path: Path) -> None:
    gpu = LimitedGPU()

    def before_step(step: int) -> None:
        if step == 6:
            gpu.power_limit_w = 130.0

    callback, trainer = run(tmp_path, gpu, fit={"before_step": before_step})
    assert (
        "260 W is measured again: rank 0: asked for 260 W, the GPU reports 130 W" in trainer.lightning_module.lines[1]
    )
    assert callback.profile[0].energy_j == pytest.approx(step_of(260.0)[1])


class Boom(RuntimeError):
    """The user's own bug."""


@pytest.mark.parametrize("step", [0, 1, 2, 5, 30, 90])
def test_an_exception_gives_the_earlier_limit_back(step: int, tmp_path: Path) -> None:
    gpu = LimitedGPU()

    def before_step(now: int) -> None:
        if now == step:
            raise Boom

    with pytest.raises(Boom):
        run(tmp_path, gpu, fit={"before_step": before_step})
    assert gpu.power_limit_w == 250.0


def test_a_foreign_profile_stops_the_training_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("limit,time\n100,2\n")
    gpu = LimitedGPU()
    with pytest.raises(MeasurementError, match="left untouched"):
        run(tmp_path, gpu, profile=path)
    assert path.read_text() == "limit,time\n100,2\n"
    assert gpu.power_limit_w == 250.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "speed"}, "known: energy, time, cost, max_slowdown"),
        ({"objective": "time", "max_slowdown": 0.1}, "leave one"),
        ({"objective": "max_slowdown"}, "needs max_slowdown"),
        ({"max_slowdown": math.nan}, "max_slowdown"),
        ({"eta": 2.0}, "eta"),
        ({"limits_w": []}, "limits_w"),
        ({"limits_w": [100.0, -1.0]}, "limits_w"),
        ({"step_w": 0.0}, "step_w"),
        ({"wait_steps": -1}, "wait_steps"),
        ({"profile_steps": 0}, "profile_steps"),
        ({"max_tries": 0}, "max_tries"),
        ({"noise": 1.0}, "noise"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecurringError, match=message):
        PowerLimitOptimizer(**options)
