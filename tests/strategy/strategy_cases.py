"""Tiny models, data and the plain training loop that the strategy tests compare with."""

from __future__ import annotations

import atexit
import copy
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 50
SEQUENCE_LENGTH = 6


def tiny_model(name: str, seed: int = 0, num_key_value_heads: int = 2) -> nn.Module:
    """A two-layer transformers model without dropout: "bert" (classification) or "llama" (next token)."""
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 16,
    }
    if name == "bert":
        config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return BertForSequenceClassification(config)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=num_key_value_heads))


class Rows(Dataset[dict[str, Tensor]]):
    """Random tokens with labels for `name`'s head."""

    def __init__(self, name: str, num_rows: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.tokens = torch.randint(1, VOCABULARY, (num_rows, SEQUENCE_LENGTH), generator=generator)
        self.labels = self.tokens if name == "llama" else self.tokens.sum(dim=1) % 2

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def make_optimizer(model: nn.Module, name: str = "adamw") -> torch.optim.Optimizer:
    """Two parameter groups: no weight decay for vectors.

    "sgd" where the gradients' scale must show in the weights: Adam's steps hardly depend on it.
    """
    groups = {
        True: [p for p in model.parameters() if p.dim() > 1],
        False: [p for p in model.parameters() if p.dim() < 2],
    }
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    return torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False], "weight_decay": 0.0}], lr=1e-3
    )


def lightning_module(model: nn.Module, package: str = "lightning.pytorch", optimizer: str = "adamw") -> Any:
    """A LightningModule around a transformers model, of either Lightning package."""
    pl = importlib.import_module(package)

    class TextModule(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> Tensor:
            loss: Tensor = self.model(**batch).loss
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
            self.log("val_loss", self.model(**batch).loss, sync_dist=True)

        def test_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
            self.log("test_loss", self.model(**batch).loss, sync_dist=True)

        def predict_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> Tensor:
            logits: Tensor = self.model(**batch).logits
            return logits

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model, optimizer)

    return TextModule()


def own_folder() -> str:
    """A fresh temporary folder that goes with this process; one that forked from it leaves it alone."""
    folder, owner = tempfile.mkdtemp(prefix="kareus_test_"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def trainer(package: str = "lightning.pytorch", **options: Any) -> Any:
    """A quiet Trainer over the processes of this launch."""
    pl = importlib.import_module(package)
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": dist.get_world_size() if dist.is_initialized() else 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "max_epochs": 1,
        "default_root_dir": own_folder(),
    }
    return pl.Trainer(**{**quiet, **options})


@contextmanager
def alone() -> Iterator[None]:
    """For fits in the test's own process: Lightning's process group and environment variables go again."""
    before = dict(os.environ)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def as_launched() -> Iterator[None]:
    """Make Lightning take the processes that exist, as under torchrun."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    names = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    names |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def plain_training(
    model: nn.Module,
    rows: Rows,
    *,
    batch_size: int,
    num_steps: int,
    accumulate: int = 1,
    clip: float | None = None,
    optimizer_name: str = "adamw",
) -> nn.Module:
    """What one process without any of us makes of `model`: batches in order, gradients averaged over `accumulate`."""
    model = copy.deepcopy(model).train()
    optimizer = make_optimizer(model, optimizer_name)
    batches = iter(DataLoader(rows, batch_size=batch_size))
    for _ in range(num_steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            (model(**next(batches)).loss / accumulate).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


def assert_same_weights(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    assert list(actual) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def shared_folder(group: dist.ProcessGroup) -> Path:
    """A fresh temporary folder, the same one on all ranks."""
    folder: list[Any] = [own_folder() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0, group=group)
    return Path(folder[0])
