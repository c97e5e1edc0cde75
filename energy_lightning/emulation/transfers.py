"""What passes between GPUs outside of a phase's partitions: activations between pipeline stages.

A stage receives before it computes and nothing hides the transfer, as Megatron-LM's 1F1B does without interleaving: so
it is counted with the phase that receives. Tensor-parallel ranks send a share each. Not modelled: gathering the shares
again (1/10 of an all-reduce of the layers), stages whose links are shared with other traffic.
"""

from __future__ import annotations

from energy_lightning.emulation.estimates import Estimate, emulate_phase
from energy_lightning.emulation.gpu import GPU
from energy_lightning.types import Phase, PhasePlan
from energy_lightning.workload import Workload


def receive_time_s(workload: Workload, gpu: GPU, phase: Phase, stage: int) -> float:
    """Time (s) that `stage` waits for one microbatch's activations (backward: their gradients) from its neighbour.

    0.0 where there is none: the first stage's forward, the last stage's backward, a workload without communication. The
    GPU draws blocking power.
    """
    source = stage - 1 if phase == "forward" else stage + 1
    if not (workload.communication and 0 <= source < workload.pipeline_parallel):
        return 0.0
    return workload.boundary_bytes / gpu.collective.p2p_bytes_per_s + gpu.collective.latency_s


def emulate_instruction(workload: Workload, gpu: GPU, phase_plan: PhasePlan, *, stage: int = 0) -> Estimate:
    """`emulate_phase` with what the stage receives before it: one instruction of a pipeline's schedule."""
    waits_s = receive_time_s(workload, gpu, phase_plan.phase, stage)
    return Estimate(waits_s, gpu.blocking_power_w * waits_s) + emulate_phase(workload, gpu, phase_plan, stage=stage)
