"""Looking at what a forward asks for besides hidden states: outputs of every layer, caches, hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from energy_lightning.partition.layer_list import OnlyThroughEngine

_OUTPUTS = ("output_hidden_states", "output_attentions")
_CAPTURE_HOOK = "output_capturing_hook"  # transformers leaves it on layers; it does nothing unless outputs are wanted
_HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def wanted_outputs(config: Any, arguments: Mapping[str, Any]) -> str | None:
    """Which outputs of every layer are wanted ("hidden states", "attentions"), arguments before configuration."""
    for name in _OUTPUTS:
        if arguments.get(name, getattr(config, name, False)):
            return name.removeprefix("output_").replace("_", " ")
    return None


def cache_length(cache: Any) -> int:
    """Tokens in a transformers key-value cache; 0 without one."""
    return 0 if cache is None else int(cache.get_seq_length())


def foreign_hook(modules: Iterable[nn.Module]) -> str | None:
    """The first module hook that partitioned execution, which calls no layer as a module, would leave out."""
    for module in modules:
        for table in _HOOK_TABLES:
            for hook in getattr(module, table).values():
                if not isinstance(hook, OnlyThroughEngine) and getattr(hook, "__name__", "") != _CAPTURE_HOOK:
                    return f"a hook ({getattr(hook, '__qualname__', type(hook).__name__)}) on {type(module).__name__}"
    return None
