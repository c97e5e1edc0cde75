"""What the engine did, in order, for tests and for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event of the engine.

    Attributes:
        kind: "op": an operator (in backward: its gradient) is about to run. "launch": a collective is issued.
            "wait": its result is about to be used.
        key, layer, nanobatch: the partition that runs the operator, or whose output the collective sums.
        operator: the operator; for a launch, the one beside which it happens (None: nothing hides it).
        beside: for a launch, the key of the partition whose compute hides it (None: nothing hides it).
        asked_sm_count, granted_sm_count: of a launch; see Handle.
    """

    kind: Literal["op", "launch", "wait"]
    key: str
    operator: str | None
    nanobatch: int
    layer: int
    beside: str | None = None
    asked_sm_count: int | None = None
    granted_sm_count: int | None = None
