"""Data-parallel averaging of gradients, overlapped with the last microbatch's backward.

As PyTorch's DistributedDataParallel and Megatron-LM's overlapped gradient reduction do it: n equal buckets, each
reduced as soon as backward has filled it, one after the other. With T the backward's time and c one bucket's,

    backward   |== bucket 0 ==|== bucket 1 ==| ...  == bucket n-1 ==|
    reduction                 |- c -|        |- c -|          ...   |- c -|         exposed: max(c, n c - T (n-1) / n)

What is hidden takes its SMs from the backward meanwhile and slows its products (`product_slowdown`), as any collective
does; that lengthens the backward.
Not modelled: a smaller first bucket, contention for memory and links with the backward's own collectives.
"""

from __future__ import annotations

import math
from dataclasses import replace

from energy_lightning.emulation.estimates import Estimate, emulate_phase, emulate_scheduled
from energy_lightning.emulation.gpu import GPU
from energy_lightning.types import PhasePlan, Schedule
from energy_lightning.workload import Partition, Workload

BUCKET_BYTES = 80e6
"""Megatron-LM's default: 40 million parameters of 2 bytes. PyTorch's 25 MiB expose less and wait for ranks more."""
HELD_BACK = "end"
"""`Schedule.launch` of "grad_bucket" that reduces only when backward is over."""


def reduce_gradients(
    gradients: Partition, gpu: GPU, frequency_mhz: int, schedule: Schedule | None, backward_s: float
) -> Estimate:
    """What averaging adds to an iteration: the time (s) that backward does not hide, the energy (J) of all of it.

    Args:
        gradients: the partition "grad_bucket", all gradients of one GPU in one collective.
        gpu, frequency_mhz, schedule: as in `emulate_scheduled`; launched at `HELD_BACK`, nothing is hidden.
        backward_s: time of the last microbatch's backward.
    """
    assert gradients.collective is not None
    num_buckets = math.ceil(gradients.collective.bytes / BUCKET_BYTES)
    bucket = replace(gradients.collective, bytes=gradients.collective.bytes / num_buckets)
    one = emulate_scheduled(replace(gradients, collective=bucket), gpu, frequency_mhz, schedule)
    everything = one.times(num_buckets)
    if schedule is not None and schedule.launch == HELD_BACK:
        return everything
    exposed_s = max(one.time_s, everything.time_s - backward_s * (num_buckets - 1) / num_buckets)
    hidden_s = everything.time_s - exposed_s
    sm_count = gpu.collective.default_sms if schedule is None or schedule.sm_count is None else schedule.sm_count
    pace = (1.0 - sm_count / gpu.num_sms) / (1.0 + gpu.collective.product_slowdown)
    slowed_s = hidden_s * (1.0 - pace)
    idle = gpu.voltage_squared(frequency_mhz) * gpu.clock_ratio(frequency_mhz) * gpu.power.idle_clock_w
    bare = gpu.with_constants(power__static_w=0.0, power__idle_clock_w=0.0, power__exposed_w=0.0)
    own_w = emulate_scheduled(replace(gradients, collective=bucket), bare, frequency_mhz, schedule).power_w
    energy_j = one.power_w * exposed_s + own_w * hidden_s + (gpu.power.static_w + float(idle)) * slowed_s
    return Estimate(exposed_s + slowed_s, energy_j)


def emulate_added(
    workload: Workload, partition: Partition, gpu: GPU, frequency_mhz: int, schedule: Schedule | None, *, stage: int = 0
) -> Estimate:
    """What one execution of `partition` adds to an iteration, for callers that sum partitions.

    That is the partition itself (`emulate_scheduled`), but of "grad_bucket" what a sequential backward at the same
    clock leaves exposed.
    """
    if partition.key != "grad_bucket":
        return emulate_scheduled(partition, gpu, frequency_mhz, schedule)
    backward_s = emulate_phase(workload, gpu, PhasePlan("backward", frequency_mhz), stage=stage).time_s
    return reduce_gradients(partition, gpu, frequency_mhz, schedule, backward_s)
