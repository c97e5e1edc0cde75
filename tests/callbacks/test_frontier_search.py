"""The search over all partitions, on a real emulated device."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_trainer import CLOCKS_MHZ, SMALL, WORKLOAD

from energy_lightning.callbacks.composition import IterationCosts
from energy_lightning.callbacks.frontier_search import FrontierSearch, SearchSettings
from energy_lightning.callbacks.spaces import partition_tasks
from energy_lightning.device import EmulatedDevice
from energy_lightning.emulation import GPU, emulate_iteration
from energy_lightning.measure import EmulatedRunner, MeasurementStore, PartitionConfig, PartitionMeter, describe_run
from energy_lightning.search import BatchSizes, MultiPassOptimizer, Prediction
from energy_lightning.types import Budget, Measurement

A100 = GPU.load("a100-sxm4-40gb")


def make(
    path: Path, gpu: GPU = A100, *, passes: str = "default"
) -> tuple[FrontierSearch, PartitionMeter, MeasurementStore]:
    device = EmulatedDevice(gpu, WORKLOAD)
    store = MeasurementStore(path, describe_run(device, WORKLOAD), source="emulated")
    costs = IterationCosts(
        num_microbatches=1, static_power_w=device.static_power_w, switch_time_s=device.switch_time_s, emulated=True
    )
    tasks = partition_tasks(WORKLOAD, device, frequencies_mhz=CLOCKS_MHZ)
    search = FrontierSearch(tasks, store, costs, SearchSettings(passes=passes, sizes=BatchSizes(**SMALL)))
    return search, PartitionMeter(device, EmulatedRunner(device)), store


def run(search: FrontierSearch, meter: PartitionMeter, *, at_most: int = 10_000) -> list[PartitionConfig]:
    asked: list[PartitionConfig] = []
    while len(asked) < at_most and (requests := search.ask(min(16, at_most - len(asked)))):
        for (_, config), measurement in zip(
            requests, meter.measure_all(requests, np.random.default_rng(0)), strict=True
        ):
            search.tell(config, measurement)
            asked.append(config)
    return asked


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "measurements.jsonl"


def test_a_whole_search_ends_and_asks_for_nothing_twice(path: Path) -> None:
    search, meter, store = make(path)
    asked = run(search, meter)
    assert search.done
    assert search.num_remaining == 0
    assert len(set(asked)) == len(asked) == store.num_rows == search.num_measured
    assert search.ask(10) == []


def test_plain_execution_at_the_highest_clock_comes_first(path: Path) -> None:
    search, _, _ = make(path)
    first = [config for _, config in search.ask(13)]
    assert {config.frequency_mhz for config in first} == {max(CLOCKS_MHZ)}
    assert {config.partition for config in first} >= {"fwd_attn.sequential", "bwd_rest.sequential", "fwd_attn"}


def test_the_composed_prediction_is_what_the_iteration_really_takes(path: Path) -> None:
    unlimited = A100.with_constants(power__limit_w=1000.0)  # emulate_iteration knows no throttling
    search, meter, _ = make(path, unlimited)
    run(search, meter)
    outcome = search.outcome(Budget("min_energy"))
    for point in outcome.references.values():
        truth = emulate_iteration(WORKLOAD, unlimited, point.choice)
        switches = point.choice.forward.frequency_mhz != point.choice.backward.frequency_mhz
        assert point.time_s == pytest.approx(truth.time_s + 2 * A100.switch_time_s * switches)
        assert point.energy_j == pytest.approx(truth.energy_per_gpu_j, rel=0.06)  # measured warmer or cooler


def test_searched_partitions_enter_by_their_smoothed_values(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, meter, _ = make(path)
    run(search, meter)
    as_measured, _, _ = make(path, passes="published")  # the same rows, taken as they are
    predict = MultiPassOptimizer.predict

    def pessimistic(optimizer: MultiPassOptimizer) -> Prediction:
        found = predict(optimizer)
        return replace(found, time_s=1.5 * found.time_s, energy_j=1.5 * found.energy_j)

    monkeypatch.setattr(MultiPassOptimizer, "predict", pessimistic)
    for frontier, expected in ((search, False), (as_measured, True)):
        stages = frontier.outcome(Budget("min_energy")).plan.stages
        schedules = [schedule for phase in stages[0] for schedule in phase.schedules.values()]
        assert any(schedule.sm_count is not None for schedule in schedules) is expected


@pytest.mark.parametrize("killed_after", [1, 20, 60, 100])
def test_a_killed_search_goes_on_without_measuring_anything_again(path: Path, killed_after: int) -> None:
    search, meter, _ = make(path)
    before = run(search, meter, at_most=killed_after)
    path.write_bytes(path.read_bytes()[:-7])  # killed while writing the last row
    resumed, meter, _ = make(path)
    after = run(resumed, meter)
    assert set(after).isdisjoint(before[:-1])
    assert resumed.done
    assert resumed.outcome(Budget("min_energy")).plan.time_s


def test_a_finished_search_measures_nothing_the_second_time(path: Path) -> None:
    search, meter, _ = make(path)
    run(search, meter)
    again, meter, _ = make(path)
    assert run(again, meter) == []
    assert again.outcome(Budget("min_energy")) == search.outcome(Budget("min_energy"))


def test_unreachable_clocks_end_up_in_no_plan(path: Path, tmp_path: Path) -> None:
    free, meter, known = make(tmp_path / "free.jsonl")
    run(free, meter)
    lowest = [m for c, m in known.measurements().items() if c.frequency_mhz == min(CLOCKS_MHZ)]
    limit_w = 1.05 * max((m.energy_j or 0.0) / m.time_s for m in lowest)  # all of it runs there, not all of it higher
    search, meter, store = make(path, A100.with_constants(power__limit_w=limit_w))
    run(search, meter)
    failed = [known for known in store.measurements().values() if not known.valid]
    assert failed
    assert all(str(known.invalid_reason).startswith("unreachable") for known in failed)
    for point in search.outcome(Budget("min_energy")).frontiers["kareus"]:
        for phase in point.choice.stages[0]:
            for key, schedule in phase.schedules.items():
                known = store.known(PartitionConfig(key, phase.frequency_mhz, schedule))
                assert known is not None
                assert known.valid
    assert np.isfinite([p.energy_j for p in search.outcome(Budget("min_energy")).frontiers["kareus"]]).all()


def test_a_throttled_baseline_is_what_the_gpu_really_does_and_can_be_chosen(path: Path, tmp_path: Path) -> None:
    free, meter, known = make(tmp_path / "free.jsonl")
    run(free, meter)
    plain = [m for c, m in known.measurements().items() if c.frequency_mhz == 1410 and c.schedule is None]
    top_w = max((m.energy_j or 0.0) / m.time_s for m in plain)
    search, meter, store = make(path, A100.with_constants(power__limit_w=0.97 * top_w))
    run(search, meter)
    throttled = [m for c, m in store.measurements().items() if not m.valid]
    assert throttled
    assert all(m.energy_j is not None and m.actual_mhz is not None and m.actual_mhz < 1410 for m in throttled)
    outcome = search.outcome(Budget("max_slowdown", 0.0))
    baseline = outcome.references["max frequency"]
    assert baseline.choice.forward.frequency_mhz == baseline.choice.backward.frequency_mhz == 1410
    assert outcome.chosen.time_s <= baseline.time_s


def test_every_searched_partition_is_known_at_every_clock_in_the_end(path: Path) -> None:
    search, meter, store = make(path)
    run(search, meter)
    for name in ("fwd_attn", "fwd_mlp", "bwd_attn", "bwd_mlp"):
        assert {config.frequency_mhz for config in store.measurements(name)} == set(CLOCKS_MHZ)


def test_an_interrupted_search_still_has_plain_execution_to_offer(path: Path) -> None:
    search, meter, _ = make(path)
    run(search, meter, at_most=40)
    assert not search.done
    plan = search.outcome(Budget("max_throughput")).plan
    assert plan.time_s is not None


def test_a_measurement_without_energy_is_not_asked_again(path: Path) -> None:
    search, _, _ = make(path)
    requests = search.ask(200)
    for _, config in requests:
        search.tell(config, Measurement(time_s=1.0, energy_j=None, source="emulated"))
    following = [config for _, config in search.ask(200)]
    assert set(following).isdisjoint(config for _, config in requests)


def test_how_warm_the_gpu_was_and_how_far_repeats_lie_apart_is_told(path: Path) -> None:
    search, _, _ = make(path)
    assert search.conditions() == ""
    (_, first), (_, second) = search.ask(2)
    for config, time_s, energy_j, temperature_c in (
        (first, 1.0, 100.0, 45.0),
        (first, 1.1, 100.0, 62.4),
        (second, 1.0, 100.0, None),
    ):
        measured = Measurement(time_s=time_s, energy_j=energy_j, source="emulated", temperature_c=temperature_c)
        search.tell(config, measured)
    # 1.0 and 1.1: standard deviation 0.0707, mean 1.05
    assert search.conditions() == "at 45 to 62 C, repeats (of 1) spread by 6.7% in time, 0.0% in energy"
