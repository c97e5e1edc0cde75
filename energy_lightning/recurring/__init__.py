"""Recurring jobs and power limits, as in Zeus and beyond (floor 1: numpy and the standard library's sqlite3)."""

from energy_lightning.recurring.optimizer import BatchSizeOptimizer, Belief
from energy_lightning.recurring.power import PowerLimitSample, PowerObjective, choose_power_limit, power_limit_steps
from energy_lightning.recurring.runs import (
    RecurringError,
    Run,
    StoreError,
    TargetNeverReachedError,
    TargetNeverReachedWarning,
)
from energy_lightning.recurring.scaling import scaled_learning_rate
from energy_lightning.recurring.settings import POLICIES, JobSettings
from energy_lightning.recurring.sweep import PowerSweep

__all__ = [
    "POLICIES",
    "BatchSizeOptimizer",
    "Belief",
    "JobSettings",
    "PowerLimitSample",
    "PowerObjective",
    "PowerSweep",
    "RecurringError",
    "Run",
    "StoreError",
    "TargetNeverReachedError",
    "TargetNeverReachedWarning",
    "choose_power_limit",
    "power_limit_steps",
    "scaled_learning_rate",
]
