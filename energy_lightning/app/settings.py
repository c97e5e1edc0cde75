"""What can be said about a configuration before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energy_lightning.emulation import GPU
from energy_lightning.measure import check_trainable, load_plan
from energy_lightning.types import Budget, ConfigError
from energy_lightning.workload import ModelShape, Workload


def check_settings(config: Any) -> None:
    """Raise EnergyLightningError for a missing value, or a budget, workload, GPU, plan or checkpoint that cannot be.

    `config` is the composed DictConfig.
    """
    from omegaconf import OmegaConf

    check_missing(config)
    values: Any = OmegaConf.to_container(config, resolve=True)
    Budget.parse(values["budget"])
    build_workload(values["workload"])
    if values["device"]["gpu"] is not None:
        GPU.load(values["device"]["gpu"])
    if isinstance(values.get("plan"), str):
        check_trainable(load_plan(values["plan"]))
    _check_checkpoint(values.get("checkpoint"))


def _check_checkpoint(checkpoint: Any) -> None:
    """ConfigError for a file that is not there; Lightning's own words ("last") and URLs are Lightning's to judge."""
    if not isinstance(checkpoint, str) or "://" in checkpoint or not checkpoint.endswith(".ckpt"):
        return
    if not Path(checkpoint).exists():
        raise ConfigError(f"no checkpoint {checkpoint}; give a .ckpt, e.g. one of a run's folder `checkpoints`")


def check_missing(config: Any) -> None:
    """ConfigError naming the values that the composed DictConfig `config` still needs."""
    from omegaconf import OmegaConf

    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(f"{', '.join(missing)} must be given, e.g. {missing[0]}=VALUE")


def checked_seed(values: Mapping[str, Any]) -> int:
    """The setting `seed`; ConfigError unless it is a whole number >= 0."""
    seed = values["seed"]
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed must be a whole number >= 0, got {seed!r}")
    return seed


def checked_switch(values: Mapping[str, Any], name: str) -> bool:
    """A setting that is true or false; ConfigError for anything else, which Python would take as true."""
    value = values[name]
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    return value


def build_workload(values: Mapping[str, Any]) -> Workload | None:
    """The job to rehearse (group `workload`), or None for the model's own shape. Raises WorkloadError."""
    if values["preset"] is None:
        return None
    sizes = {name: value for name, value in values.items() if name != "preset" and value is not None}
    job = Workload.preset(values["preset"], **sizes)
    return job if "sequence_length" in sizes else job.with_sizes(sequence_length=_usual_sequence_length(job.model))


def _usual_sequence_length(model: ModelShape) -> int:
    """Tokens in a sequence that such models are usually trained with."""
    if not model.causal:
        return 512
    return 4096 if model.rotary else 2048  # Llama 3 and Qwen3 take more; published measurements train them with 4096
