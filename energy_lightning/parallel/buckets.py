"""Gradients of several parameters in one flat buffer, so that one collective reduces them all.

    buffer:  | grad of p0 | pad | grad of p1 | pad | ... | flags: one number per parameter |

A flag is 1 where this rank has a gradient. Once averaged over the ranks, a flag of 0 means that nobody used the
parameter: its `.grad` then stays None, as it would in a single process, and the optimizer skips it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from energy_lightning.types import StrategyError

_ALIGNMENT_BYTES = 64


class GradientBucket:
    """Parameters of one dtype and device, and the flat buffer of their gradients.

    The buffer is allocated at first use and kept: a reduced `.grad` is a view of it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = tuple(parameters)
        self._storage: tuple[Tensor, list[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def buffer(self) -> Tensor:
        """What the collective works on, shape (padded numel + number of parameters,)."""
        return self._allocated()[0]

    def _allocated(self) -> tuple[Tensor, list[Tensor], Tensor]:
        if self._storage is None:
            like = self.parameters[0]
            align = max(1, _ALIGNMENT_BYTES // like.element_size())
            padded = [-(-p.numel() // align) * align for p in self.parameters]
            buffer = torch.zeros(sum(padded) + len(padded), dtype=like.dtype, device=like.device)
            *pieces, flags = torch.split(buffer, [*padded, len(padded)])
            views = [piece[: p.numel()].view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]
            self._storage = (buffer, views, flags)
        return self._storage

    @torch.no_grad()
    def fill(self) -> None:
        """Copy the gradients in; where there is none, zeros and a flag of 0. Gradients already here are not copied."""
        _, views, flags = self._allocated()
        targets, sources, missing = [], [], []
        for parameter, view in zip(self.parameters, views, strict=True):
            gradient = parameter.grad
            if gradient is None:
                missing.append(view)
            elif gradient.is_sparse:
                raise StrategyError(
                    f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which the gradient buckets "
                    "cannot hold; build its layer with sparse=False."
                )
            elif gradient.data_ptr() != view.data_ptr():
                targets.append(view)
                sources.append(gradient)
        if targets:
            torch._foreach_copy_(targets, sources)
        for view in missing:
            view.zero_()
        flags.fill_(1)
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                flags[index] = 0

    @torch.no_grad()
    def expose(self) -> None:
        """Make what the buffer holds now, the means over the ranks, the parameters' gradients.

        The flags are read (a synchronisation on GPUs) only if this rank has parameters without a gradient.
        """
        _, views, flags = self._allocated()
        unused = [parameter.grad is None for parameter in self.parameters]
        used_somewhere = flags.tolist() if any(unused) else [1.0] * len(self.parameters)
        for parameter, view, flag in zip(self.parameters, views, used_somewhere, strict=True):
            if flag:
                parameter.grad = view


def make_buckets(parameters: Iterable[nn.Parameter], *, cap_bytes: int) -> list[GradientBucket]:
    """Buckets in the given order, each of one dtype and device and at most `cap_bytes` (a larger parameter is alone).

    Give the parameters in the order in which their gradients become ready. Every rank must give the same order.
    """
    open_buckets: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = defaultdict(list)
    open_bytes: dict[tuple[torch.dtype, torch.device], int] = defaultdict(int)
    buckets = []
    for parameter in parameters:
        key = (parameter.dtype, parameter.device)
        size_bytes = parameter.numel() * parameter.element_size()
        if open_buckets[key] and open_bytes[key] + size_bytes > cap_bytes:
            buckets.append(GradientBucket(open_buckets.pop(key)))
            open_bytes[key] = 0
        open_buckets[key].append(parameter)
        open_bytes[key] += size_bytes
    return buckets + [GradientBucket(rest) for rest in open_buckets.values()]
