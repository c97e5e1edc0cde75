"""The callbacks that a run under `kareus` needs, added where the user gave none."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from energy_lightning.types import StrategyError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_LIGHTNING = ("lightning", "pytorch_lightning")
_AVERAGING = ("WeightAveraging", "StochasticWeightAveraging")


def check_callback_options(options: Mapping[str, Any], callback_types: Mapping[str, type]) -> None:
    """Raise StrategyError for options of a callback that does not exist, and for options that a callback lacks."""
    unknown = sorted(set(options) - set(callback_types))
    if unknown:
        raise StrategyError(
            f"callback_options has an entry {unknown[0]!r}; the default callbacks are {', '.join(callback_types)}"
        )
    for name, arguments in options.items():
        known = list(inspect.signature(callback_types[name]).parameters)
        if lacking := sorted(set(arguments) - set(known)):
            raise StrategyError(f"callback_options: {name} has no option {lacking[0]!r}; known: {', '.join(known)}")


def check_callbacks_with_sharding(trainer: Trainer) -> None:
    """Raise StrategyError for a callback that averages weights, which tensor parallelism splits between ranks.

    Lightning's averaging callbacks copy the model before the strategy shards it, and fail only epochs later.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        names = {cls.__name__ for cls in type(callback).__mro__ if cls.__module__.partition(".")[0] in _LIGHTNING}
        if names & set(_AVERAGING):
            raise StrategyError(
                f"{type(callback).__name__} averages whole weights, but tensor_parallel_size > 1 leaves each rank a "
                "part of them. Use tensor_parallel_size=1, or train without the callback."
            )


def add_missing_callbacks(
    trainer: Trainer, callback_types: Mapping[str, type], options: Mapping[str, Mapping[str, Any]]
) -> None:
    """Append a default of each type that the trainer does not have yet; checkpoint callbacks stay last.

    Raises StrategyError for one of our callbacks made for the other Lightning package: its hooks would not be called.
    """
    callbacks = list(trainer.callbacks)  # type: ignore[attr-defined]
    for callback in callbacks:
        ours = callback_types.get(type(callback).__name__)
        if ours is not None and type(callback).__module__.startswith("energy_lightning") and type(callback) is not ours:
            raise StrategyError(
                f"{type(callback).__module__}.{ours.__name__} is made for the other Lightning package; "
                f"import {ours.__name__} from {ours.__module__}"
            )
    for name, callback_type in callback_types.items():
        if not any(isinstance(callback, callback_type) for callback in callbacks):
            callbacks.append(callback_type(**options.get(name, {})))
    # Lightning's own order: tuners first, checkpoints last
    trainer.callbacks = trainer._callback_connector._reorder_callbacks(callbacks)  # type: ignore[attr-defined]
