"""Recurring jobs and power limits, as in Zeus and beyond (floor 1: numpy, scipy and the standard library's sqlite3)."""

from energy_lightning.recurring.errors import (
    RecurringError,
    StoreError,
    TargetNeverReachedError,
    TargetNeverReachedWarning,
)
from energy_lightning.recurring.joint import Choice, JointOptimizer
from energy_lightning.recurring.optimizer import BatchSizeOptimizer
from energy_lightning.recurring.power import PowerLimitSample, PowerObjective, choose_power_limit, power_limit_steps
from energy_lightning.recurring.runs import Belief, CostRule, Run
from energy_lightning.recurring.scaling import scaled_learning_rate
from energy_lightning.recurring.settings import POLICIES, JobSettings
from energy_lightning.recurring.state import Savings, savings
from energy_lightning.recurring.sweep import PowerSweep

__all__ = [
    "POLICIES",
    "BatchSizeOptimizer",
    "Belief",
    "Choice",
    "CostRule",
    "JobSettings",
    "JointOptimizer",
    "PowerLimitSample",
    "PowerObjective",
    "PowerSweep",
    "RecurringError",
    "Run",
    "Savings",
    "StoreError",
    "TargetNeverReachedError",
    "TargetNeverReachedWarning",
    "choose_power_limit",
    "power_limit_steps",
    "savings",
    "scaled_learning_rate",
]
