"""The closed-form timeline against a plain time-stepped simulation, limits worked out by hand, and its monotonies."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_lightning.emulation import (
    GPU,
    attention_microbenchmark,
    emulate_partition,
    emulate_partitions,
    unlimited,
)
from energy_lightning.emulation.timeline import Configurations, collective_time_s, operator_time_s
from energy_lightning.types import DeviceError, PlanError
from energy_lightning.workload import Collective, Operator, Workload

A100 = unlimited(GPU.load("a100-sxm4-40gb"))  # lone products would throttle
OPERATORS, COLLECTIVE = attention_microbenchmark()
NAMES = [o.name for o in OPERATORS]
LINKS = A100.collective
BANDWIDTH = A100.memory.bandwidth_bytes_per_s * A100.memory.bandwidth_efficiency


def alone_s(frequency_mhz: int, sm_count: int, threads: int = 1024) -> float:
    one = Configurations(*(np.array([float(x)]) for x in (frequency_mhz, sm_count, threads, 0, 0)))
    return float(collective_time_s(COLLECTIVE, A100, one)[0])


def stepped_s(frequency_mhz: int, sm_count: int, launch: str, join: str | None, step_s: float = 2e-7) -> float:
    """Integrates progress in small steps: one operator at a time, a collective beside it."""
    total_s, remaining_s = 0.0, alone_s(frequency_mhz, sm_count)
    wire_rate = min(2.0 * COLLECTIVE.wire_bytes / remaining_s, 0.5 * BANDWIDTH)
    launched, clock = False, np.array([float(frequency_mhz)])
    for i, operator in enumerate(OPERATORS):
        if launched and join == operator.name and remaining_s > 0:
            total_s, remaining_s = total_s + remaining_s, 0.0
        launched = launched or operator.name == launch
        solo_s = float(operator_time_s([operator], A100, clock, float(A100.num_sms), BANDWIDTH)[0][0, 0])
        shared_s, busy = (
            float(value[0, 0])
            for value in operator_time_s(
                [operator], A100, clock, np.array([float(A100.num_sms - sm_count)]), BANDWIDTH - wire_rate
            )
        )
        slowed = 1.0 + {"linear": 1.0, "attention": 0.5, "memory": 0.0}[operator.kind] * LINKS.product_slowdown
        shared_s *= slowed
        slow = LINKS.slowdown_by_memory * busy / slowed
        slow += LINKS.slowdown_by_linear if operator.kind == "linear" else 0.0
        done = 0.0 if solo_s > 0 else 1.0  # an operator of no work takes no time
        while done < 1.0:
            running = launched and remaining_s > 0
            rate = 1.0 / (shared_s if running else solo_s)
            dt = min(step_s, (1.0 - done) / rate)
            done += dt * rate + 1e-15
            total_s += dt
            remaining_s -= dt / (1.0 + slow) if running else 0.0
        if join == launch == operator.name and i < len(OPERATORS):
            total_s, remaining_s = total_s + max(remaining_s, 0.0), 0.0
    return total_s + max(remaining_s, 0.0)


@pytest.mark.parametrize(
    ("launch", "join"),
    [
        ("linear_qkv", None),
        ("layernorm", "dot_product_attention"),
        ("linear_qkv", "linear_qkv"),
        ("linear_proj", None),
    ],
)
@pytest.mark.parametrize("sm_count", [1, 4, 20])
def test_closed_form_equals_small_steps(launch: str, join: str | None, sm_count: int) -> None:
    found = emulate_partition(
        OPERATORS, COLLECTIVE, A100, frequency_mhz=1200, sm_count=sm_count, launch=launch, join=join
    )
    assert found.time_s == pytest.approx(stepped_s(1200, sm_count, launch, join), rel=2e-3)


def test_exposed_is_collective_then_compute() -> None:
    found = emulate_partition(OPERATORS, COLLECTIVE, A100, frequency_mhz=1410, sm_count=4)
    compute = emulate_partition(OPERATORS, None, A100, frequency_mhz=1410)
    assert found.time_s == pytest.approx(compute.time_s + alone_s(1410, 4))


def test_a_large_product_runs_at_its_efficiency() -> None:
    flops = 1e15
    found = emulate_partition([Operator("linear_0", "linear", flops, 1.0)], None, A100, frequency_mhz=1410)
    assert found.time_s == pytest.approx(flops / (A100.compute.linear_efficiency * 312e12), rel=1e-3)


def test_a_product_takes_the_inverse_of_the_clock() -> None:
    operator = [Operator("linear_0", "linear", 1e15, 1.0)]
    fast, slow = (emulate_partition(operator, None, A100, frequency_mhz=f) for f in (1410, 705))
    assert slow.time_s == pytest.approx(2 * fast.time_s, rel=1e-3)


def test_a_collective_is_limited_by_few_sms_or_by_the_links() -> None:
    fixed_s = LINKS.stall_s + LINKS.latency_s
    one, two = (alone_s(1410, s) - fixed_s for s in (1, 2))
    assert one == pytest.approx(2 * two, rel=0.02)
    assert alone_s(1410, 107) - fixed_s == pytest.approx(COLLECTIVE.wire_bytes / LINKS.link_bytes_per_s, rel=0.07)


def test_batch_equals_scalars() -> None:
    rng = np.random.default_rng(0)
    frequencies, counts = rng.choice([900, 1200, 1410], 40), rng.integers(1, 21, 40)
    launches = [None if i == len(NAMES) else NAMES[i] for i in rng.integers(0, len(NAMES) + 1, 40)]
    times, energies = emulate_partitions(
        OPERATORS, COLLECTIVE, A100, frequency_mhz=frequencies, sm_count=counts, launch=launches
    )
    for i in range(40):
        one = emulate_partition(
            OPERATORS,
            COLLECTIVE,
            A100,
            frequency_mhz=int(frequencies[i]),
            sm_count=int(counts[i]),
            launch=launches[i],
        )
        assert (times[i], energies[i]) == pytest.approx(tuple(one), rel=1e-12)  # an estimate unpacks


def test_many_configurations_at_once_are_not_taken_for_one() -> None:
    with pytest.raises(PlanError, match="one configuration, got 2; emulate_partitions"):
        emulate_partition(OPERATORS, COLLECTIVE, A100, frequency_mhz=np.array([900, 1410]))  # type: ignore[arg-type]


def test_720_configurations_take_less_than_a_fifth_of_a_second() -> None:
    (attention, *_) = Workload.preset("llama3.2_3b_tp8", microbatch_size=8, sequence_length=4096).partitions(
        "forward", nanobatched=True
    )
    grid = [(f, s, p) for f in range(900, 1411, 30) for s in range(3, 31, 3) for p in attention.launch_points]
    assert len(grid) == 720
    start_s = time.perf_counter()
    times, _ = emulate_partitions(
        attention.operators,
        attention.collective,
        A100,
        frequency_mhz=[f for f, _, _ in grid],
        sm_count=[s for _, s, _ in grid],
        launch=[p for _, _, p in grid],
    )
    assert time.perf_counter() - start_s < 0.2
    assert len(np.unique(times)) == 720


ops = st.lists(
    st.builds(
        Operator,
        name=st.uuids().map(str),
        kind=st.sampled_from(["linear", "attention", "memory"]),
        flops=st.floats(0, 1e13),
        bytes=st.floats(0, 1e10),
        num_kernels=st.integers(0, 5),
    ),
    min_size=1,
    max_size=5,
)
collectives = st.builds(
    Collective,
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    bytes=st.floats(1e3, 1e9),
    group_size=st.integers(2, 16),
)


@settings(max_examples=150, deadline=None)
@given(ops, collectives, st.integers(1, 30), st.data())
def test_time_falls_with_the_clock_and_energy_is_positive(
    operators: list[Operator], collective: Collective, sm_count: int, data: st.DataObject
) -> None:
    launch = data.draw(st.sampled_from([None, *(o.name for o in operators)]))
    times, energies = emulate_partitions(
        operators, collective, A100, frequency_mhz=A100.frequencies_mhz, sm_count=sm_count, launch=launch
    )
    assert (np.diff(times) <= 1e-9 * times[1:]).all()
    assert (energies > A100.static_power_w * times * 0.999).all()


@settings(max_examples=100, deadline=None)
@given(collectives, st.sampled_from([512, 1024]), st.sampled_from([900, 1410]))
def test_more_sms_never_slow_the_collective_alone(collective: Collective, threads: int, frequency_mhz: int) -> None:
    times, _ = emulate_partitions(
        [], collective, A100, frequency_mhz=frequency_mhz, sm_count=range(1, 108), block_threads=threads
    )
    assert (np.diff(times) <= 0).all()


@settings(max_examples=100, deadline=None)
@given(ops, collectives, st.integers(1, 30), st.data())
def test_overlap_is_no_faster_than_either_stream_alone(
    operators: list[Operator], collective: Collective, sm_count: int, data: st.DataObject
) -> None:
    launch = data.draw(st.sampled_from([o.name for o in operators]))
    both = emulate_partition(operators, collective, A100, frequency_mhz=1200, sm_count=sm_count, launch=launch).time_s
    compute = emulate_partition(operators, None, A100, frequency_mhz=1200).time_s
    alone = emulate_partition([], collective, A100, frequency_mhz=1200, sm_count=sm_count).time_s
    assert both >= max(compute, alone) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"frequency_mhz": 1402}, DeviceError, "no SM clock of 1402 MHz; nearest: 1395, 1410"),
        ({"frequency_mhz": float("nan")}, DeviceError, "no SM clock of nan MHz"),
        ({"frequency_mhz": 1410, "sm_count": 108}, DeviceError, "cannot lend 108 SMs to a collective; choose 1 to 107"),
        ({"frequency_mhz": 1410, "sm_count": 0}, DeviceError, "cannot lend 0 SMs"),
        ({"frequency_mhz": 1410, "sm_count": 2.5}, DeviceError, "cannot lend 2.5 SMs"),
        (
            {"frequency_mhz": 1410, "block_threads": 0},
            PlanError,
            "block_threads must be a positive multiple of 32, got 0",
        ),
        ({"frequency_mhz": 1410, "block_threads": float("nan")}, PlanError, "got nan"),
        ({"frequency_mhz": 1410, "launch": "rope_0"}, PlanError, "launch='rope_0' is no operator of this partition"),
        ({"frequency_mhz": 1410, "join": "end"}, PlanError, "join='end'"),
    ],
)
def test_what_the_gpu_or_the_partition_lacks(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        emulate_partition(OPERATORS, COLLECTIVE, A100, **arguments)  # type: ignore[arg-type]


def test_too_many_sms_are_refused_where_there_is_no_collective_as_well() -> None:
    """As a plan's schedule for a partition that has none: without the check, time and energy were NaN."""
    operators, _ = attention_microbenchmark()
    with pytest.raises(DeviceError, match="cannot lend 108 SMs"):
        emulate_partition(operators, None, GPU.load("a100-sxm4-40gb"), frequency_mhz=1410, sm_count=108)
