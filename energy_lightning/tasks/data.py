"""Lightning data modules over the text sources: labelled snippets, and next-token windows of running text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from energy_lightning.tasks.sources import Example, TextSource
from energy_lightning.tasks.tokenizers import Tokenizer, open_tokenizer
from energy_lightning.types import DataError

_SPLIT_OF_STAGE = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",)}


class Rows(Dataset[dict[str, Tensor]]):
    """Tensors of equal first dimension; item i is the dict of their rows i."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


class TextDataModule(LightningDataModule):
    """What both data modules share: one source, one tokenizer, rows of token ids of one fixed length.

    The fixed length keeps the shape of every step the same, which is what a plan is made for.

    Args:
        source: the corpus.
        tokenizer: "bytes", "minilm", a folder or a hub name (`open_tokenizer`).
        max_length: tokens in a row.
        batch_size: rows per data-parallel rank and step.
        limit: at most this many training rows (None: all); validation and test keep theirs up to as many.
    """

    def __init__(
        self,
        source: TextSource,
        tokenizer: str = "bytes",
        *,
        max_length: int = 64,
        batch_size: int = 16,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        if max_length < 4 or batch_size < 1 or (limit is not None and limit < 1):
            raise DataError(
                "need max_length >= 4, batch_size >= 1 and limit >= 1 or null, "
                f"got max_length={max_length}, batch_size={batch_size}, limit={limit}"
            )
        self.source = source
        self.tokenizer_name = tokenizer
        self.max_length = max_length
        self.batch_size = batch_size
        self.limit = limit
        self.rows: dict[str, Rows] = {}

    def prepare_data(self) -> None:
        """Download on one process per machine; Lightning makes the others wait."""
        self.source.prepare()

    def setup(self, stage: str) -> None:
        """Tokenise the splits that `stage` needs ("predict" runs over the test split)."""
        wanted = [name for name in _SPLIT_OF_STAGE.get(stage, ("test",)) if name not in self.rows]
        if wanted:
            splits, tokenizer = self.source.splits(), open_tokenizer(self.tokenizer_name)
            for name in wanted:
                rows = self._rows(splits[name], tokenizer)
                if len(rows) == 0:
                    raise DataError(f"the {name} split is shorter than one row of {self.max_length} tokens")
                self.rows[name] = rows

    def _rows(self, examples: Sequence[Example], tokenizer: Tokenizer) -> Rows:
        raise NotImplementedError

    def _loader(self, split: str, *, shuffle: bool = False) -> DataLoader[dict[str, Tensor]]:
        return DataLoader(self.rows[split], batch_size=self.batch_size, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """Shuffled."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """In order."""
        return self._loader("validation")

    def test_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """In order."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """The test split, in order."""
        return self._loader("test")


class ClassificationData(TextDataModule):
    """Rows input_ids, attention_mask (n, max_length) int64 and labels (n,) int64."""

    def _rows(self, examples: Sequence[Example], tokenizer: Tokenizer) -> Rows:
        examples = examples[: self.limit]
        labels = [example.label for example in examples if example.label is not None]
        if len(labels) != len(examples):
            raise DataError("this text has no labels to classify: choose data=sentiment, or a next-token model")
        ids = torch.full((len(examples), self.max_length), tokenizer.pad_id, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(tokenizer.encode_each([example.text for example in examples], self.max_length)):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        return Rows(input_ids=ids, attention_mask=mask, labels=torch.tensor(labels))


class NextTokenData(TextDataModule):
    """Rows input_ids and labels (n, max_length) int64: consecutive windows of the text, a short rest left out.

    The labels equal the inputs: transformers' causal models shift them.
    """

    def _rows(self, examples: Sequence[Example], tokenizer: Tokenizer) -> Rows:
        stream = torch.tensor(tokenizer.encode_stream("\n\n".join(example.text for example in examples)))
        num_rows = len(stream) // self.max_length
        ids = stream[: num_rows * self.max_length].reshape(num_rows, self.max_length)[: self.limit].to(torch.int64)
        return Rows(input_ids=ids, labels=ids.clone())


def data_for(task: str) -> type[TextDataModule]:
    """The data module of a model's task; DataError names the known tasks."""
    known: dict[str, type[TextDataModule]] = {"classification": ClassificationData, "next_token": NextTokenData}
    if task not in known:
        raise DataError(f"unknown task {task!r}; known: {', '.join(known)}")
    return known[task]


def describe(data: TextDataModule) -> dict[str, Any]:
    """Plain values for a run's summary."""
    return {
        "source": type(data.source).__name__,
        "tokenizer": data.tokenizer_name,
        "max_length": data.max_length,
        "batch_size": data.batch_size,
        "num_rows": {name: len(rows) for name, rows in data.rows.items()},
    }
