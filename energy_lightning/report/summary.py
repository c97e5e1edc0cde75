"""JSON files that are never seen half-written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energy_lightning.types import EnergyLightningError


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace `path` by `values` at once; a NaN or infinity becomes null, which JSON has instead."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(_finite(values), indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError:  # a full disk, say: leave no empty file beside the old values
        partial.unlink(missing_ok=True)
        raise


def read_summary(path: Path) -> dict[str, Any]:
    """The mapping in `path`; EnergyLightningError when there is none, or it is not a JSON mapping."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnergyLightningError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise EnergyLightningError(f"{path} holds no JSON mapping but {type(values).__name__}")
    return values


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
