"""A stack run by its own layers: what sequential execution is where nothing is sharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from energy_lightning.partition.autograd import announced
from energy_lightning.partition.calls import CACHE_NAMES
from energy_lightning.partition.execution import GradientsReady
from energy_lightning.partition.inspection import cache_length


def run_plain(
    layers: Sequence[nn.Module],
    hidden: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    checkpointed: bool,
    on_gradients_ready: GradientsReady | None,
) -> Tensor:
    """Calls one layer after the other on `hidden` with `args` and `kwargs`.

    In grad mode, `checkpointed` recomputes every layer in backward (unless a filled key-value cache forbids it), and
    `on_gradients_ready` hears of each layer's parameters.
    """
    recompute = checkpointed and torch.is_grad_enabled()
    caches = [kwargs.get(name) for name in CACHE_NAMES]
    if recompute and not any(cache_length(cache) for cache in caches):
        kwargs = {name: None if name in CACHE_NAMES else value for name, value in kwargs.items()}
    else:
        recompute = False
    for layer in layers:
        if on_gradients_ready is not None and torch.is_grad_enabled():
            hidden = announced(hidden, partial(_report, layer, on_gradients_ready))
        if recompute and not getattr(layer, "gradient_checkpointing", False):
            hidden = checkpoint(layer, hidden, *args, use_reentrant=False, **kwargs)
        else:
            hidden = layer(hidden, *args, **kwargs)
    return hidden  # type: ignore[no-any-return]


def _report(layer: nn.Module, on_gradients_ready: Callable[[list[nn.Parameter]], None]) -> None:
    on_gradients_ready([parameter for parameter in layer.parameters() if parameter.requires_grad])
