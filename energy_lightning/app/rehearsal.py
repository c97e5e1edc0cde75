"""A job's frontier on an emulated GPU without training anything: every configuration there is, none sampled."""

from __future__ import annotations

from collections.abc import Sequence

from energy_lightning.callbacks.composition import IterationCosts, Outcome, compose_outcome
from energy_lightning.callbacks.spaces import PartitionTask, partition_tasks
from energy_lightning.device import open_device
from energy_lightning.emulation import GPU
from energy_lightning.emulation.gradients import emulate_added
from energy_lightning.measure import PartitionConfig
from energy_lightning.types import Budget, Measurement
from energy_lightning.workload import Workload


def rehearse(workload: Workload, gpu_name: str, budget: Budget) -> Outcome:
    """Frontiers and reference plans of `workload` (one pipeline stage) on the emulated GPU; the choice for `budget`.

    Raises:
        BudgetError: no plan meets the budget.
        DeviceError: no such GPU.
    """
    gpu = GPU.load(gpu_name)
    device = open_device("emulated", gpu=gpu_name, workload=workload)
    try:
        tasks = partition_tasks(workload, device)
        costs = IterationCosts(
            num_microbatches=workload.num_microbatches,
            static_power_w=device.static_power_w,
            switch_time_s=device.switch_time_s,
            emulated=True,
        )
    finally:
        device.close()
    return compose_outcome(tasks, emulate_all(workload, tasks, gpu), costs, budget)


def emulate_all(workload: Workload, tasks: Sequence[PartitionTask], gpu: GPU) -> dict[PartitionConfig, Measurement]:
    """Time and energy per GPU that one execution of every configuration of every task adds to an iteration."""
    measured = {}
    for task in tasks:
        candidates = () if task.space is None else (task.config(task.space[i]) for i in range(len(task.space)))
        for config in dict.fromkeys((*task.fixed, *candidates)):
            estimate = emulate_added(workload, task.partition, gpu, config.frequency_mhz, config.schedule)
            measured[config] = Measurement(time_s=estimate.time_s, energy_j=estimate.energy_j, source="emulated")
    return measured
