"""An emulated GPU: time and energy of partitions, phases and iterations, from a job's FLOPs and bytes.

Everything here is a model's estimate, at the GPU's reference temperature. numpy and scipy only; no torch.
"""

from energy_lightning.emulation.estimates import (
    Estimate,
    default_schedule,
    emulate_partition,
    emulate_partitions,
    emulate_phase,
    emulate_scheduled,
)
from energy_lightning.emulation.gpu import GPU
from energy_lightning.emulation.memory import MemoryEstimate, check_memory, memory_per_gpu
from energy_lightning.emulation.microbenchmark import attention_microbenchmark
from energy_lightning.emulation.pipeline import (
    IterationResult,
    StageResult,
    emulate_iteration,
    emulate_iteration_end,
    one_f_one_b,
)
from energy_lightning.emulation.planning import PlanPoint, plan_frontier
from energy_lightning.emulation.thermal import at_temperature
from energy_lightning.emulation.throttling import unlimited
from energy_lightning.emulation.transfers import emulate_instruction, receive_time_s

__all__ = [
    "GPU",
    "Estimate",
    "IterationResult",
    "MemoryEstimate",
    "PlanPoint",
    "StageResult",
    "at_temperature",
    "attention_microbenchmark",
    "check_memory",
    "default_schedule",
    "emulate_instruction",
    "emulate_iteration",
    "emulate_iteration_end",
    "emulate_partition",
    "emulate_partitions",
    "emulate_phase",
    "emulate_scheduled",
    "memory_per_gpu",
    "one_f_one_b",
    "plan_frontier",
    "receive_time_s",
    "unlimited",
]
