"""CUDA_VISIBLE_DEVICES: indices, UUIDs, prefixes, and what cannot be resolved."""

from __future__ import annotations

import pytest

from energy_lightning.device.visible import visible_gpus
from energy_lightning.types import DeviceError

AAAA, BBBB, BCCC = "GPU-aaaa0000-1111", "GPU-bbbb0000-2222", "GPU-bccc0000-3333"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (0, 1)),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("0", (0,)),
        ("1,0", (1, 0)),
        (" 1 , 0 ", (1, 0)),
        ("1,-1,0", (1,)),
        (BBBB, (1,)),
        (f"{BBBB},{AAAA}", (1, 0)),
        ("GPU-b", (1,)),
        ("GPU-b,0", (1, 0)),
        ("GPU-BBBB", (1,)),
    ],
)
def test_cuda_0_is_the_first_entry(value: str | None, expected: tuple[int, ...]) -> None:
    assert visible_gpus(value, [AAAA, BBBB]) == expected


def test_a_machine_without_gpus() -> None:
    assert visible_gpus(None, []) == visible_gpus("", []) == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("GPU-", "'GPU-' is the beginning of 3 GPUs' UUIDs; known: GPU-aaaa0000-1111, GPU-bbbb"),
        ("GPU-b", "'GPU-b' is the beginning of 2 GPUs' UUIDs"),
        ("GPU-d", "'GPU-d' is no GPU of this machine; known: GPU-aaaa"),
        ("0,0", "CUDA_VISIBLE_DEVICES=0,0 names GPU 0 twice, and CUDA then shows none; name each GPU once"),
        (f"1,{BBBB}", "names GPU 1 twice"),
        ("0,3", "there is no GPU 3; this machine has 3, counted from 0"),
        ("gpu0", "'gpu0' is neither an index nor a UUID; give e.g. 0 or GPU-aaaa0000-1111"),
        ("0,", "'' is neither an index nor a UUID"),
        ("1_0", "'1_0' is neither an index nor a UUID"),
        ("\u0661", "is neither an index nor a UUID"),  # a digit of another script
        ("MIG-aaaa", "'MIG-aaaa' is no GPU of this machine"),
    ],
)
def test_what_cannot_be_resolved_says_why(value: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        visible_gpus(value, [AAAA, BBBB, BCCC])
