"""Energy before the run: EnergyLens for inference, the fine-tuning law for training (floor 1; no torch)."""

from energy_lightning.predict.choosing import Scores, mape_pct, pairwise_pct, scores
from energy_lightning.predict.columns import (
    FallbackWarning,
    OutOfRangeWarning,
    PredictionError,
    PredictionWarning,
    UnitWarning,
)
from energy_lightning.predict.discovery import FormulaSearch
from energy_lightning.predict.finetuning import FineTuningEnergy
from energy_lightning.predict.lens import EnergyLens
from energy_lightning.predict.proxies import Proxies, sizes_of_config
from energy_lightning.predict.speedup import SpeedupLaw

__all__ = [
    "EnergyLens",
    "FallbackWarning",
    "FineTuningEnergy",
    "FormulaSearch",
    "OutOfRangeWarning",
    "PredictionError",
    "PredictionWarning",
    "Proxies",
    "Scores",
    "SpeedupLaw",
    "UnitWarning",
    "mape_pct",
    "pairwise_pct",
    "scores",
    "sizes_of_config",
]
