"""PowerLimitOptimizer where it may not, must not or cannot set limits: what is said, and what comes back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from limited_gpus import LimitedGPU, PowerLimitOptimizer, StepTrainer, step_of, train_under_limits

from energy_lightning.recurring import RecurringError
from energy_lightning.types import DeviceError, MeasurementError, StrategyError


class Boom(RuntimeError):
    """The user's own bug."""


def test_no_limit_above_the_one_found_is_tried_unless_it_is_named(tmp_path: Path) -> None:
    _, trainer = train_under_limits(tmp_path, LimitedGPU(before_w=180.0), objective="time")
    assert max(trainer.limits_w) == 180.0
    assert (
        "none above the 180 W that were in force; limits_w=[...] may go up to 260 W"
        in trainer.lightning_module.lines[0]
    )
    callback, trainer = train_under_limits(
        tmp_path, LimitedGPU(before_w=180.0), objective="time", limits_w=[260.0, 180.0]
    )
    assert callback.power_limit_w == trainer.limits_w[-1] == 260.0
    assert "in force" not in trainer.lightning_module.lines[0]


def test_two_of_them_in_a_trainer_are_refused_before_a_limit_is_set(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    trainer = StepTrainer(tmp_path, gpu, [PowerLimitOptimizer(device=gpu), PowerLimitOptimizer(device=gpu)])
    with pytest.raises(StrategyError, match=r"2 callbacks PowerLimitOptimizer, .* leave one"):
        trainer.fit(100)
    assert gpu.asked_w == []


def test_a_limit_in_force_below_the_range_is_left_alone(tmp_path: Path) -> None:
    gpu = LimitedGPU(before_w=90.0)
    _, trainer = train_under_limits(tmp_path, gpu)
    assert gpu.asked_w == []
    (line,) = trainer.lightning_module.lines
    assert line.endswith("90 W is in force and 100 W the least that can be set; to go above give limits_w=[...]")


@pytest.mark.parametrize("fails", [False, True])
def test_a_limit_that_cannot_be_set_back_ends_no_training(
    fails: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(LimitedGPU):
        def reset_power_limit(self) -> None:
            raise DeviceError("the driver is busy")

    def before_step(step: int) -> None:
        if fails and step == 30:
            raise Boom

    if fails:
        with pytest.raises(Boom):
            train_under_limits(tmp_path, Stuck(), fit={"before_step": before_step})
    else:
        train_under_limits(tmp_path, Stuck(), objective="energy")
    (record,) = caplog.records
    said = record.getMessage()
    assert "its earlier power limit, 250 W, could not be set again (DeviceError: the driver is busy)" in said
    assert "nvidia-smi --power-limit=250" in said


def test_an_emulated_nvml_is_said_to_slow_nothing(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    gpu.virtual_clock = False
    gpu.emulated_hardware = True  # type: ignore[attr-defined]
    _, trainer = train_under_limits(tmp_path, gpu)
    assert "training runs on the CPU, which feels no limit: times say nothing" in trainer.lightning_module.lines[0]


def test_limits_outside_the_range_are_named_and_nothing_is_set(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    with pytest.raises(RecurringError, match=r"\[200.0, 300.0, 90.0\]: 300, 90 W is outside .* 100 to 260 W"):
        train_under_limits(tmp_path, gpu, limits_w=[200.0, 300.0, 90.0])
    assert (gpu.asked_w, gpu.power_limit_w) == ([], 250.0)


def test_without_permission_one_line_and_training_goes_on(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    gpu.can_set_power_limit, gpu.mode, gpu.mode_reason = False, "measure-only", "needs root or zeusd"
    callback, trainer = train_under_limits(tmp_path, gpu)
    assert (gpu.asked_w, trainer.limits_w) == ([], [250.0] * 100)
    assert trainer.lightning_module.lines == [
        "energy_lightning: no power limit is tried, training goes on: rank 0: needs root or zeusd"
    ]
    assert not (tmp_path / "power_limits.jsonl").exists()
    assert callback.power_limit_w is None


def test_a_fast_dev_run_opens_and_sets_nothing(tmp_path: Path) -> None:
    gpu = LimitedGPU()
    callback = PowerLimitOptimizer(device=gpu, warmup_steps=2, profile_steps=5)
    trainer = StepTrainer(tmp_path, gpu, [callback])
    trainer.fast_dev_run = 30
    assert trainer.fit(30) == ["energy_lightning: no power limit is tried in a fast_dev_run"]
    assert (gpu.asked_w, callback.monitored, callback.power_limit_w) == ([], None, None)
    assert not list(tmp_path.iterdir())
    trainer.fast_dev_run = False
    trainer.fit(100)  # the same callback, in earnest
    assert callback.power_limit_w is not None


def test_permission_lost_in_the_sweep_gives_the_earlier_limit_back(tmp_path: Path) -> None:
    gpu = LimitedGPU()

    def before_step(step: int) -> None:
        gpu.can_set_power_limit = step < 20

    callback, trainer = train_under_limits(tmp_path, gpu, fit={"before_step": before_step})
    assert trainer.limits_w[-1] == 250.0
    assert callback.power_limit_w is None
    assert "may not set power limits any more" in trainer.lightning_module.lines[-1]


def test_somebody_elses_limit_voids_the_window(tmp_path: Path) -> None:
    gpu = LimitedGPU()

    def before_step(step: int) -> None:
        if step == 6:
            gpu.power_limit_w = 130.0

    callback, trainer = train_under_limits(tmp_path, gpu, fit={"before_step": before_step})
    assert (
        "250 W is measured again: rank 0: asked for 250 W and had 250 W, the GPU reports 130 W now"
        in trainer.lightning_module.lines[1]
    )
    assert callback.profile[0].energy_j == pytest.approx(step_of(250.0)[1])


@pytest.mark.parametrize("step", [0, 1, 2, 5, 30, 90])
def test_an_exception_gives_the_earlier_limit_back(step: int, tmp_path: Path) -> None:
    gpu = LimitedGPU()

    def before_step(now: int) -> None:
        if now == step:
            raise Boom

    with pytest.raises(Boom):
        train_under_limits(tmp_path, gpu, fit={"before_step": before_step})
    assert gpu.power_limit_w == 250.0


def test_a_foreign_profile_stops_the_training_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("limit,time\n100,2\n")
    gpu = LimitedGPU()
    with pytest.raises(MeasurementError, match="left untouched"):
        train_under_limits(tmp_path, gpu, profile=path)
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
        ({"max_slowdown": "5%"}, "max_slowdown must be a number, got '5%': give e.g. 0.05"),
        ({"max_slowdown": []}, "max_slowdown"),
        ({"eta": None}, "eta"),
        ({"limits_w": []}, "limits_w"),
        ({"limits_w": 200}, "must be a list of limits in W, .* got 200"),
        ({"limits_w": "200"}, "limits_w"),
        ({"limits_w": [200, None]}, "limits_w must be a number, got None"),
        ({"limits_w": [True]}, "limits_w"),
        ({"limits_w": [100.0, -1.0]}, "limits_w"),
        ({"step_w": 0.0}, "step_w"),
        ({"step_w": 0.025}, "1 W or more"),
        ({"step_w": "x"}, "step_w"),
        ({"wait_steps": -1}, "wait_steps"),
        ({"wait_steps": 1.5}, "wait_steps must be a whole number, 0 or more, got 1.5"),
        ({"warmup_steps": None}, "warmup_steps"),
        ({"profile_steps": 0}, "profile_steps"),
        ({"profile_steps": 2.5}, "profile_steps must be a whole number, 1 or more, got 2.5"),
        ({"max_tries": 0}, "max_tries"),
        ({"max_tries": math.nan}, "max_tries"),
        ({"noise": 1.0}, "noise"),
        ({"noise": "1%"}, "noise"),
        ({"profile": 5}, "profile must be the path of a file"),
        ({"profile": ""}, "profile must be the path of a file"),
        ({"profile": "."}, "profile must be the path of a file"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecurringError, match=message):
        PowerLimitOptimizer(**options)
