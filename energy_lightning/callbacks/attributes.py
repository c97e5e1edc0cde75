"""Attributes of a user's module or data from which loaders and optimizers are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from energy_lightning.recurring import RecurringError


def change_attribute(owners: Sequence[Any], name: str, change: Callable[[Any], Any]) -> None:
    """Set `name` to `change(what it is)` on every owner that has it, also in its `hparams`.

    Raises RecurringError where none has it; nothing is changed then.
    """
    found = False
    for owner in owners:
        hparams: Any = getattr(owner, "hparams", None)
        in_hparams = isinstance(hparams, Mapping) and name in hparams
        if owner is None or not (hasattr(owner, name) or in_hparams):
            continue
        found = True
        value = change(hparams[name] if in_hparams else getattr(owner, name))
        if in_hparams:
            hparams[name] = value
        if name in vars(owner) or not in_hparams:
            setattr(owner, name, value)
    if not found:
        kinds = " or ".join(type(owner).__name__ for owner in owners if owner is not None)
        raise RecurringError(
            f"neither attribute nor hparams of {kinds} holds {name!r}: make it there (self.{name} = ...) and use it "
            "where loaders and optimizers are made, or name another attribute"
        )
