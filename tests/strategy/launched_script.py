"""A user's script, started as users start it: python launched_script.py STRATEGY PACKAGE, or under torchrun.

Every process that is left at the end prints its rank, the world size, and the sum of the weights after one epoch.
"""

import importlib
import sys
from typing import Any

import strategy_cases as cases
import torch
from torch.utils.data import DataLoader

import energy_lightning  # noqa: F401  registers the strategies

STRATEGY, PACKAGE = sys.argv[1:3]
pl = importlib.import_module(PACKAGE)


class Classifier(pl.LightningModule):  # type: ignore[misc, name-defined]  # at module level: spawn pickles it
    def __init__(self) -> None:
        super().__init__()
        self.model = cases.tiny_model("bert")

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> Any:
        return self.model(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    trainer = pl.Trainer(
        strategy=STRATEGY,
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    module = Classifier()
    trainer.fit(module, DataLoader(cases.Rows("bert", 16), batch_size=4))
    total = sum(float(parameter.detach().double().sum()) for parameter in module.parameters())
    print(f"RESULT rank={trainer.global_rank} of={trainer.world_size} sum={total:.9f}", flush=True)


if __name__ == "__main__":
    main()
