"""What rank 0 orders when a GPU is lost in the middle of a sweep."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import Mock

from energy_lightning.callbacks.power_planner import Facts, PowerPlanner, SweepSettings, power_objective
from energy_lightning.callbacks.power_window import WindowRow

FACTS = Facts(gpu=0.0, device={}, virtual=False, range_w=(100.0, 400.0), limit_w=400.0, why_not=None)
LOST = WindowRow(
    gpu=0.0,
    num_steps=5,
    time_s=1.0,
    energy_j=0.0,
    needed_s=0.0,
    set_w=None,
    limit_w=math.nan,
    temperature_c=None,
    warmed_c=None,
    fault="DeviceError: GPU is lost",
    can_set=True,
)


def planner() -> PowerPlanner:
    settings = SweepSettings(
        objective=power_objective("energy", None, 0.5),
        limits_w=(400.0, 300.0, 200.0),
        step_w=25.0,
        warmup_steps=1,
        profile_steps=5,
        max_tries=2,
        noise=0.01,
    )
    return PowerPlanner(settings, [FACTS, FACTS], Mock(known={}, run={"emulated": False}, path="power_limits.jsonl"))


def test_a_gpu_that_is_lost_ends_the_sweep_at_its_first_limit() -> None:
    made, fine = planner(), replace(LOST, limit_w=400.0, fault=None, energy_j=100.0)
    first, second = (made.judge([fine, LOST]) for _ in range(2))
    assert (first.action, first.limit_w) == ("measure", 400.0)
    assert second.action == "stop"
    assert second.line.startswith("rank 1 does not tell its power limit any more, none is tried, training goes on: ")


def test_a_limit_that_cannot_be_measured_is_left_out_where_the_gpu_answers() -> None:
    made, hot = planner(), replace(LOST, limit_w=400.0, fault="throttled by heat")
    first, second = (made.judge([hot, hot]) for _ in range(2))
    assert (first.action, first.limit_w) == ("measure", 400.0)
    assert (second.action, second.limit_w) == ("measure", 300.0)


def test_a_limit_is_known_where_every_gpu_has_made_it_one_that_was_measured() -> None:
    made, fine = planner(), replace(LOST, limit_w=400.0, fault=None, energy_j=100.0)
    assert made.rounded([(400.0, None), (None, None)]) is None  # nothing is known yet
    assert made.judge([fine, fine]).limit_w == 300.0
    assert made.rounded([(400.0, None), (300.0, None)]) is None  # two boards that round differently
    assert made.rounded([(400.0, None), (None, "DeviceError: busy")]) is None
    assert made.rounded([(None, None), (None, None)]) is None
    following = made.rounded([(400.0, None), (None, None)])  # the other rank's is the same board
    assert following is not None
    assert (following.action, following.limit_w) == ("measure", 200.0)
    assert [one.power_limit_w for one in made.sweep.profile] == [400.0]
