"""The errors that a user's input or machine can cause (floor 0); import them from `energy_lightning.types`."""

from __future__ import annotations


class EnergyLightningError(ValueError):
    """Base of every error that a user's input or machine can cause."""


class PlanError(EnergyLightningError):
    """A plan that cannot be read, or does not fit the job or the GPU."""


class BudgetError(EnergyLightningError):
    """A budget that no known plan meets; the message names what is reachable."""


class StrategyError(EnergyLightningError):
    """A setting of the strategy that does not fit the machine, the model or the data."""


class WorkloadError(EnergyLightningError):
    """A job shape that cannot exist, or an unknown preset."""


class DeviceError(EnergyLightningError):
    """An unknown device, or a setting that the device does not have."""


class DataError(EnergyLightningError):
    """A corpus, tokenizer or model that cannot be had, or does not suit the task."""


class ConfigError(EnergyLightningError):
    """A command line or configuration with an unknown or contradictory setting."""


class MeasurementError(EnergyLightningError):
    """A measurement file that is not ours, or values no measurement can have."""
