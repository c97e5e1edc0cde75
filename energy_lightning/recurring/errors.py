"""What a recurring job refuses, and numbers that users give, checked (floor 1)."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from energy_lightning.errors import EnergyLightningError


class RecurringError(EnergyLightningError):
    """A setting or a reported run that a recurring job cannot have."""


class StoreError(RecurringError):
    """A store that is not ours, is damaged, or cannot be written; it was left as it is."""


class TargetNeverReachedError(RecurringError):
    """Every batch size was tried and none reached the target metric."""


class TargetNeverReachedWarning(UserWarning):
    """No batch size has reached the target, so the default one is kept."""


def number(name: str, value: Any, example: str) -> float:
    """`value` as a plain float, also of numpy or torch; RecurringError for what is no number. The range is not checked.

    Text is no number ("5%" would be read wrongly by whoever wrote it), and neither is True.
    """
    if not _is_text_or_truth(value):
        with suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise RecurringError(f"{name} must be a number, got {value!r}: give e.g. {example}")


def positive(name: str, value: Any, example: str) -> float:
    """As `number`; RecurringError too for what is not above 0, infinite or NaN."""
    plain = number(name, value, example)
    if not 0.0 < plain < math.inf:
        raise RecurringError(f"{name} must be positive and finite, got {value!r}: give e.g. {example}")
    return plain


def whole(name: str, value: Any, *, least: int, most: float = math.inf) -> int:
    """`value` as a plain int, also of numpy; 8.0 is 8. RecurringError for 8.5, text, True, and what is out of range."""
    plain: int | None = None
    if not _is_text_or_truth(value):
        with suppress(TypeError, ValueError, OverflowError):
            plain = int(value) if float(value) == int(value) else None
    if plain is None or not least <= plain <= most:
        limits = f"{least} or more" if most == math.inf else f"{least} to {most:.0f}"
        raise RecurringError(f"{name} must be a whole number, {limits}, got {value!r}")
    return plain


def truth(name: str, value: Any) -> bool:
    """`value` as a plain bool, also of numpy or torch; RecurringError for None, text, and what is neither 0 nor 1."""
    plain: Any = value
    if hasattr(value, "item"):
        with suppress(ValueError, RuntimeError):  # numpy's, torch's: more than one value
            plain = value.item()
    if isinstance(plain, (bool, int, float)) and plain in (0, 1):
        return bool(plain)
    raise RecurringError(f"{name} must be True or False, got {value!r}")


def _is_text_or_truth(value: Any) -> bool:
    return isinstance(value, (bool, str, bytes)) or str(getattr(value, "dtype", "")).endswith("bool")
