"""Energy before the run: EnergyLens for inference, the fine-tuning law for training (floor 1; no torch)."""

from energy_lightning.predict.choosing import Scores, mape_pct, pairwise_pct, scores
from energy_lightning.predict.columns import (
    FallbackWarning,
    OutOfRangeWarning,
    PredictionError,
    PredictionWarning,
    UnitWarning,
)
from energy_lightning.predict.lens import EnergyLens

__all__ = [
    "EnergyLens",
    "FallbackWarning",
    "OutOfRangeWarning",
    "PredictionError",
    "PredictionWarning",
    "Scores",
    "UnitWarning",
    "mape_pct",
    "pairwise_pct",
    "scores",
]
