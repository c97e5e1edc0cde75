"""Fine-tuning runs on an emulated GPU: a controlled sweep over architecture, batch, strategy and number of GPUs.

Every figure is the GPU model's (emulated), none is a measurement. Not modelled: data loading, host power, evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from energy_lightning.emulation import GPU, emulate_iteration
from energy_lightning.predict.columns import PredictionError
from energy_lightning.predict.proxies import STRATEGIES
from energy_lightning.types import PhasePlan, Plan
from energy_lightning.workload import Workload
from energy_lightning.workload.shape import ModelShape

_VOCAB_SIZE = 30522  # BERT's


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningRun:
    """One fine-tuning run of a BERT-like encoder; batch_size in sequences over all GPUs, tokens of the whole run."""

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int
    sequence_length: int
    batch_size: int
    tokens: float
    strategy: str = "single"
    num_gpus: int = 1

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise PredictionError(f"unknown strategy {self.strategy!r}; choose one of {', '.join(STRATEGIES)}")
        if (self.strategy == "single") != (self.num_gpus == 1):
            raise PredictionError(f"strategy {self.strategy!r} does not go with {self.num_gpus} GPUs")
        if self.strategy == "fsdp" and self.batch_size % self.num_gpus:
            raise PredictionError(f"batch_size={self.batch_size} cannot be shared by {self.num_gpus} GPUs")

    def workload(self, dtype: str) -> Workload:
        """One step of the run."""
        shape = ModelShape(
            name="model",
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.hidden_size // self.num_heads,
            ffn_size=self.ffn_size,
            num_layers=self.num_layers,
            vocab_size=_VOCAB_SIZE,
            causal=False,
            gated=False,
            rotary=False,
            head="classification",
        )
        replicas = self.num_gpus if self.strategy == "fsdp" else 1
        return Workload(
            model=shape,
            tensor_parallel=self.num_gpus if self.strategy == "tp" else 1,
            data_parallel=replicas,
            data_parallel_kind="fully_sharded" if self.strategy == "fsdp" else "all_reduce",
            microbatch_size=self.batch_size // replicas,
            sequence_length=self.sequence_length,
            dtype=dtype,
        )


def emulate_run(run: FineTuningRun, gpu: GPU, *, dtype: str = "fp16") -> tuple[float, float]:
    """Seconds and joules (over all GPUs) of the whole run at the highest clock, without overlap by us. Emulated."""
    plan = Plan(stages=((PhasePlan("forward"), PhasePlan("backward")),))
    step = emulate_iteration(run.workload(dtype), gpu, plan)
    num_steps = run.tokens / (run.batch_size * run.sequence_length)
    return step.time_s * num_steps, step.energy_j * num_steps


def random_runs(count: int, seed: int = 0, *, tokens: float = 2e6) -> list[FineTuningRun]:
    """`count` different runs: BERT-like, 2 to 12 layers, hidden 128 to 1280, 1 to 8 GPUs; seeded."""
    rng = np.random.default_rng(seed)
    runs: dict[FineTuningRun, None] = {}
    while len(runs) < count:
        head_dim, heads = int(rng.choice([32, 64])), int(rng.choice([4, 8, 12, 16, 20]))
        num_gpus = int(rng.choice([1, 1, 2, 4, 8]))
        strategy = "single" if num_gpus == 1 else str(rng.choice(["tp", "fsdp"]))
        if strategy == "tp" and heads % num_gpus:
            continue
        run = FineTuningRun(
            num_layers=int(rng.choice([2, 4, 6, 8, 10, 12])),
            hidden_size=heads * head_dim,
            num_heads=heads,
            ffn_size=int(rng.choice([512, 1024, 2048, 3072, 4096])),
            sequence_length=int(rng.choice([64, 128, 256, 512])),
            batch_size=int(rng.choice([8, 16, 32, 64])),
            tokens=tokens * float(rng.choice([1, 2, 4])),
            strategy=strategy,
            num_gpus=num_gpus,
        )
        runs[run] = None
    return list(runs)


def emulated_speedups(gpu_model: str, strategy: str) -> tuple[list[int], list[float]]:
    """Numbers of GPUs and speed-ups of a BERT-base run (batch 64, sequence 512; 16 heads, which 8 GPUs can share).

    Emulated; DeviceError for an unknown GPU model.
    """
    gpu, counts = GPU.load(gpu_model), [2, 4, 8]
    alone = FineTuningRun(
        num_layers=12, hidden_size=768, num_heads=16, ffn_size=3072, sequence_length=512, batch_size=64, tokens=1e6
    )
    alone_s, _ = emulate_run(alone, gpu)
    runs = [replace(alone, strategy=strategy, num_gpus=count) for count in counts]
    return counts, [alone_s / emulate_run(run, gpu)[0] for run in runs]


def emulated_sweep(runs: list[FineTuningRun], gpu: GPU, *, dtype: str = "fp16") -> dict[str, list[object]]:
    """Columns of a tidy table, one row a run: the run's settings, speedup over one GPU, time_s, energy_j, emulated."""
    table: dict[str, list[object]] = {}
    for run in runs:
        time_s, energy_j = emulate_run(run, gpu, dtype=dtype)
        alone_s, _ = emulate_run(replace(run, strategy="single", num_gpus=1), gpu, dtype=dtype)
        settings = {name: getattr(run, name) for name in FineTuningRun.__dataclass_fields__}
        row = {**settings, "gpu_model": gpu.name, "speedup": alone_s / time_s, "time_s": time_s, "energy_j": energy_j}
        for name, value in {**row, "emulated": True}.items():
            table.setdefault(name, []).append(value)
    return table
