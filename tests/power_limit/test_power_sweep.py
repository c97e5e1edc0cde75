"""Which limits are tried in which order, and the windows that ranks bring together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from energy_lightning.callbacks.power_window import WindowRow, reduce_rows
from energy_lightning.recurring import PowerLimitSample, PowerSweep, RecurringError, power_limit_steps

ROW = WindowRow(
    gpu=1.0,
    num_steps=10,
    time_s=2.0,
    energy_j=30.0,
    needed_s=1.0,
    set_w=200.0,
    limit_w=200.0,
    temperature_c=50.0,
    warmed_c=0.5,
    fault=None,
    can_set=True,
)


def sample(limit_w: float) -> PowerLimitSample:
    return PowerLimitSample(power_limit_w=limit_w, time_s=1.0, energy_j=limit_w)


def test_limits_come_from_the_range_and_the_step() -> None:
    assert power_limit_steps((100.0, 260.0), 25.0) == (260.0, 235.0, 210.0, 185.0, 160.0, 135.0, 110.0)
    assert power_limit_steps((100.0, 300.0), 100.0) == (300.0, 200.0, 100.0)
    assert power_limit_steps((100.0, 120.0), 50.0) == (120.0,)
    assert power_limit_steps((0.1, 0.4), 0.1) == pytest.approx((0.4, 0.3, 0.2, 0.1))


@pytest.mark.parametrize(
    ("range_w", "step_w"), [((0.0, 1.0), 1.0), ((2.0, 1.0), 1.0), ((1.0, 2.0), 0.0), ((1.0, float("nan")), 1.0)]
)
def test_ranges_that_cannot_be_are_refused(range_w: tuple[float, float], step_w: float) -> None:
    with pytest.raises(RecurringError, match="least"):
        power_limit_steps(range_w, step_w)


def test_a_step_that_makes_a_sweep_without_end_is_refused() -> None:
    with pytest.raises(RecurringError, match="more than 1000 limits"):
        power_limit_steps((100.0, 260.0), 1e-6)


def test_a_sweep_goes_down_skips_what_is_known_and_gives_up_after_three() -> None:
    sweep = PowerSweep([100.0, 300.0, 200.0, 250.0], {200.0: sample(201.0), 90.0: sample(90.0)})
    assert (sweep.num_limits, sweep.num_known, sweep.current_w) == (4, 1, 300.0)
    sweep.accept(sample(300.0))
    assert sweep.current_w == 250.0
    assert [sweep.reject("hot"), sweep.reject("hot"), sweep.current_w] == [False, False, 250.0]
    assert sweep.reject("too hot")
    assert sweep.current_w == 100.0  # 200 is known
    assert not sweep.reject("once")  # the count of tries starts again
    sweep.accept(sample(110.0))
    assert sweep.current_w is None
    assert [one.power_limit_w for one in sweep.profile] == [300.0, 201.0, 110.0]
    assert sweep.given_up == {250.0: "too hot"}
    assert [sweep.asked_for(limit_w) for limit_w in (300.0, 201.0, 110.0)] == [300.0, 200.0, 100.0]
    with pytest.raises(RecurringError, match="over"):
        sweep.accept(sample(1.0))


def test_limits_that_a_board_rounds_to_one_are_its_repeats() -> None:
    sweep = PowerSweep([225.0, 200.0])
    for time_s in (1.0, 2.0):
        sweep.accept(PowerLimitSample(power_limit_w=200.0, time_s=time_s, energy_j=5.0))
    assert [(one.power_limit_w, one.time_s) for one in sweep.profile] == [(200.0, 1.5)]
    assert sweep.asked_for(200.0) == 225.0


def test_time_is_the_slowest_ranks_and_a_shared_gpu_counts_once() -> None:
    rows = [ROW, replace(ROW, gpu=2.0, time_s=2.5, energy_j=40.0), replace(ROW, gpu=2.0, energy_j=39.0)]
    window = reduce_rows(rows, asked_w=200.0)
    assert (window.time_s, window.energy_j) == pytest.approx((0.25, 7.0))  # 30 + 40 J over 10 steps
    assert (window.fault, window.steps_missing) == (None, 0)


def test_the_limit_that_was_read_back_counts_until_it_changes() -> None:
    """However far a board rounds; two boards that round differently are no measurement of one limit."""
    rounded = reduce_rows([replace(ROW, set_w=150.0, limit_w=150.4)], asked_w=183.0)
    assert (rounded.limit_w, rounded.fault) == (150.4, None)
    shared = reduce_rows([ROW, replace(ROW, set_w=None)], asked_w=183.0)  # set by the other rank
    assert shared.fault is None
    changed = reduce_rows([ROW, replace(ROW, gpu=2.0, limit_w=205.0)], asked_w=200.0)
    assert changed.fault == "rank 1: asked for 200 W and had 200 W, the GPU reports 205 W now"
    apart = reduce_rows([ROW, replace(ROW, gpu=2.0, set_w=260.0, limit_w=260.0)], asked_w=225.0)
    assert apart.fault == "asked for 225 W, the GPUs of the ranks report 200 W, 260 W"
    assert reduce_rows([replace(ROW, limit_w=float("nan"))], asked_w=200.0).fault is not None


def test_faults_of_any_rank_void_the_window() -> None:
    rows = [ROW, replace(ROW, gpu=2.0, fault="the counter fell")]
    assert reduce_rows(rows, asked_w=200.0).fault == "rank 1: the counter fell"
    assert "0 J" in str(reduce_rows([replace(ROW, energy_j=0.0)], asked_w=200.0).fault)
    assert "inf J" in str(reduce_rows([replace(ROW, energy_j=float("inf"))], asked_w=200.0).fault)
    assert "under 0 W" in str(reduce_rows([replace(ROW, set_w=0.0, limit_w=0.0)], asked_w=200.0).fault)


def test_a_slow_counter_asks_for_more_steps() -> None:
    """10 steps took 2 s; 5.1 s are needed: 25.5 steps in all, so 16 more."""
    assert reduce_rows([ROW, replace(ROW, gpu=2.0, needed_s=5.1)], asked_w=200.0).steps_missing == 16
