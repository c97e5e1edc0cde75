"""What the strategy wants to know of a batch: its shape, and whether two ranks hold the same one."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from energy_lightning.types import StrategyError


def tensors_of(batch: object) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every tensor in nested mappings, sequences and dataclasses, in a fixed order."""
    if isinstance(batch, Tensor):
        yield "", batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from ((f"{key}.{name}".rstrip("."), tensor) for name, tensor in tensors_of(value))
    elif isinstance(batch, (list, tuple)):
        for index, value in enumerate(batch):
            yield from ((f"{index}.{name}".rstrip("."), tensor) for name, tensor in tensors_of(value))
    elif is_dataclass(batch) and not isinstance(batch, type):
        yield from tensors_of({field.name: getattr(batch, field.name) for field in fields(batch)})


def token_shape(batch: object) -> tuple[int, int] | None:
    """(sequences, tokens per sequence) of a batch of token ids, or None if it holds none.

    The tensor called `input_ids`, else the first two-dimensional integer tensor.
    """
    candidates = [(name, t) for name, t in tensors_of(batch) if t.dim() == 2 and not t.is_floating_point()]
    candidates.sort(key=lambda item: item[0].rsplit(".", 1)[-1] != "input_ids")  # stable: others keep their order
    if not candidates:
        return None
    rows, columns = candidates[0][1].shape
    return int(rows), int(columns)


def fingerprint(batch: object) -> Tensor:
    """A checksum of names, shapes and contents of all tensors, shape (1,), int64, on the CPU."""
    checksum = 0
    for name, tensor in tensors_of(batch):
        checksum = zlib.crc32(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode(), checksum)
        if tensor.numel() and tensor.layout is torch.strided:
            content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            checksum = zlib.crc32(content.numpy().tobytes(), checksum)
    return torch.tensor([checksum], dtype=torch.int64)


def check_same_batch(batch: object, *, group: dist.ProcessGroup, device: torch.device) -> None:
    """Raise StrategyError on every rank of the tensor-parallel `group` unless all of them hold the same batch."""
    own = fingerprint(batch).to(device)
    seen = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(seen, own, group=group)
    if any(not torch.equal(other, seen[0]) for other in seen):
        ranks = ", ".join(str(rank) for rank in dist.get_process_group_ranks(group))
        raise StrategyError(
            f"the tensor-parallel peers (ranks {ranks}) got different batches, but they compute parts of the same "
            "model. Keep Trainer(use_distributed_sampler=True), or build your own sampler from "
            "trainer.strategy.distributed_sampler_kwargs, and seed every random choice of the data alike."
        )
