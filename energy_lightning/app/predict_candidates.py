"""A training run that somebody thinks of: its sizes, and the strategies and numbers of GPUs that it can have."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from energy_lightning.emulation import GPU, check_memory
from energy_lightning.predict.proxies import STRATEGIES
from energy_lightning.predict.sweep import FineTuningRun
from energy_lightning.types import ConfigError, EnergyLightningError
from energy_lightning.workload import ModelShape, preset_names

_SIZES = ("num_layers", "hidden_size", "num_heads", "ffn_size")
_ALL_SIZES = (*_SIZES, "sequence_length", "batch_size")
_GATED = 1.5  # a gated feed-forward has three matrices of d x ff, a plain one two
DTYPE = "fp16"


@dataclass(frozen=True, slots=True)
class Candidates:
    """What to compare.

    Attributes:
        runs: each possible strategy and number of GPUs.
        left_out: "strategy on n GPUs" -> why it cannot be.
        notes: what about the model is approximated.
    """

    runs: tuple[FineTuningRun, ...]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]

    @classmethod
    def from_values(cls, values: Mapping[str, Any], gpu: GPU | None) -> Candidates:
        """From the settings of `predict training`; `gpu`: whose memory must hold the run, or None.

        Raises:
            ConfigError: a size that is missing or not a whole number > 0, an unknown strategy, or nothing possible.
        """
        sizes, notes = _sizes(values)
        tokens = values["tokens"]
        if isinstance(tokens, bool) or not isinstance(tokens, (int, float)) or not 0.0 < tokens < math.inf:
            raise ConfigError(f"tokens must be a finite number > 0 (of the whole run), got {tokens!r}")
        runs, left_out = [], {}
        for strategy, num_gpus in _splits(values["strategies"], values["num_gpus"]):
            try:
                run = FineTuningRun(**sizes, tokens=float(tokens), strategy=strategy, num_gpus=num_gpus)
                workload = run.workload(DTYPE)
                if gpu is not None:
                    check_memory(workload, gpu)
                runs.append(run)
            except EnergyLightningError as error:
                left_out[f"{strategy} on {num_gpus} GPU{'s' * (num_gpus > 1)}"] = str(error)
        if not runs:
            given = f"strategies={values['strategies']} with num_gpus={values['num_gpus']}"
            why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
            raise ConfigError(
                f"no strategy is possible: {why or f'nothing in {given}; single takes one GPU, tp and fsdp several'}"
            )
        return cls(tuple(runs), left_out, notes)


def table_of(runs: Sequence[FineTuningRun]) -> Any:
    """A DataFrame with a row a run."""
    import pandas

    return pandas.DataFrame([asdict(run) for run in runs])


def runs_around(run: FineTuningRun, num_gpus: Sequence[int], count: int, seed: int) -> list[FineTuningRun]:
    """`count` different runs of sizes from half to twice those of `run`, on 1 to the most of `num_gpus`; seeded."""
    rng, found = np.random.default_rng(seed), dict[FineTuningRun, None]()
    head_dim = run.hidden_size // run.num_heads
    factors = (0.5, 0.75, 1.0, 1.5, 2.0)
    for _ in range(50 * count):
        scale = dict(zip((*_ALL_SIZES, "tokens"), rng.choice(factors, len(_ALL_SIZES) + 1), strict=True))
        strategy = str(rng.choice(STRATEGIES, p=(0.2, 0.4, 0.4)))
        sizes = {name: max(1, round(getattr(run, name) * scale[name])) for name in _ALL_SIZES}
        try:
            other = replace(
                run,
                **(sizes | {"hidden_size": sizes["num_heads"] * head_dim}),
                tokens=run.tokens * float(scale["tokens"]),
                strategy=strategy,
                num_gpus=1 if strategy == "single" else int(rng.choice(list(num_gpus))),
            )
            other.workload(DTYPE)
        except EnergyLightningError:
            continue  # cannot be: draw another
        found[other] = None
        if len(found) == count:
            break
    return list(found)


def _sizes(values: Mapping[str, Any]) -> tuple[dict[str, int], tuple[str, ...]]:
    sizes, notes = {name: values[name] for name in _ALL_SIZES}, []
    if values["preset"] is not None:
        if values["preset"] not in preset_names():
            near = difflib.get_close_matches(str(values["preset"]), preset_names(), n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise ConfigError(f"unknown preset={values['preset']}{hint} Known: {', '.join(preset_names())}")
        shape = ModelShape.preset(values["preset"])
        sizes |= {name: getattr(shape, name) for name in _SIZES if values[name] is None}
        if shape.gated and values["ffn_size"] is None:
            sizes["ffn_size"] = round(shape.ffn_size * _GATED)
            notes.append(
                f"{shape.name} has a gated feed-forward: its ffn_size {shape.ffn_size} counts {_GATED:g} times"
            )
        if shape.num_kv_heads != shape.num_heads:
            notes.append(f"{shape.name}'s grouped keys and values count as full ones")
    if missing := [name for name, value in sizes.items() if value is None]:
        raise ConfigError(f"{', '.join(missing)} must be given, or preset=NAME with one of {', '.join(preset_names())}")
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be a whole number > 0, got {value!r}")
    if sizes["hidden_size"] % sizes["num_heads"]:
        raise ConfigError(f"num_heads={sizes['num_heads']} does not divide hidden_size={sizes['hidden_size']}")
    return sizes, tuple(notes)


def _splits(strategies: Any, num_gpus: Any) -> list[tuple[str, int]]:
    names = list(strategies) if isinstance(strategies, list) else [strategies]
    counts = list(num_gpus) if isinstance(num_gpus, list) else [num_gpus]
    if unknown := [name for name in names if name not in STRATEGIES]:
        raise ConfigError(f"unknown strategy {unknown[0]!r} in strategies; choose from {', '.join(STRATEGIES)}")
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"num_gpus must be a whole number > 0 or a list of them, got {count!r}")
    splits = [("single", 1)] if "single" in names else []
    return splits + [(name, n) for name in names if name != "single" for n in sorted(set(counts)) if n > 1]
