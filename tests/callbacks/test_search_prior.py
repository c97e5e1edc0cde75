"""The emulated namesake of a real GPU as the search's starting point."""

from __future__ import annotations

from pathlib import Path

import pytest

from energy_lightning.callbacks.composition import IterationCosts
from energy_lightning.callbacks.frontier_search import FrontierSearch, SearchSettings
from energy_lightning.callbacks.priors import namesake, prior_of
from energy_lightning.callbacks.spaces import partition_tasks
from energy_lightning.device import EmulatedDevice
from energy_lightning.emulation import GPU, emulate_partition
from energy_lightning.frontier import pareto_front
from energy_lightning.measure import MeasurementStore
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.workload import Workload

A100 = GPU.load("a100-sxm4-40gb")
LLAMA = Workload.preset("llama3.2_3b_tp8", microbatch_size=8, sequence_length=4096)
TASKS = partition_tasks(LLAMA, EmulatedDevice(A100, LLAMA))
(FWD_ATTN,) = [task for task in TASKS if task.name == "fwd_attn"]
assert FWD_ATTN.space is not None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("A100-SXM4-40GB", "a100-sxm4-40gb"), ("A100-SXM4-40GB (emulated NVML)", "a100-sxm4-40gb"), ("RTX 9999", None)],
)
def test_a_real_gpu_has_the_model_of_its_name(name: str, expected: str | None) -> None:
    device = ScriptedDevice()
    device.name = name
    assert namesake(device) == (None if expected is None else GPU.load(expected))


def test_an_emulated_gpu_has_none_for_it_would_be_told_its_own_figures() -> None:
    assert namesake(EmulatedDevice(A100, LLAMA)) is None


@pytest.mark.parametrize("number", [0, 100, len(FWD_ATTN.space) - 1])
def test_it_expects_what_the_model_says(number: int) -> None:
    candidate = FWD_ATTN.space[number]  # type: ignore[index]
    prior = prior_of(FWD_ATTN, A100)
    assert prior is not None
    partition = FWD_ATTN.partition
    expected = emulate_partition(
        partition.operators,
        partition.collective,
        A100,
        frequency_mhz=candidate["frequency_mhz"],
        sm_count=candidate["sm_count"],
        launch=candidate["launch"],
    )
    assert prior(candidate) == (expected.time_s, expected.energy_j)


def test_without_a_model_or_with_one_that_knows_no_bf16_there_is_none() -> None:
    assert prior_of(FWD_ATTN, None) is None
    assert prior_of(FWD_ATTN, GPU.load("v100")) is None


def test_the_first_measurements_of_a_search_lie_on_the_front_that_is_expected(tmp_path: Path) -> None:
    """Half of the initial sample comes from the expected front; without a model they are spread over the space."""
    prior = prior_of(FWD_ATTN, A100)
    assert prior is not None
    assert FWD_ATTN.space is not None
    every = [prior(FWD_ATTN.space[i]) for i in range(len(FWD_ATTN.space))]
    front = {i for i in pareto_front([t for t, _ in every], [e for _, e in every]).tolist()}

    def num_on_front(settings: SearchSettings, folder: Path) -> int:
        costs = IterationCosts(num_microbatches=1, static_power_w=A100.static_power_w, switch_time_s=0.0, emulated=True)
        store = MeasurementStore(folder / "measurements.jsonl", {}, source="counter")
        search = FrontierSearch([FWD_ATTN], store, costs, settings)
        search.ask(1)  # the default schedule, measured in any case
        asked = [config for _, config in search.ask(12)]
        return sum(FWD_ATTN.space.index(FWD_ATTN.candidate(config)) in front for config in asked)  # type: ignore[union-attr]

    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    with_model = num_on_front(SearchSettings(prior_gpu=A100), tmp_path / "with")
    assert with_model >= 5
    assert with_model > num_on_front(SearchSettings(), tmp_path / "without")
