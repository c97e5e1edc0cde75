"""Numbers and differences for people (floor 1)."""

from __future__ import annotations

_SAME = 0.0005  # what would be printed as 0.0%


def counted(number: int, what: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def more_or_less(what: str, now: float, before: float) -> str:
    """ "12.0% less energy", "3.1% more time", "as much cost"; where there was none before nothing is known of it."""
    if not before > 0.0:
        return f"{what} not known"
    change = now / before - 1.0
    if abs(change) < _SAME:
        return f"as much {what}"
    return f"{abs(change):.1%} {'more' if change > 0.0 else 'less'} {what}"
