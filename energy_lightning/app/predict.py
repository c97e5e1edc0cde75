"""`energy-lightning predict training|inference`: energy before the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from energy_lightning.app.folder import COMPLETED
from energy_lightning.app.hydra_jobs import checked_arguments, exit_code, run_hydra
from energy_lightning.app.predict_inference import predict_inference
from energy_lightning.app.predict_job import run_job
from energy_lightning.app.predict_training import predict_training
from energy_lightning.types import ConfigError

_KINDS = {"training": predict_training, "inference": predict_inference}
_USAGE = """\
usage: energy-lightning predict training|inference [KEY=VALUE ...]

  training   energy, hours and cost of a training run, by strategy and number of GPUs
  inference  energy of serving configurations, and which to choose

More: energy-lightning predict training --help"""


def predict(arguments: Sequence[str]) -> int:
    """Predict what `arguments` (training or inference, then Hydra overrides and flags) describe; the exit code."""
    kind, *rest = arguments or ["--help"]
    if kind in ("-h", "--help"):
        print(_USAGE)
        return 0
    if kind not in _KINDS:
        raise ConfigError(f"predict what? {kind!r} is not one of {', '.join(_KINDS)}; it comes first")
    name = f"predict_{kind}"

    def run_predict(config: Any, path: Path) -> str:
        return run_job(config, path, _KINDS[kind])

    return exit_code(run_hydra(checked_arguments(rest, name), run_predict, name), COMPLETED)
