"""Cutting tensors: every element once, every call within the rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from energy_lightning.collectives.pieces import Piece, Rules


@given(
    address=st.integers(0, 64),
    numel=st.integers(1, 5000),
    item_bytes=st.sampled_from([1, 2, 4]),
    ranks=st.integers(1, 8),
    units=st.integers(1, 20),
    small_bytes=st.sampled_from([0, 256, 64 * 1024]),
)
def test_every_element_once_and_within_the_rules(
    address: int, numel: int, item_bytes: int, ranks: int, units: int, small_bytes: int
) -> None:
    rules = Rules(limit_bytes=16 * ranks * units + 7, unit_bytes=16 * ranks, small_bytes=small_bytes)
    pieces = list(rules.pieces(address=address, numel=numel, item_bytes=item_bytes))
    covered = [index for piece in pieces for index in range(piece.start, piece.start + piece.numel)]
    assert covered == list(range(numel))
    elsewhere = rules.pieces(address=0, numel=numel, item_bytes=item_bytes)
    assert [(p.start, p.numel) for p in pieces] == [(p.start, p.numel) for p in elsewhere], "ranks make other calls"
    for piece in pieces:
        if piece.staged:
            size_bytes = rules.padded(piece.numel, item_bytes) * item_bytes
        else:
            size_bytes = piece.numel * item_bytes
            assert (address + piece.start * item_bytes) % 16 == 0
        assert size_bytes % (16 * ranks) == 0
        assert size_bytes <= rules.limit_bytes
        assert size_bytes >= piece.numel * item_bytes


def test_a_large_tensor_is_copied_no_more_than_its_end() -> None:
    rules = Rules(limit_bytes=2**20, unit_bytes=32)
    assert list(rules.pieces(address=512, numel=2**19 + 3, item_bytes=4)) == [
        Piece(0, 2**18, False),
        Piece(2**18, 2**18, False),
        Piece(2**19, 3, True),
    ]


def test_a_small_one_is_one_call() -> None:
    rules = Rules(limit_bytes=2**20, unit_bytes=32)
    assert list(rules.pieces(address=512, numel=1001, item_bytes=4)) == [Piece(0, 1001, True)]
    assert list(rules.pieces(address=512, numel=1000, item_bytes=4)) == [Piece(0, 1000, False)]
