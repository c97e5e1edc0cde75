"""PowerLimitOptimizer on a GPU whose times and energies under each limit are known by a formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from limited_gpus import LimitedGPU, step_of, train_under_limits

LIMITS_W = [250.0, 225.0, 200.0, 175.0, 150.0, 125.0, 100.0]  # from the limit that was in force


def best_by_hand(goal: str, slowdown: float = 0.0, eta: float = 0.5) -> float:
    """Cheapest of the seven limits, ties within 1% to the highest, by comparing every pair."""
    value = {
        "energy": lambda w: step_of(w)[1],
        "time": lambda w: step_of(w)[0],
        "cost": lambda w: eta * step_of(w)[1] + (1 - eta) * 250.0 * step_of(w)[0],
        "max_slowdown": lambda w: step_of(w)[1],
    }[goal]
    allowed = [w for w in LIMITS_W if goal != "max_slowdown" or step_of(w)[0] <= (1 + slowdown) * step_of(250.0)[0]]
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
    callback, trainer = train_under_limits(tmp_path, gpu, **options)
    assert [one.power_limit_w for one in callback.profile] == LIMITS_W
    for one in callback.profile:
        assert (one.time_s, one.energy_j) == pytest.approx(step_of(one.power_limit_w), rel=1e-9)
    assert callback.power_limit_w == best_by_hand(*goal)
    assert trainer.limits_w[-1] == callback.power_limit_w
    assert trainer.lightning_module.logged == [{"power_limit_w": callback.power_limit_w}]


def test_steps_are_spent_as_said_and_the_earlier_limit_comes_back(tmp_path: Path) -> None:
    gpu = LimitedGPU(before_w=250.0)
    _, trainer = train_under_limits(tmp_path, gpu, wait_steps=3)
    expected = [250.0] * 3 + [limit_w for limit_w in LIMITS_W for _ in range(7)]
    assert trainer.limits_w[: len(expected)] == expected
    assert gpu.power_limit_w == 250.0  # neither the highest nor a default


@pytest.mark.parametrize("validates", [True, False])
def test_validation_and_epoch_ends_do_not_enter_a_window(validates: bool, tmp_path: Path) -> None:
    """Epochs of three steps are shorter than a window of five."""
    callback, _ = train_under_limits(tmp_path, LimitedGPU(), fit={"epoch_steps": 3, "validates": validates})
    assert len(callback.profile) == 7
    for one in callback.profile:
        assert (one.time_s, one.energy_j) == pytest.approx(step_of(one.power_limit_w), rel=1e-9)


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    callback, _ = train_under_limits(tmp_path, LimitedGPU(), accumulate=4)
    for one in callback.profile:
        time_s, energy_j = step_of(one.power_limit_w)
        assert (one.time_s, one.energy_j) == pytest.approx((4 * time_s, 4 * energy_j), rel=1e-9)


def test_a_second_run_knows_the_profile_and_other_jobs_do_not(tmp_path: Path) -> None:
    first, _ = train_under_limits(tmp_path, LimitedGPU(), objective="energy")
    gpu = LimitedGPU()
    second, trainer = train_under_limits(tmp_path, gpu, num_steps=5, objective="energy")
    assert gpu.asked_w == [first.power_limit_w]
    assert second.profile == first.profile
    assert "no power limit is tried again" in trainer.lightning_module.lines[0]
    other = LimitedGPU()
    train_under_limits(tmp_path, other, accumulate=2)  # another job, the same file
    assert len(other.asked_w) == 7
    text = (tmp_path / "power_limits.jsonl").read_text()
    assert len({json.loads(line)["key"] for line in text.splitlines()}) == 2


def test_a_sweep_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    callback, trainer = train_under_limits(tmp_path, gpu, num_steps=1 + 3 * 7)
    assert callback.power_limit_w is None
    assert gpu.power_limit_w == 250.0
    assert "2 of 7 power limits" in trainer.lightning_module.lines[-1]
    gpu = LimitedGPU()
    callback, _ = train_under_limits(tmp_path, gpu)
    assert gpu.asked_w[:5] == LIMITS_W[2:]
    assert [one.power_limit_w for one in callback.profile] == LIMITS_W


def test_a_void_window_is_repeated_and_a_hopeless_limit_left_out(tmp_path: Path) -> None:
    gpu = LimitedGPU()

    def before_step(step: int) -> None:
        gpu.forgets_energy = step == 14  # the last of the first window at 225 W: the counter falls
        gpu.reasons = ("sw_power_cap", "hw_thermal_slowdown") if gpu.power_limit_w == 150.0 else ("sw_power_cap",)

    callback, trainer = train_under_limits(tmp_path, gpu, fit={"before_step": before_step}, objective="energy")
    assert [trainer.limits_w.count(limit_w) for limit_w in LIMITS_W[:5]] == [8, 14, 7, 7, 21]
    assert gpu.asked_w == LIMITS_W[1:]  # set on change only; 100 W is where it ends
    assert [one.power_limit_w for one in callback.profile] == [w for w in LIMITS_W if w != 150.0]
    said = "\n".join(trainer.lightning_module.lines)
    assert "225 W is measured again: rank 0: reset: the energy counter fell" in said
    assert "150 W is left out: rank 0: throttled by heat or its supply (hw_thermal_slowdown)" in said
    assert "not measured: 150 W" in said


def test_the_first_window_waits_for_a_warm_gpu_but_not_for_ever(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    gpu.celsius = 30.0

    def before_step(step: int) -> None:
        gpu.celsius = min(50.0, 30.0 + step)

    _, trainer = train_under_limits(tmp_path, gpu, fit={"before_step": before_step})
    assert trainer.limits_w.index(225.0) == 1 + 3 * 7  # after three windows
    first = json.loads((tmp_path / "power_limits.jsonl").read_text().splitlines()[0])
    assert first["temperature_c"] == 50.0


def test_a_slow_counter_gets_a_longer_window(tmp_path: Path) -> None:
    """Its refresh of 0.2 s asks for 2 s: 20 steps of 0.1 s at the highest limit, where five were planned."""
    gpu = LimitedGPU()
    gpu.counter_refresh_s = gpu._refresh_s = 0.2
    callback, _ = train_under_limits(tmp_path, gpu, num_steps=300)
    rows = [json.loads(line) for line in (tmp_path / "power_limits.jsonl").open()]
    assert all(row["num_steps"] * step_of(row["power_limit_w"])[0] >= 2.0 * (1 - 1e-9) for row in rows)
    assert rows[0]["num_steps"] in (20, 21)  # rounded up
    for one in callback.profile:
        assert one.energy_j == pytest.approx(step_of(one.power_limit_w)[1], rel=0.12)  # a refresh in ten or more


def test_the_limit_that_the_gpu_reports_is_the_one_used(tmp_path: Path) -> None:
    gpu = LimitedGPU(rounds_to_w=5.0)
    callback, _ = train_under_limits(tmp_path, gpu, limits_w=[260.0, 183.0], objective="energy")
    assert gpu.asked_w == [260.0, 183.0]  # 185 W is in force then
    rows = [json.loads(line) for line in (tmp_path / "power_limits.jsonl").open()]
    assert [(row["asked_w"], row["power_limit_w"]) for row in rows] == [(260.0, 260.0), (183.0, 185.0)]
    assert callback.power_limit_w == 185.0


def test_a_board_that_rounds_coarsely_loses_no_limit(tmp_path: Path) -> None:
    gpu = LimitedGPU(rounds_to_w=50.0)
    callback, trainer = train_under_limits(tmp_path, gpu, objective="energy")
    assert [one.power_limit_w for one in callback.profile] == [250.0, 200.0, 150.0, 100.0]
    for one in callback.profile:
        assert (one.time_s, one.energy_j) == pytest.approx(step_of(one.power_limit_w), rel=1e-9)
    assert callback.power_limit_w == trainer.limits_w[-1] == 100.0
    assert not any("left out" in line or "measured again" in line for line in trainer.lightning_module.lines)


def test_limits_that_a_board_makes_one_are_measured_once(tmp_path: Path) -> None:
    """Of seven that are asked for the board makes four: 250, 200 three times, 150 and 100 twice."""
    gpu = LimitedGPU(rounds_to_w=50.0)
    callback, trainer = train_under_limits(tmp_path, gpu, objective="energy")
    made = [50.0 * round(limit_w / 50.0) for limit_w in LIMITS_W]
    assert made == [250.0, 200.0, 200.0, 200.0, 150.0, 100.0, 100.0]
    rows = [json.loads(line) for line in (tmp_path / "power_limits.jsonl").read_text().splitlines()]
    steps = [2 + row["num_steps"] for row in rows]  # after two of warming up the limit that is enforced is known
    expected = [limit_w for limit_w, num_steps in zip(made, steps, strict=True) for _ in range(num_steps)]
    assert trainer.limits_w[1 : 1 + len(expected)] == expected
    assert [(row["asked_w"], row["power_limit_w"]) for row in rows] == list(zip(LIMITS_W, made, strict=True))
    assert [row["num_steps"] for row in rows] == [5, 5, 0, 0, 5, 5, 0]
    later, trainer = train_under_limits(tmp_path, LimitedGPU(rounds_to_w=50.0), num_steps=2, objective="energy")
    assert (later.power_limit_w, later.profile) == (callback.power_limit_w, callback.profile)
    assert "no power limit is tried again" in trainer.lightning_module.lines[0]


def test_a_sweep_cut_short_counts_limits_that_the_board_made_one(tmp_path: Path) -> None:
    _, trainer = train_under_limits(tmp_path, LimitedGPU(rounds_to_w=50.0), num_steps=1 + 2 * 7 + 2 * 2 + 3)
    assert "after 4 of 7 power limits" in trainer.lightning_module.lines[-1]


def test_a_driver_that_takes_its_time_is_not_taken_for_one_that_rounds(tmp_path: Path) -> None:
    """A limit that was set is enforced with the next step only: the earlier one, which is known, is read at first."""

    class Slow(LimitedGPU):
        coming_w: float | None = None

        def set_power_limit(self, power_limit_w: float) -> float:
            self.asked_w.append(power_limit_w)
            self.coming_w = power_limit_w
            return self.power_limit_w

        def step(self) -> None:
            self.power_limit_w = self.power_limit_w if self.coming_w is None else self.coming_w
            super().step()

    callback, _ = train_under_limits(tmp_path, Slow(), num_steps=200, limits_w=[250.0, 200.0, 150.0])
    assert [one.power_limit_w for one in callback.profile] == [250.0, 200.0, 150.0]
    for one in callback.profile:
        assert (one.time_s, one.energy_j) == pytest.approx(step_of(one.power_limit_w), rel=1e-9)


def test_the_verdict_is_in_words(tmp_path: Path) -> None:
    _, trainer = train_under_limits(tmp_path, LimitedGPU(), objective="energy", limits_w=[250.0, 150.0])
    time = step_of(150.0)[0] / step_of(250.0)[0] - 1.0
    energy = 1.0 - step_of(150.0)[1] / step_of(250.0)[1]
    expected = f"power limit 150 W (was 250 W): {energy:.1%} less energy and {time:.1%} more time a step against 250 W"
    assert trainer.lightning_module.lines[-1].endswith(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"objective": "time"}, "250 W (was 250 W), the highest tried: no lower one is better by more than the noise"),
        (
            {"max_slowdown": 0.025},
            "250 W (was 250 W), the highest tried: no lower one saves more than the noise in at most 2.5% more time",
        ),
        ({"limits_w": [200.0]}, "200 W (was 250 W), the only one measured"),
    ],
    ids=["time", "max_slowdown", "one"],
)
def test_the_verdict_says_why_the_highest_limit_stays(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """150 W saves 19% of the energy in 24% more time."""
    _, trainer = train_under_limits(tmp_path, LimitedGPU(), **{"limits_w": [250.0, 150.0], **options})
    assert trainer.lightning_module.lines[-1].endswith(f"power limit {expected}")
    begins = "one power limit, 200 W, about 7" if "limits_w" in options else "2 power limits, 250 to 150 W"
    assert trainer.lightning_module.lines[0].split("trying ")[1].startswith(begins)


def test_a_training_that_ends_before_a_limit_was_measured_keeps_nothing(tmp_path: Path) -> None:
    _, trainer = train_under_limits(tmp_path, LimitedGPU(), num_steps=4)
    assert "ended before a power limit was measured" in trainer.lightning_module.lines[-1]
