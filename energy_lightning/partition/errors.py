"""What can go wrong with a model or a backward pass in the engine."""

from energy_lightning.types import EnergyLightningError


class UnrecognisedModelError(EnergyLightningError):
    """A model without transformer blocks that the engine knows, or with changes that it does not know."""


class TensorParallelError(EnergyLightningError):
    """A tensor-parallel size that does not fit the model, or a use that sharded blocks do not allow."""


class ExecutionError(EnergyLightningError):
    """A forward or backward that the engine cannot run as asked."""
