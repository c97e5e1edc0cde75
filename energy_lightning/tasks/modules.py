"""LightningModules that fine-tune or train a transformers model: classification and next token."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

Batch = dict[str, Tensor]


class TransformersTask(LightningModule):
    """AdamW on a transformers model that computes its own loss from `labels`.

    Args:
        model: the transformers model.
        learning_rate: of AdamW, after `warmup_steps`.
        weight_decay: of matrices; norms and biases have none.
        warmup_steps: steps of linear warm-up.
    """

    def __init__(
        self, model: nn.Module, *, learning_rate: float = 5e-5, weight_decay: float = 0.01, warmup_steps: int = 0
    ) -> None:
        super().__init__()
        self.model = model
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.warmup_steps = warmup_steps

    def forward(self, batch: Batch) -> Any:
        """transformers' output: .loss (scalar) and .logits."""
        return self.model(**batch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean loss of the batch."""
        loss = cast(Tensor, self(batch).loss)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs the metrics as validation_*."""
        self._evaluate(batch, "validation")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs the metrics as test_*."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Logits: (b, classes) or (b, tokens, vocabulary)."""
        return cast(Tensor, self(batch).logits)

    def _evaluate(self, batch: Batch, split: str) -> None:
        raise NotImplementedError

    def _log_means(self, split: str, batch: Batch, **values: Tensor) -> None:
        named = {f"{split}_{name}": value for name, value in values.items()}
        self.log_dict(named, on_epoch=True, prog_bar=True, sync_dist=True, batch_size=len(batch["labels"]))

    def configure_optimizers(self) -> Any:
        """AdamW with two parameter groups and a linear warm-up."""
        decayed = [p for p in self.parameters() if p.requires_grad and p.dim() > 1]
        plain = [p for p in self.parameters() if p.requires_grad and p.dim() <= 1]
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.learning_rate)
        if not self.warmup_steps:
            return optimizer
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self.warmup_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class TextClassifier(TransformersTask):
    """Classifies snippets; reports loss and accuracy (fraction right)."""

    def _evaluate(self, batch: Batch, split: str) -> None:
        output = self(batch)
        right = (output.logits.argmax(dim=-1) == batch["labels"]).float().mean()
        self._log_means(split, batch, loss=output.loss, accuracy=right)


class NextToken(TransformersTask):
    """Predicts the next token; reports loss (nats per token) and bits per token."""

    def _evaluate(self, batch: Batch, split: str) -> None:
        loss = self(batch).loss
        self._log_means(split, batch, loss=loss, bits_per_token=loss / math.log(2))


TASKS: dict[str, type[TransformersTask]] = {"classification": TextClassifier, "next_token": NextToken}
