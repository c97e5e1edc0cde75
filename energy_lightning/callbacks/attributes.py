"""Attributes of a user's module or data from which loaders and optimizers are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energy_lightning.recurring import RecurringError, scaled_learning_rate


def change_attribute(owners: Sequence[Any], name: str, change: Callable[[Any], Any]) -> None:
    """Set `name` to `change(what it is)` on every owner that has it, also in its `hparams`.

    Raises RecurringError where none has it; nothing is changed then. A property without a setter follows another.
    """
    found = False
    for owner in owners:
        hparams: Any = getattr(owner, "hparams", None)
        in_hparams = isinstance(hparams, Mapping) and name in hparams
        is_attribute = hasattr(owner, name) and getattr(getattr(type(owner), name, None), "fset", ...) is not None
        if not (in_hparams or is_attribute):
            continue
        found = True
        value = change(hparams[name] if in_hparams else getattr(owner, name))
        if in_hparams:
            hparams[name] = value
        if is_attribute:
            setattr(owner, name, value)
    if not found:
        kinds = " or ".join(type(owner).__name__ for owner in owners if owner is not None)
        raise RecurringError(
            f"neither attribute nor hparams of {kinds} holds {name!r} (a property needs a setter): make it there "
            f"(self.{name} = ...) and use it where loaders and optimizers are made, or name another attribute"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAttributes:
    """Names of the attributes that hold batch size and learning rate, and how the rate goes with the size.

    Raises RecurringError for what is no name, and for an unknown rule (see `scaled_learning_rate`).
    """

    batch_size: str
    learning_rate: str
    scaling: str

    def __post_init__(self) -> None:
        scaled_learning_rate(1.0, batch_size=1, default=1, rule=self.scaling)
        for name, value in {"batch_size": self.batch_size, "learning_rate": self.learning_rate}.items():
            if not isinstance(value, str) or not value:
                raise RecurringError(f"{name} must be the name of an attribute, e.g. {name!r}, got {value!r}")

    def change(self, owners: Sequence[Any], batch_size: int, *, ours: int | None, default: int) -> None:
        """Set the batch size, and scale the learning rate to it: from that of `ours` where it was set, or of `default`.

        Raises RecurringError where no owner has an attribute, or the rate is no number.
        """
        found: list[Any] = []

        def replaced(before: Any) -> int:
            found.append(before)
            return batch_size

        change_attribute(owners, self.batch_size, replaced)
        if self.scaling == "none":
            return
        previous = ours if ours is not None and ours in found else default

        def scaled(rate: Any) -> float:
            try:
                plain = float(rate)
            except (TypeError, ValueError) as error:
                raise RecurringError(
                    f"{self.learning_rate} must be a number to be scaled, got {rate!r}: make it one, or give "
                    "scaling='none'"
                ) from error
            return scaled_learning_rate(plain, batch_size=batch_size, default=previous, rule=self.scaling)

        change_attribute(owners, self.learning_rate, scaled)
