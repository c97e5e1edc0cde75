"""Train for less energy without giving up time.

    import energy_lightning
    from lightning.pytorch import Trainer

    Trainer(strategy="kareus", devices=2)

Importing this package makes the strategies "kareus", "kareus_spawn", "kareus_fork" and "kareus_notebook" known to
`lightning` and to `pytorch_lightning`, each when it is imported, and loads nothing else. The public names below load
their modules at first use; those of `pytorch_lightning` are in `energy_lightning.pytorch_lightning`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from energy_lightning import registration

if TYPE_CHECKING:
    from energy_lightning.lightning import (
        EnergyMonitor,
        FrequencyController,
        FrontierOptimizer,
        KareusStrategy,
        PartitionProfiler,
        PowerLimitOptimizer,
        RecurringJob,
    )
    from energy_lightning.predict import EnergyLens, FineTuningEnergy, SpeedupLaw
    from energy_lightning.recurring import BatchSizeOptimizer, choose_power_limit
    from energy_lightning.types import Budget, EnergyLightningError, Measurement, PhasePlan, Plan, Schedule
    from energy_lightning.workload import Workload

__all__ = [
    "BatchSizeOptimizer",
    "Budget",
    "EnergyLens",
    "EnergyLightningError",
    "EnergyMonitor",
    "FineTuningEnergy",
    "FrequencyController",
    "FrontierOptimizer",
    "KareusStrategy",
    "Measurement",
    "PartitionProfiler",
    "PhasePlan",
    "Plan",
    "PowerLimitOptimizer",
    "RecurringJob",
    "Schedule",
    "SpeedupLaw",
    "Workload",
    "__version__",
    "choose_power_limit",
]

_NAMES_IN = {
    "energy_lightning.lightning": (
        "EnergyMonitor",
        "FrequencyController",
        "FrontierOptimizer",
        "KareusStrategy",
        "PartitionProfiler",
        "PowerLimitOptimizer",
        "RecurringJob",
    ),
    "energy_lightning.predict": ("EnergyLens", "FineTuningEnergy", "SpeedupLaw"),
    "energy_lightning.recurring": ("BatchSizeOptimizer", "choose_power_limit"),
    "energy_lightning.types": ("Budget", "EnergyLightningError", "Measurement", "PhasePlan", "Plan", "Schedule"),
    "energy_lightning.workload": ("Workload",),
}
_MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names}

registration.register_when_imported()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("energy-lightning")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'energy_lightning' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
