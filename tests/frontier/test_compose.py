"""Composition against brute force: every choice of modes, frequencies and schedules enumerated."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_lightning.frontier import FrontierError, PartOption, PartProfile, compose_iteration
from energy_lightning.frontier.convolution import Front, convolve, leaf
from energy_lightning.types import Plan, Schedule

STATIC_W = 50.0
Value = tuple[float, float]


def brute_force(parts: list[PartProfile], num_microbatches: int, switch_time_s: float) -> set[Value]:
    forward = phase_values([p for p in parts if p.phase == "forward"], num_microbatches)
    backward = phase_values([p for p in parts if p.phase != "forward"], num_microbatches)
    found = []
    for (f, (t0, e0)), (g, (t1, e1)) in itertools.product(forward, backward):
        switch_s = 0.0 if f == g else 2 * num_microbatches * switch_time_s
        found.append((t0 + t1 + switch_s, e0 + e1 + switch_s * STATIC_W))
    return {p for p in found if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in found)}


def phase_values(parts: list[PartProfile], num_microbatches: int) -> list[tuple[int | None, Value]]:
    found = []
    for mode in (False, True):
        members = [p for p in parts if p.nanobatched in (mode, None)]
        if {p.key for p in members} != {p.key for p in parts}:
            continue
        for combination in itertools.product(*(p.options for p in members)):
            if len({o.frequency_mhz for o in combination}) == 1:
                times = [p.count * (1 if p.phase == "iteration" else num_microbatches) for p in members]
                time_s = sum(n * o.time_s for n, o in zip(times, combination, strict=True))
                energy_j = sum(n * o.energy_j for n, o in zip(times, combination, strict=True))
                found.append((combination[0].frequency_mhz, (time_s, energy_j)))
    return found


@st.composite
def profiles(draw: st.DrawFn) -> list[PartProfile]:
    options = st.builds(
        PartOption,
        st.sampled_from([900, 1200]),
        st.none(),
        st.integers(1, 20).map(float),
        st.integers(1, 20).map(float),
    )
    parts = []
    for phase, key in [("forward", "fwd_attn"), ("forward", "fwd_mlp"), ("backward", "bwd_attn"), ("iteration", "opt")]:
        modes = draw(st.sampled_from([[None], [False], [False, True]]))
        for mode in modes:
            more = draw(st.lists(options, max_size=3))
            always = PartOption(900, None, float(draw(st.integers(1, 20))), float(draw(st.integers(1, 20))))
            parts.append(PartProfile(phase, key, mode, draw(st.integers(1, 3)), [*more, always]))
    return parts


@settings(deadline=None, max_examples=150)
@given(profiles(), st.integers(1, 3), st.sampled_from([0.0, 0.5]))
def test_composition_equals_brute_force(parts: list[PartProfile], num_microbatches: int, switch_time_s: float) -> None:
    points = compose_iteration(
        parts, num_microbatches=num_microbatches, static_power_w=STATIC_W, switch_time_s=switch_time_s
    )
    assert {(p.time_s, p.energy_j) for p in points} == brute_force(parts, num_microbatches, switch_time_s)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.1, 9.0)), min_size=1, max_size=30))
def test_convolution_equals_all_pairwise_sums(values: list[Value]) -> None:
    a, b = leaf((t, e, i) for i, (t, e) in enumerate(values)), leaf((e, t, i) for i, (t, e) in enumerate(values))
    front = convolve(a, b)
    sums = [(t0 + t1, e0 + e1) for t0, e0 in values for e1, t1 in values]
    expected = {p for p in sums if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in sums)}
    assert set(zip(front.time_s.tolist(), front.energy_j.tolist(), strict=True)) == expected


def test_convolution_in_small_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    fronts = [leaf((t, 1 / t + rng.uniform(0, 0.02), i) for i, t in enumerate(rng.uniform(1, 3, 60))) for _ in range(2)]
    whole = convolve(*fronts)
    monkeypatch.setattr("energy_lightning.frontier.convolution._BLOCK", 7)
    blocks = convolve(*fronts)
    np.testing.assert_array_equal(whole.time_s, blocks.time_s)
    np.testing.assert_array_equal(whole.energy_j, blocks.energy_j)


def test_the_plan_says_what_was_chosen() -> None:
    overlap, exposed = Schedule(4, "linear_0"), Schedule(8, None)
    parts = [
        PartProfile("forward", "fwd_attn", True, 2, [PartOption(1200, overlap, 1.0, 1.0)]),
        PartProfile("forward", "fwd_attn", False, 1, [PartOption(1200, exposed, 3.0, 3.0)]),
        PartProfile("forward", "fwd_rest", None, 1, [PartOption(1200, None, 0.5, 0.5)]),
        PartProfile("backward", "bwd_attn", True, 2, [PartOption(900, overlap, 4.0, 4.0)]),
        PartProfile("backward", "bwd_attn", False, 1, [PartOption(900, exposed, 3.0, 3.0)]),
        PartProfile("iteration", "grad_bucket", None, 1, [PartOption(900, exposed, 2.0, 2.0)]),
    ]
    (point,) = compose_iteration(parts, num_microbatches=4, static_power_w=10.0, switch_time_s=0.25, emulated=True)
    plan = point.choice
    assert isinstance(plan, Plan)
    assert (plan.forward.frequency_mhz, plan.forward.nanobatched) == (1200, True)
    assert dict(plan.forward.schedules) == {"fwd_attn": overlap}
    assert (plan.backward.frequency_mhz, plan.backward.nanobatched) == (900, False)
    assert dict(plan.backward.schedules) == {"bwd_attn": exposed, "grad_bucket": exposed}
    # 4 x (2 x 1.0 + 0.5 + 3.0) + 2.0, and two switches of 0.25 s in each of 4 microbatches
    assert point.time_s == plan.time_s == pytest.approx(22.0 + 2.0 + 2.0)
    assert point.energy_j == plan.energy_j == pytest.approx(22.0 + 2.0 + 2.0 * 10.0)
    assert plan.emulated


def test_a_half_profiled_mode_is_left_out_and_none_complete_is_named() -> None:
    option = [PartOption(900, None, 1.0, 1.0)]
    backward = PartProfile("backward", "bwd_attn", None, 1, option)
    attention = PartProfile("forward", "fwd_attn", True, 1, option)
    mlp = PartProfile("forward", "fwd_mlp", False, 1, option)
    with pytest.raises(FrontierError, match=r"no mode.*fwd_mlp"):
        compose_iteration([attention, mlp, backward], num_microbatches=1, static_power_w=1.0)
    both = PartProfile("forward", "fwd_attn", False, 1, option)
    (point,) = compose_iteration([attention, both, mlp, backward], num_microbatches=1, static_power_w=1.0)
    assert isinstance(point.choice, Plan)
    assert not point.choice.forward.nanobatched


def test_missing_phase_and_no_common_frequency_are_named() -> None:
    forward = PartProfile("forward", "fwd_attn", None, 1, [PartOption(900, None, 1.0, 1.0)])
    with pytest.raises(FrontierError, match="backward"):
        compose_iteration([forward], num_microbatches=1, static_power_w=1.0)
    other = PartProfile("forward", "fwd_mlp", None, 1, [PartOption(930, None, 1.0, 1.0)])
    with pytest.raises(FrontierError, match=r"fwd_mlp: \['930'\]"):
        compose_iteration([forward, other], num_microbatches=1, static_power_w=1.0)


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
def test_impossible_options_are_refused(bad: float) -> None:
    with pytest.raises(FrontierError, match="energy_j > 0"):
        PartOption(900, None, 1.0, bad)


def test_a_whole_a100_space_composes_quickly() -> None:
    """18 frequencies, 5 partition types in 2 modes, 40 schedules: 40^5 combinations a frequency and mode."""
    rng = np.random.default_rng(1)

    def profile(phase: str, key: str, mode: bool | None) -> PartProfile:
        frequencies = np.repeat(np.arange(900, 1411, 30), 40)
        slow = rng.uniform(1.0, 1.5, len(frequencies))
        time_s = (0.3 + 700 / frequencies) * slow
        energy_j = 85 * time_s + 100 * (frequencies / 1410) ** 2 * rng.uniform(1.0, 1.3, len(frequencies))
        rows = zip(frequencies.tolist(), time_s.tolist(), energy_j.tolist(), strict=True)
        return PartProfile(phase, key, mode, 56, [PartOption(f, Schedule(3), t, e) for f, t, e in rows])

    keys = [("forward", "fwd_attn"), ("forward", "fwd_mlp"), ("backward", "bwd_attn"), ("backward", "bwd_mlp")]
    parts = [profile(phase, key, mode) for phase, key in keys for mode in (False, True)]
    parts += [profile("backward", "rec_attn", mode) for mode in (False, True)] + [profile("iteration", "opt", None)]
    start = time.perf_counter()
    points = compose_iteration(parts, num_microbatches=8, static_power_w=85.0, switch_time_s=0.005)
    elapsed_s = time.perf_counter() - start
    assert len(points) > 100
    assert elapsed_s < 5.0  # far above the usual time: only an enumeration would exceed it


def test_front_choices_follow_their_sources() -> None:
    a = leaf([(1.0, 2.0, "a0"), (2.0, 1.0, "a1")])
    b = leaf([(1.0, 1.0, "b")])
    front: Front = convolve(a, b)
    assert [front.chosen(i) for i in range(len(front))] == [("a0", "b"), ("a1", "b")]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_impossible_constants_are_refused(bad: float) -> None:
    option = [PartOption(900, None, 1.0, 1.0)]
    parts = [PartProfile("forward", "fwd", None, 1, option), PartProfile("backward", "bwd", None, 1, option)]
    with pytest.raises(FrontierError, match="static_power_w"):
        compose_iteration(parts, num_microbatches=1, static_power_w=bad)
    with pytest.raises(FrontierError, match="switch_time_s"):
        compose_iteration(parts, num_microbatches=1, static_power_w=1.0, switch_time_s=bad)
    with pytest.raises(FrontierError, match="at least one option"):
        PartProfile("forward", "fwd", None, 1, [])


def test_thousands_of_equal_options_compose_to_one_point() -> None:
    same = [PartOption(900, None, 1.0, 2.0)] * 4000
    parts = [PartProfile("forward", "fwd", None, 1, same), PartProfile("backward", "bwd", None, 1, same)]
    (point,) = compose_iteration(parts, num_microbatches=3, static_power_w=1.0)
    assert (point.time_s, point.energy_j) == (6.0, 12.0)
