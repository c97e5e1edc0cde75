"""The measured power of a GPU that waits for its peers, kept by UUID: one small JSON file a GPU."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path

_log = logging.getLogger(__name__)
_FOLDER = "blocking_power"


def load_blocking_power_w(state_dir: Path, uuid: str) -> float | None:
    """What was measured for this GPU; None if nothing was, or the file cannot be read."""
    path = _path(state_dir, uuid)
    try:
        power_w = json.loads(path.read_text(encoding="utf-8"))["blocking_power_w"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s is not used (%s); remove it, and the blocking power will be measured again", path, error)
        return None
    fits = isinstance(power_w, int | float) and not isinstance(power_w, bool) and math.isfinite(power_w) and power_w > 0
    return float(power_w) if fits else None


def save_blocking_power_w(state_dir: Path, uuid: str, power_w: float, *, gpu: str) -> None:
    """Keep a measurement; a reader sees the old file or the new one. OSError where it cannot be written."""
    path = _path(state_dir, uuid)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"gpu": gpu, "blocking_power_w": power_w}, indent=1), encoding="utf-8")
    partial.replace(path)


def _path(state_dir: Path, uuid: str) -> Path:
    return state_dir / _FOLDER / f"{uuid}.json"
