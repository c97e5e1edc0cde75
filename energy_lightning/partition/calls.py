"""The arguments of a block besides the hidden states, as the operators read them and as nanobatches split them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from energy_lightning.partition.random import seeded_per_rank

_BATCHED = ("attention_mask", "position_embeddings", "position_ids")
"""Arguments whose dim 0 is the batch, or 1 where all samples share them."""
CACHE_NAMES = ("cache", "past_key_values")  # new and old name in transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCall:
    """What every block of one forward (or one nanobatch of it) is called with.

    Attributes:
        attention_mask: None, (batch or 1, ...) tensor, or whatever the attention implementation takes.
        position_embeddings: (cosine, sine), each (batch or 1, sequence, head_dim), or None.
        cache: a transformers key-value cache to append to, or None.
        extra: further arguments, passed to the attention implementation as transformers does.
        rank: this process's tensor-parallel rank, or None without tensor parallelism.
        device: of the hidden states.
    """

    attention_mask: Any = None
    position_embeddings: Any = None
    cache: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    rank: int | None = None
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @classmethod
    def bind(
        cls, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any], *, rank: int | None, hidden: Tensor
    ) -> BlockCall:
        """From the arguments of a layer's forward after the hidden states; `names` are the positional ones."""
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        caches = [given.pop(name, None) for name in CACHE_NAMES]
        return cls(
            attention_mask=given.pop("attention_mask", None),
            position_embeddings=given.pop("position_embeddings", None),
            cache=next((cache for cache in caches if cache is not None), None),
            extra=given,
            rank=rank,
            device=hidden.device,
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            "attention_mask": self.attention_mask,
            "position_embeddings": self.position_embeddings,
            **self.extra,
        }

    def splits(self, batch_size: int) -> bool:
        """Whether the arguments can be cut along a batch of `batch_size` without guessing."""
        for name, value in self._arguments().items():
            if not all(_splits(name, leaf, batch_size) for leaf in _leaves(value)):
                return False
        return True

    def needs_gradient(self) -> bool:
        """Whether an argument besides the hidden states wants a gradient."""
        return any(
            isinstance(leaf, Tensor) and leaf.requires_grad
            for value in self._arguments().values()
            for leaf in _leaves(value)
        )

    def split(self, sizes: Sequence[int]) -> list[BlockCall]:
        """One call per nanobatch; `splits(sum(sizes))` must hold. Shared arguments stay shared."""
        pieces = {name: _split(value, sizes) for name, value in self._arguments().items() if name in _BATCHED}
        calls = []
        for index in range(len(sizes)):
            own = {name: values[index] for name, values in pieces.items()}
            mask, positions = own.pop("attention_mask"), own.pop("position_embeddings")
            calls.append(replace(self, attention_mask=mask, position_embeddings=positions, extra={**self.extra, **own}))
        return calls

    def with_cached(self, attention: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens so far; the cache, if any, keeps the new ones (of this rank's heads)."""
        if self.cache is None:
            return key, value
        cached: tuple[Tensor, Tensor] = self.cache.update(key, value, attention.layer_idx)
        return cached

    def random_per_rank(self, active: bool) -> AbstractContextManager[None]:
        """Where a rank draws for its own heads; does nothing when not `active` or without tensor parallelism."""
        return seeded_per_rank(self.rank, self.device) if active and self.rank is not None else nullcontext()


def _leaves(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _splits(name: str, leaf: Any, batch_size: int) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.dim() == 0 or (name in _BATCHED and leaf.dim() > 1 and leaf.shape[0] in (1, batch_size))
    return leaf is None or isinstance(leaf, (bool, int, float, str))


def _split(value: Any, sizes: Sequence[int]) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return list(zip(*(_split(leaf, sizes) for leaf in value), strict=True))
    if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == sum(sizes):
        return list(torch.split(value, list(sizes)))
    return [value] * len(sizes)
