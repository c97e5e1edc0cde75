"""One job in its process: from config.yaml to a trained model, its plan and its report."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from omegaconf import OmegaConf

import energy_lightning
from energy_lightning.app.folder import RunFolder
from energy_lightning.app.outcome import OutcomeRecorder, report
from energy_lightning.app.settings import build_workload
from energy_lightning.tasks.data import TextDataModule, data_for
from energy_lightning.tasks.models import ModelSpec, build_model
from energy_lightning.tasks.modules import TASKS
from energy_lightning.tasks.sources import open_source
from energy_lightning.types import ConfigError

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What a configuration builds."""

    model: LightningModule
    data: TextDataModule
    trainer: Trainer
    recorder: OutcomeRecorder
    checkpoint: str | None
    validate_first: bool


def run_training(folder: RunFolder) -> None:
    """Train what the folder's config.yaml says, and leave the other files of a run beside it."""
    _quieten()
    job = build_job(load_config(folder), folder)
    before = _validate(job) if job.validate_first else {}
    job.trainer.fit(job.model, job.data, ckpt_path=job.checkpoint)
    after = _validate(job)
    outcome = job.recorder.outcome
    if job.trainer.is_global_zero and outcome is not None:
        report(outcome, folder, before=before, after=after)
    elif job.trainer.is_global_zero:
        print(nothing_trained(job.trainer))


def nothing_trained(trainer: Any) -> str:
    """A line for a fit that ended before its first step, as after a checkpoint at the end of the last epoch."""
    limits = f"trainer.max_epochs={trainer.max_epochs} and trainer.max_steps={trainer.max_steps}"
    return (
        f"energy_lightning: nothing was trained: {trainer.current_epoch} epochs and {trainer.global_step} steps are "
        f"done, {limits} allow no more. A checkpoint counts an epoch that max_steps ended as done: raise max_epochs too"
    )


def load_config(folder: RunFolder) -> dict[str, Any]:
    """The folder's configuration as plain values."""
    config = OmegaConf.to_container(OmegaConf.load(folder.config), resolve=True)
    if not isinstance(config, dict):
        raise ConfigError(f"{folder.config} holds no mapping")
    return {str(key): value for key, value in config.items()}


def build_job(config: Config, folder: RunFolder) -> Job:
    """Model, data and trainer. Raises EnergyLightningError for a setting that cannot be."""
    seed_everything(config["seed"], workers=True, verbose=False)
    model, recorder = config["model"], OutcomeRecorder()
    tokenizer = model["tokenizer"] or model["pretrained"]
    return Job(
        model=build_task(model, tokenizer=tokenizer),
        data=build_data(config["data"], task=model["task"], tokenizer=tokenizer),
        trainer=build_trainer(config, folder, recorder),
        recorder=recorder,
        checkpoint=config["checkpoint"],
        validate_first=config["validate_first"],
    )


def build_task(config: Config, *, tokenizer: str) -> LightningModule:
    """The LightningModule of the group `model`."""
    spec = ModelSpec(
        task=config["task"],
        pretrained=config["pretrained"],
        architecture=config["architecture"],
        config=config["config"],
    )
    model = build_model(spec, tokenizer=tokenizer)
    optimizer = {name: config[name] for name in ("learning_rate", "weight_decay", "warmup_steps")}
    return TASKS[spec.task](model, **optimizer)


def build_data(config: Config, *, task: str, tokenizer: str) -> TextDataModule:
    """The data module of the group `data`, cut to rows as the model's task needs."""
    sizes = {name: config[name] for name in ("max_length", "batch_size", "limit")}
    others = {name: value for name, value in config.items() if name not in (*sizes, "source")}
    return data_for(task)(open_source(config["source"], **others), tokenizer, **sizes)


def build_strategy(config: Config, folder: RunFolder) -> Any:
    """KareusStrategy from the groups workload, device, budget, profiler, search and collectives."""
    backend = config["collectives"]["process_group_backend"]
    device = config["device"]
    return energy_lightning.KareusStrategy(
        config["budget"],
        tensor_parallel_size=config["tensor_parallel_size"],
        data_parallel_size=config["data_parallel_size"],
        activation_checkpointing=config["activation_checkpointing"],
        collectives=config["collectives"]["backend"],
        device=device["name"],
        **({} if device["gpu"] is None else {"gpu": device["gpu"]}),
        workload=build_workload(config["workload"]),
        plan=config["plan"],
        output_dir=folder.path,
        callback_options={"PartitionProfiler": config["profiler"], "FrontierOptimizer": config["search"]},
        **({} if backend is None else {"process_group_backend": backend}),
    )


def build_trainer(config: Config, folder: RunFolder, recorder: Callback) -> Trainer:
    """Lightning's Trainer; ConfigError for an argument that it does not have, or that the run sets itself."""
    own: dict[str, Any] = {
        "logger": CSVLogger(folder.path, name="", version=""),  # metrics.csv in the folder itself
        "callbacks": [ModelCheckpoint(dirpath=folder.path / "checkpoints", enable_version_counter=False), recorder],
        "default_root_dir": folder.path,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    allowed = sorted(set(inspect.signature(Trainer).parameters) - {*own, "strategy"})
    unknown = [name for name in config["trainer"] if name not in allowed]
    if unknown:
        raise ConfigError(f"the Trainer takes no argument trainer.{unknown[0]} here; it takes: {', '.join(allowed)}")
    return Trainer(strategy=build_strategy(config, folder), **own, **config["trainer"])


def _validate(job: Job) -> dict[str, float]:
    (metrics,) = job.trainer.validate(job.model, job.data, verbose=False)
    return {name.removeprefix("validation_"): float(value) for name, value in metrics.items()}


def _quieten() -> None:
    """Leave out what a user of the command line can do nothing about."""
    for message in (
        ".*does not have many workers.*",  # the rows are tensors in memory: no worker would load them faster
        ".*exists and is not empty.*",  # going on in a run's folder is meant
        ".*isinstance\\(treespec, LeafSpec\\).*",  # between Lightning and torch
        ".*sync_dist=True.*",  # energy totals are summed over ranks before they are logged
    ):
        warnings.filterwarnings("ignore", message=message)
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.distributed"):
        logging.getLogger(name).setLevel(logging.WARNING)
