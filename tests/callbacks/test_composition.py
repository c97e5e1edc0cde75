"""Whole iterations from measured partitions, against brute force over every plan."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from energy_lightning.callbacks.composition import (
    FREQUENCY_ONLY,
    KAREUS,
    MAX_FREQUENCY,
    NANOBATCHING_ONLY,
    IterationCosts,
    Outcome,
    compose_outcome,
    outcome_from_dict,
    outcome_to_dict,
    plan_of,
)
from energy_lightning.callbacks.spaces import PartitionTask
from energy_lightning.frontier import FrontierError
from energy_lightning.measure import PartitionConfig
from energy_lightning.search import SearchSpace
from energy_lightning.types import Budget, BudgetError, Measurement, Schedule
from energy_lightning.workload import Partition

CLOCKS_MHZ = (1400, 1000)
COSTS = IterationCosts(num_microbatches=2, static_power_w=10.0, switch_time_s=0.0, emulated=True)
SCHEDULES = (Schedule(4, "norm_0"), Schedule(8, "linear_0"))
DEFAULT = Schedule(None, "norm_0")


def sequential(key: str, phase: str, count: int, mode: bool | None = False) -> PartitionTask:
    name = f"{key}.sequential"
    fixed = tuple(PartitionConfig(name, f) for f in CLOCKS_MHZ)
    return PartitionTask(Partition(key, (), None, count, False), phase, mode, fixed, None)  # type: ignore[arg-type]


def nanobatched(key: str, phase: str, count: int) -> PartitionTask:
    space = SearchSpace.grid(frequency_mhz=CLOCKS_MHZ, sm_count=[4, 8], launch=["norm_0", "linear_0"])
    fixed = (PartitionConfig(key, CLOCKS_MHZ[0], DEFAULT),)
    return PartitionTask(Partition(key, (), None, count, True), phase, True, fixed, space)  # type: ignore[arg-type]


TASKS = (
    sequential("fwd_mlp", "forward", 2),
    sequential("fwd_rest", "forward", 1, None),
    sequential("bwd_mlp", "backward", 2),
    sequential("optimizer", "iteration", 1, None),
    nanobatched("fwd_mlp", "forward", 4),
    nanobatched("bwd_mlp", "backward", 4),
)


def table(seed: int = 0, *, nanobatched_factor: float = 1.0) -> dict[PartitionConfig, Measurement]:
    rng = np.random.default_rng(seed)
    measured = {}
    for task in TASKS:
        schedules = (DEFAULT, *SCHEDULES) if task.nanobatched else (None,)
        for clock_mhz, schedule in itertools.product(CLOCKS_MHZ, schedules):
            time_s = float(rng.uniform(0.8, 1.2)) * 1400 / clock_mhz
            energy_j = float(rng.uniform(0.8, 1.2)) * 100.0 * (clock_mhz / 1400) ** 1.5
            if task.nanobatched:
                time_s, energy_j = time_s * nanobatched_factor / 2, energy_j * nanobatched_factor / 2
            config = PartitionConfig(task.name, clock_mhz, schedule)
            measured[config] = Measurement(time_s=time_s, energy_j=energy_j, source="emulated")
    return measured


def every_plan(measured: dict[PartitionConfig, Measurement]) -> list[tuple[float, float, bool, bool]]:
    """(time, energy, forward nanobatched, backward nanobatched) of all combinations, one by one."""
    plans = []
    for forward_mhz, backward_mhz in itertools.product(CLOCKS_MHZ, repeat=2):
        for modes in ((False, False), (True, True)):  # a microbatch split in two comes back in two
            choices = [(DEFAULT, *SCHEDULES) if mode else (None,) for mode in modes]
            for schedules in itertools.product(*choices):
                time_s = energy_j = 0.0
                for key, mhz, mode, schedule in zip(
                    ("fwd_mlp", "bwd_mlp"), (forward_mhz, backward_mhz), modes, schedules, strict=True
                ):
                    name, count = (key, 4) if mode else (f"{key}.sequential", 2)
                    one = measured[PartitionConfig(name, mhz, schedule)]
                    time_s += 2 * count * one.time_s
                    energy_j += 2 * count * (one.energy_j or 0.0)
                for name, mhz, count in (("fwd_rest", forward_mhz, 2), ("optimizer", backward_mhz, 1)):
                    one = measured[PartitionConfig(f"{name}.sequential", mhz)]
                    time_s += count * one.time_s
                    energy_j += count * (one.energy_j or 0.0)
                plans.append((time_s, energy_j, *modes))
    return plans


def fields(known: Measurement) -> dict[str, Any]:
    return {name: getattr(known, name) for name in ("time_s", "energy_j", "source")}


def outcome_for(budget: Budget, seed: int = 0, **options: float) -> Outcome:
    return compose_outcome(TASKS, table(seed, **options), COSTS, budget)


@pytest.mark.parametrize("seed", range(5))
def test_the_frontier_is_that_of_all_plans_one_by_one(seed: int) -> None:
    plans = every_plan(table(seed))
    expected = sorted(
        (t, e) for t, e, *_ in plans if not any(u <= t and f <= e and (u, f) != (t, e) for u, f, *_ in plans)
    )
    found = [(p.time_s, p.energy_j) for p in outcome_for(Budget("min_energy"), seed).frontiers[KAREUS]]
    assert np.array(found) == pytest.approx(np.array(expected))


@pytest.mark.parametrize("seed", range(5))
def test_the_reference_plans_are_the_ones_their_labels_say(seed: int) -> None:
    measured = table(seed)
    references = compose_outcome(TASKS, measured, COSTS, Budget("min_energy")).references
    plain = [(t, e) for t, e, *modes in every_plan(measured) if not any(modes)]
    assert (references[MAX_FREQUENCY].time_s, references[MAX_FREQUENCY].energy_j) == pytest.approx(plain[0])
    assert references[FREQUENCY_ONLY].energy_j == pytest.approx(min(e for _, e in plain))
    only = plan_of(references[NANOBATCHING_ONLY])
    assert only.forward.frequency_mhz == only.backward.frequency_mhz == 1400
    assert dict(only.forward.schedules) == {"fwd_mlp": DEFAULT}
    assert {label: plan_of(point).label for label, point in references.items()} == {k: k for k in references}


def test_sequential_execution_is_chosen_where_overlap_does_not_pay() -> None:
    plan = outcome_for(Budget("max_throughput"), nanobatched_factor=1.5).plan
    assert not plan.forward.nanobatched
    assert not plan.backward.nanobatched


def test_nanobatches_are_chosen_where_overlap_pays() -> None:
    plan = outcome_for(Budget("max_throughput"), nanobatched_factor=0.6).plan
    assert plan.forward.nanobatched
    assert plan.backward.nanobatched
    assert plan.emulated


def test_a_slowdown_is_counted_from_plain_execution_at_the_highest_clock() -> None:
    baseline_s = outcome_for(Budget("min_energy")).references[MAX_FREQUENCY].time_s
    plans = every_plan(table())
    chosen = outcome_for(Budget("max_slowdown", 0.1)).chosen
    assert chosen.energy_j == pytest.approx(min(e for t, e, *_ in plans if t <= 1.1 * baseline_s))


def test_an_unreachable_budget_names_what_is_reachable() -> None:
    fastest_s = min(t for t, *_ in every_plan(table()))
    with pytest.raises(BudgetError, match=f"{fastest_s:.4g}"[:4]):
        outcome_for(Budget("deadline", fastest_s / 2))


def test_switching_the_clock_costs_time_so_equal_clocks_win_in_short_phases() -> None:
    costs = IterationCosts(num_microbatches=2, static_power_w=10.0, switch_time_s=100.0, emulated=True)
    for point in compose_outcome(TASKS, table(), costs, Budget("min_energy")).frontiers[KAREUS]:
        assert plan_of(point).forward.frequency_mhz == plan_of(point).backward.frequency_mhz


def test_an_unreachable_highest_clock_moves_the_baseline_and_leaves_no_nan() -> None:
    measured = {
        config: Measurement(time_s=1.0, energy_j=None, source="emulated", invalid_reason="unreachable")
        if config.frequency_mhz == 1400
        else known
        for config, known in table().items()
    }
    outcome = compose_outcome(TASKS, measured, COSTS, Budget("min_energy"))
    assert plan_of(outcome.references[MAX_FREQUENCY]).forward.frequency_mhz == 1000
    assert all(math.isfinite(p.time_s + p.energy_j) for p in outcome.frontiers[KAREUS])


def test_a_throttled_highest_clock_is_the_baseline_as_it_ran_but_no_searched_plan() -> None:
    measured = {
        config: Measurement(**{**fields(known), "invalid_reason": "unreachable: asked for 1400 MHz, seen 1380 MHz"})
        if config.frequency_mhz == 1400
        else known
        for config, known in table().items()
    }
    outcome = compose_outcome(TASKS, measured, COSTS, Budget("max_slowdown", 0.0))
    expected = outcome_for(Budget("min_energy")).references
    assert outcome.references[MAX_FREQUENCY] == expected[MAX_FREQUENCY]
    assert outcome.references[NANOBATCHING_ONLY] == expected[NANOBATCHING_ONLY]
    for point in outcome.frontiers[KAREUS]:
        assert plan_of(point).forward.frequency_mhz == 1000 or point.time_s == outcome.references[MAX_FREQUENCY].time_s


def test_nanobatches_not_measured_yet_leave_the_sequential_plans() -> None:
    measured = {config: known for config, known in table().items() if config.partition != "bwd_mlp"}
    outcome = compose_outcome(TASKS, measured, COSTS, Budget("min_energy"))
    assert not outcome.plan.backward.nanobatched
    assert NANOBATCHING_ONLY not in outcome.references


def test_without_plain_execution_there_is_no_frontier() -> None:
    measured = {config: known for config, known in table().items() if config.partition != "optimizer.sequential"}
    with pytest.raises(FrontierError, match=r"plain execution .*: profile for longer"):
        compose_outcome(TASKS, measured, COSTS, Budget("min_energy"))


def test_measurements_that_are_void_are_named_where_there_is_no_frontier() -> None:
    lost = "the GPU reports no energy"
    void = {c: replace(known, energy_j=None, invalid_reason=lost) for c, known in table().items()}
    with pytest.raises(FrontierError, match=rf"{len(void)} of {len(void)} measurements are void \({lost}\)"):
        compose_outcome(TASKS, void, COSTS, Budget("min_energy"))


def test_an_outcome_survives_a_checkpoint() -> None:
    outcome = outcome_for(Budget("min_energy"))
    assert outcome_from_dict(outcome_to_dict(outcome)) == outcome
