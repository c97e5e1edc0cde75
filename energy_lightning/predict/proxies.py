"""What of a fine-tuning run decides its energy: published proxies, and its work in FLOPs, values and launches.

    symbol   meaning                        symbol   meaning
    L        layers                         S        tokens a sequence
    d, ff    hidden and feed-forward size   B        sequences a step (all GPUs together)
    n        GPUs                           tokens   tokens of the whole run; steps = tokens / (B S)

Published proxies (arXiv 2606.23546): N = L (12 d^2 + 2 d ff) parameters; C = (12 L d^2 + 3 L S d) tokens FLOPs, which
leaves ff out; M = B S d L memory traffic of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from energy_lightning.predict.columns import Columns, Floats, PredictionError, names_of, numbers, positive, require
from energy_lightning.workload.shape import ModelShape

STRATEGIES = ("single", "tp", "fsdp")
SIZES = ("num_layers", "hidden_size", "ffn_size", "sequence_length", "batch_size", "tokens", "num_gpus")
REQUIRED = (*SIZES, "strategy")
OPTIONAL = ("speedup", "gpu_model")
LAUNCHES = ("J per layer and step", "J per step", "J per run")  # work during which a GPU waits for its host


@dataclass(frozen=True, slots=True)
class Proxies:
    """The published proxies; floats or arrays (n,). The run's FLOPs are `compute_flops`, a step's values `memory`."""

    parameters: Any
    flops_per_token: Any
    compute_flops: Any
    memory: Any

    @classmethod
    def of(
        cls, *, num_layers: Any, hidden_size: Any, ffn_size: Any, sequence_length: Any, batch_size: Any, tokens: Any
    ) -> Proxies:
        """From sizes, all floats or all (n,)."""
        per_token = 12.0 * num_layers * hidden_size**2 + 3.0 * num_layers * sequence_length * hidden_size
        return cls(
            parameters=num_layers * (12.0 * hidden_size**2 + 2.0 * hidden_size * ffn_size),
            flops_per_token=per_token,
            compute_flops=per_token * tokens,
            memory=1.0 * batch_size * sequence_length * hidden_size * num_layers,
        )

    @classmethod
    def from_config(cls, config: Any, *, sequence_length: int, batch_size: int, tokens: float) -> Proxies:
        """From a transformers configuration object or its mapping; WorkloadError where a size is missing."""
        sizes = sizes_of_config(config)
        return cls.of(**sizes, sequence_length=sequence_length, batch_size=batch_size, tokens=tokens)


def sizes_of_config(config: Any) -> dict[str, int]:
    """num_layers, hidden_size and ffn_size of a transformers configuration: the model's part of a table's row."""
    shape = ModelShape.from_config(config)
    return {"num_layers": shape.num_layers, "hidden_size": shape.hidden_size, "ffn_size": shape.ffn_size}


@dataclass(frozen=True, slots=True)
class Runs:
    """n checked runs. efficiency: (n,) speed-up / GPUs, or None where it is not known."""

    sizes: Columns
    tensor_parallel: Floats
    fully_sharded: Floats
    efficiency: Floats | None

    def __len__(self) -> int:
        return len(self.tensor_parallel)

    def __getitem__(self, name: str) -> Floats:
        return self.sizes[name]

    def subset(self, rows: np.ndarray) -> Runs:
        """The rows chosen by a mask or by positions."""
        efficiency = None if self.efficiency is None else self.efficiency[rows]
        sizes = {name: values[rows] for name, values in self.sizes.items()}
        return Runs(sizes, self.tensor_parallel[rows], self.fully_sharded[rows], efficiency)

    @property
    def proxies(self) -> Proxies:
        """The published proxies, each (n,)."""
        return Proxies.of(**{name: self.sizes[name] for name in SIZES if name != "num_gpus"})

    @property
    def strategies(self) -> set[str]:
        """Those that occur."""
        alone = (self.tensor_parallel == 0.0) & (self.fully_sharded == 0.0)
        members = {"single": alone, "tp": self.tensor_parallel, "fsdp": self.fully_sharded}
        return {strategy for strategy, member in members.items() if member.any()}

    @property
    def steps(self) -> Floats:
        """Optimizer steps, not rounded."""
        return self["tokens"] / (self["batch_size"] * self["sequence_length"])

    @property
    def layer_weights(self) -> Floats:
        """Weights of the layers' linears, L (4 d^2 + 2 d ff)."""
        d = self["hidden_size"]
        return self["num_layers"] * (4.0 * d**2 + 2.0 * d * self["ffn_size"])

    @property
    def flops(self) -> Floats:
        """Of the run, forward and backward: 6 a weight and token, 12 S d a layer and token for attention."""
        attention = 12.0 * self["num_layers"] * self["sequence_length"] * self["hidden_size"]
        return self["tokens"] * (6.0 * self.layer_weights + attention)

    def work(self) -> Columns:
        """What one GPU alone would have to do; each (n,). The law gives each a price in joules."""
        values = self["tokens"] * self["num_layers"]
        return {
            "J per FLOP": self.flops,
            "J per hidden value": values * self["hidden_size"],
            "J per ffn value": values * self["ffn_size"],
            "J per attention score": values * self["sequence_length"],
            "J per weight and step": self.steps * self.layer_weights,
            "J per layer and step": self["num_layers"] * self.steps,
            "J per step": self.steps,
            "J per run": np.ones(len(self)),
        }

    def communication(self) -> Columns:
        """What several GPUs add, for tables without speed-ups; each (n,), 0 on one GPU."""
        others, layer_steps = self["num_gpus"] - 1.0, self["num_layers"] * self.steps
        values = self["tokens"] * self["num_layers"] * self["hidden_size"]
        return {
            "J per tp value sent": self.tensor_parallel * values * others,
            "J per tp layer, step and GPU": self.tensor_parallel * layer_steps * self["num_gpus"],
            "J per fsdp weight sent": self.fully_sharded * self.steps * self.layer_weights * others,
            "J per fsdp layer, step and GPU": self.fully_sharded * layer_steps * self["num_gpus"],
            "J per layer, step and further GPU": layer_steps * others,
            "J per run and further GPU": others,
        }


def read_runs(table: Any) -> Runs:
    """Checked runs of a table; speed-up may be missing or NaN on one GPU, where it is 1.

    Raises:
        PredictionError: a missing column, a value that is not finite and > 0, an unknown strategy, or "single" with
            several GPUs.
    """
    require(table, REQUIRED, (*REQUIRED, *OPTIONAL))
    sizes = {name: positive(table, name) for name in SIZES}
    strategies = [str(value) for value in table["strategy"]]
    for row, strategy in enumerate(strategies):
        if strategy not in STRATEGIES:
            raise PredictionError(f"unknown strategy {strategy!r} in row {row}; choose one of {', '.join(STRATEGIES)}")
        if sizes["num_gpus"][row] < 1.0:
            raise PredictionError(f"num_gpus must be >= 1: row {row} has {sizes['num_gpus'][row]:g}")
        if strategy == "single" and sizes["num_gpus"][row] != 1.0:
            raise PredictionError(
                f"row {row} has strategy 'single' and num_gpus={sizes['num_gpus'][row]:g}; give tp, fsdp or one GPU"
            )
    tensor_parallel = np.array([strategy == "tp" for strategy in strategies], dtype=np.float64)
    fully_sharded = np.array([strategy == "fsdp" for strategy in strategies], dtype=np.float64)
    efficiency = None
    if "speedup" in names_of(table):
        given = numbers(table["speedup"], "column speedup")
        filled = {"speedup": np.where(np.isnan(given) & (sizes["num_gpus"] == 1.0), 1.0, given)}
        efficiency = positive(filled, "speedup") / sizes["num_gpus"]
    return Runs(sizes, tensor_parallel, fully_sharded, efficiency)
