"""Cutting a tensor into pieces that a backend with rules on size and alignment can take: arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements start .. start + numel - 1 of a flat tensor.

    Attributes:
        staged: whether it must be copied to an aligned buffer and padded there; else the backend takes it in place.
    """

    start: int
    numel: int
    staged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a backend takes.

    Attributes:
        limit_bytes: at most this much per call; at least one unit.
        unit_bytes: sizes must be multiples of it.
        address_bytes: addresses must be multiples of it.
        small_bytes: below this size, one staged call costs less than two calls.
    """

    limit_bytes: int
    unit_bytes: int
    address_bytes: int = 16
    small_bytes: int = 64 * 1024

    def pieces(self, *, address: int, numel: int, item_bytes: int) -> Iterator[Piece]:
        """Pieces in order that cover a flat tensor exactly once, each within the rules once staged ones are padded.

        `address` of the first element decides only what is staged: ranks whose tensors lie differently make the same
        calls with the same padded sizes. `item_bytes` per element divides unit_bytes.
        """
        unit = self.unit_bytes // item_bytes
        limit = self.limit_bytes // self.unit_bytes * unit
        whole = numel - numel % unit
        if numel % unit and numel * item_bytes < self.small_bytes:
            whole = 0
        misaligned = address % self.address_bytes != 0 or self.unit_bytes % self.address_bytes != 0
        for start in range(0, whole, limit):
            yield Piece(start, min(limit, whole - start), misaligned)
        for start in range(whole, numel, limit):
            yield Piece(start, min(limit, numel - start), True)

    def padded(self, numel: int, item_bytes: int) -> int:
        """Elements of a staged piece with its padding."""
        unit = self.unit_bytes // item_bytes
        return -(-numel // unit) * unit
