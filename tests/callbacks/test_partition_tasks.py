import pytest

from energy_lightning.callbacks.spaces import partition_tasks, search_frequencies, sm_counts
from energy_lightning.device import EmulatedDevice
from energy_lightning.emulation import GPU
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import Schedule, WorkloadError
from energy_lightning.workload import Workload

A100 = GPU.load("a100-sxm4-40gb")
LLAMA = Workload.preset("llama3.2_3b_tp8", microbatch_size=8, sequence_length=4096)


def device_for(workload: Workload) -> EmulatedDevice:
    return EmulatedDevice(A100, workload)


def test_an_a100_is_searched_at_the_published_clocks() -> None:
    assert search_frequencies(device_for(LLAMA)) == tuple(range(1410, 899, -30))


def test_clocks_that_are_asked_for_are_used_highest_first() -> None:
    assert search_frequencies(device_for(LLAMA), [900, 1410, 900]) == (1410, 900)


@pytest.mark.parametrize(("wanted", "named"), [([1402], "1402 MHz; nearest: .1395, 1410"), ([], "empty")])
def test_a_clock_the_gpu_lacks_is_refused_naming_the_nearest(wanted: list[int], named: str) -> None:
    with pytest.raises(WorkloadError, match=named):
        search_frequencies(device_for(LLAMA), wanted)


@pytest.mark.parametrize("lost_on", ["this rank", "another rank"])
def test_without_control_only_the_running_clock_is_measured_under_one_name_however_it_moves(lost_on: str) -> None:
    for seen_mhz in (1200, 900):
        device = ScriptedDevice(clock_cap_mhz=seen_mhz)
        device.can_lock_frequency = lost_on != "this rank"
        tasks = partition_tasks(LLAMA, device, frequencies_mhz=[1200, 900], locked=lost_on != "another rank")
        assert {config.frequency_mhz for task in tasks for config in task.fixed} == {1410}
        assert {f for task in tasks if task.space for f in task.space.column("frequency_mhz")} == {1410}


def test_a_gpu_that_lists_no_clocks_is_measured_at_the_one_it_shows() -> None:
    device = ScriptedDevice(clock_cap_mhz=1200)
    device.frequencies_mhz, device.can_lock_frequency = (), False
    device.lock_frequency = None  # type: ignore[assignment, method-assign]
    device.frequency_mhz = lambda: 1335  # type: ignore[method-assign]
    assert search_frequencies(device) == (1335,)


@pytest.mark.parametrize(
    ("group_size", "expected"),
    [(2, tuple(range(1, 21))), (3, tuple(range(1, 21))), (4, (3, 6, 9, 12, 15, 18, 21, 24, 27, 30)), (8, None)],
)
def test_sm_counts_follow_the_size_of_the_group(group_size: int, expected: tuple[int, ...] | None) -> None:
    assert sm_counts(group_size, 108) == (expected or sm_counts(4, 108))


def test_no_more_sms_are_lent_than_leave_one_to_compute() -> None:
    assert sm_counts(8, 10) == (3, 6, 9)


def test_searched_partitions_have_the_published_number_of_configurations() -> None:
    tasks = {task.name: task for task in partition_tasks(LLAMA, device_for(LLAMA))}
    searched = {name: len(task.space) for name, task in tasks.items() if task.space is not None}
    # 18 clocks x (10 SM counts x 4 or 3 launch points, and "not overlapped")
    assert searched == {"fwd_attn": 738, "fwd_mlp": 558, "bwd_attn": 738, "bwd_mlp": 558}


def test_what_is_not_searched_is_measured_at_every_clock_once() -> None:
    tasks = partition_tasks(LLAMA, device_for(LLAMA))
    assert len({task.name for task in tasks}) == len(tasks)
    for task in tasks:
        if task.space is None:
            assert [config.frequency_mhz for config in task.fixed] == list(range(1410, 899, -30))
            assert all(config.schedule is None for config in task.fixed)


def test_shared_parts_belong_to_both_modes_and_the_others_to_one() -> None:
    modes = {task.name: task.nanobatched for task in partition_tasks(LLAMA, device_for(LLAMA))}
    assert modes["fwd_attn"] is True
    assert modes["fwd_edge"] is True
    assert modes["fwd_attn.sequential"] is False
    assert modes["fwd_rest.sequential"] is None
    assert modes["optimizer.sequential"] is None


def test_the_default_of_a_searched_partition_launches_at_once_at_the_highest_clock() -> None:
    (task,) = [task for task in partition_tasks(LLAMA, device_for(LLAMA)) if task.name == "fwd_attn"]
    assert (task.default.frequency_mhz, task.default.schedule) == (1410, Schedule(None, "norm_0"))


def test_a_candidate_and_its_configuration_convert_both_ways() -> None:
    (task,) = [task for task in partition_tasks(LLAMA, device_for(LLAMA)) if task.name == "bwd_mlp"]
    assert task.space is not None
    for number in range(0, len(task.space), 50):
        assert task.candidate(task.config(task.space[number])) == task.space[number]


@pytest.mark.parametrize(
    "workload",
    [Workload.preset("bert_base", microbatch_size=8), LLAMA.with_sizes(microbatch_size=1)],
    ids=["no collective", "a batch of one"],
)
def test_half_batches_are_not_measured_where_nothing_can_be_hidden(workload: Workload) -> None:
    assert all(task.nanobatched is not True for task in partition_tasks(workload, device_for(workload)))


def test_recomputation_has_partitions_of_its_own() -> None:
    workload = LLAMA.with_sizes(activation_checkpointing=True)
    names = {task.name for task in partition_tasks(workload, device_for(workload))}
    assert {"rec_attn", "rec_mlp", "rec_attn.sequential", "rec_mlp.sequential"} <= names
