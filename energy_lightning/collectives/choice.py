"""What a backend is and whether this machine can run it, found out without a process group and without a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata

import torch
from packaging.version import InvalidVersion, Version

from energy_lightning.types import EnergyLightningError

NCCL_OVERRIDES = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")
"""Variables by which NCCL lets the environment overrule the caps that a program asks for."""


class CollectivesError(EnergyLightningError):
    """A backend that does not exist or cannot serve this process group, or a tensor that it cannot take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesChoice:
    """One backend as this machine has it.

    Attributes:
        name: as in `select_collectives` and KareusStrategy(collectives=...).
        version: of the library that moves the data; None where it is not installed.
        supports_sm_count: whether it honours the SM count of a schedule.
        limits: what it cannot do, or does differently, one line each.
        reasons: why it cannot be used here, one line each; empty: it can.
    """

    name: str
    version: str | None
    supports_sm_count: bool
    limits: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether a process group on this machine could use it."""
        return not self.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the choice depends on, as seen from this process.

    Attributes:
        cuda_version: that torch was built for ("12.8"), or None for a CPU build.
        compute_capabilities: of the GPUs that torch sees, e.g. ((8, 0), (8, 0)).
        nccl_version: of the NCCL that torch uses, or None.
        distributions: installed version of each optional package that was looked for; those missing are left out.
        nccl_overrides: the variables of NCCL_OVERRIDES that are set.
    """

    cuda_version: str | None = None
    compute_capabilities: tuple[tuple[int, int], ...] = ()
    nccl_version: str | None = None
    distributions: Mapping[str, str] = field(default_factory=dict)
    nccl_overrides: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Machine:
        """This machine. `environment` is read for NCCL's own variables only."""
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return cls(
            cuda_version=torch.version.cuda,
            compute_capabilities=tuple(torch.cuda.get_device_capability(index) for index in range(num_gpus)),
            nccl_version=_nccl_version() if num_gpus else None,
            distributions={name: v for name in ("mscclpp", "nccl4py") if (v := installed_version(name)) is not None},
            nccl_overrides={name: environment[name] for name in NCCL_OVERRIDES if name in environment},
        )

    def without_gpu(self) -> tuple[str, ...]:
        """The reason that all GPU backends share, or nothing."""
        if self.compute_capabilities:
            return ()
        build = "a build of torch for CPUs" if self.cuda_version is None else f"CUDA {self.cuda_version}"
        return (f"torch sees no NVIDIA GPU ({build})",)

    def override_limits(self) -> tuple[str, ...]:
        """What the environment changes about SM counts."""
        return tuple(
            f"{name}={value} in the environment overrules the SM counts of schedules"
            for name, value in self.nccl_overrides.items()
        )

    def overruled_sm_count(self) -> int | None:
        """The SM count that every NCCL collective gets whatever is asked, or None."""
        value = self.nccl_overrides.get("NCCL_MAX_CTAS", "")
        return int(value) if value.isdecimal() and int(value) > 0 else None


def installed_version(distribution: str) -> str | None:
    """Version of an installed package, without importing it; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def at_least(version: str, least: str) -> bool:
    """Whether `version` belongs to release `least` or a later one; development builds of `least` do."""
    try:
        return Version(version).release >= Version(least).release
    except InvalidVersion:
        return False


def _nccl_version() -> str | None:
    if not torch.distributed.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
