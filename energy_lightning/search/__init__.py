"""Ask/tell search over schedules and frequencies (floor 1: numpy and scipy; xgboost where it is used)."""

from energy_lightning.search.history import Finding
from energy_lightning.search.optimizer import MultiPassOptimizer
from energy_lightning.search.passes import PASSES
from energy_lightning.search.proposer import BatchSizes, Prediction
from energy_lightning.search.space import SearchError, SearchSpace

__all__ = ["PASSES", "BatchSizes", "Finding", "MultiPassOptimizer", "Prediction", "SearchError", "SearchSpace"]
