"""What makes two runs comparable: GPU, model shape, parallelism, library versions: a readable dict and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from energy_lightning.device.modes import has_emulated_figures
from energy_lightning.emulation import GPU
from energy_lightning.types import MeasurementError

if TYPE_CHECKING:
    from energy_lightning.device import Device
    from energy_lightning.workload import Workload

LIBRARIES = ("energy-lightning", "torch", "transformers")


def library_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str | None]:
    """Installed version of each distribution, None where it is not installed. Imports none of them."""
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def describe_run(device: Device, workload: Workload, *, libraries: Iterable[str] = LIBRARIES) -> dict[str, Any]:
    """What a measurement depends on, as plain readable values: a change in any of them must not reuse it.

    An emulated GPU's constants count as its hardware. Written only where not the usual: "clock": "running" where
    clocks cannot be locked (every configuration was then measured at whatever clock ran), and a power limit in force
    that is not the highest.
    """
    model = getattr(device, "gpu", None) if device.emulated else None
    constants = {"gpu_constants": run_hash(asdict(model))} if isinstance(model, GPU) else {}
    running = {} if device.can_lock_frequency else {"clock": "running"}
    limits_w = device.power_limit_range_w
    limited = {} if limits_w is None or device.power_limit_w >= limits_w[1] else {"power_limit_w": device.power_limit_w}
    return {
        "gpu": device.name,
        **constants,
        **running,
        **limited,
        "emulated": has_emulated_figures(device),
        "num_sms": device.num_sms,
        "workload": workload.key(),
        "versions": library_versions(libraries),
    }


def run_hash(run: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that identify a run dict, whatever the order of its keys.

    Raises MeasurementError when the dict holds anything but plain values.
    """
    try:
        text = json.dumps(run, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise MeasurementError(f"a run is described by plain finite values only: {error}. Got {run!r}") from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]
