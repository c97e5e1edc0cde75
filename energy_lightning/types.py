"""The words every floor shares: Schedule, PhasePlan, Plan, Measurement, Budget, and the errors a user can cause.

Time in s, energy in J, power in W, frequency in MHz, sizes in bytes. Energy and power are per GPU unless a name or
docstring says summed. Only the standard library is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from energy_lightning.budget import Budget, BudgetKind
from energy_lightning.errors import (
    BudgetError,
    ConfigError,
    DataError,
    DeviceError,
    EnergyLightningError,
    MeasurementError,
    PlanError,
    StrategyError,
    WorkloadError,
)
from energy_lightning.plan import Phase, PhasePlan, Plan, Schedule

__all__ = [
    "Budget",
    "BudgetError",
    "BudgetKind",
    "ConfigError",
    "DataError",
    "DeviceError",
    "DeviceMode",
    "EnergyLightningError",
    "EnergySource",
    "Measurement",
    "MeasurementError",
    "Phase",
    "PhasePlan",
    "Plan",
    "PlanError",
    "Schedule",
    "StrategyError",
    "WorkloadError",
]

EnergySource = Literal["counter", "power", "emulated", "none"]
DeviceMode = Literal["full", "measure-only", "time-only"]
"""What a device permits: clocks or limits are set too; readings only; not even an energy reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured configuration, already merged over its repeats.

    Attributes:
        time_s: time of one execution.
        energy_j: energy of one execution per GPU, static power included; None where the device cannot tell.
        num_repeats: windows merged into this value.
        time_std_s, energy_std_j: standard deviation over the windows (0.0 for a single one).
        source: where the energy comes from; sources are never mixed in one frontier.
        temperature_c: GPU temperature at the end of the window, if known.
        requested_mhz, actual_mhz: SM clock asked for and seen.
        invalid_reason: None for a valid measurement, else what was wrong.
    """

    time_s: float
    energy_j: float | None
    num_repeats: int = 1
    time_std_s: float = 0.0
    energy_std_j: float = 0.0
    source: EnergySource = "counter"
    temperature_c: float | None = None
    requested_mhz: int | None = None
    actual_mhz: int | None = None
    invalid_reason: str | None = None

    @property
    def valid(self) -> bool:
        """Whether the numbers may be used."""
        return self.invalid_reason is None
