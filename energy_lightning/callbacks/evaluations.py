"""How often a run's target could newly be met: how finely the length of the run is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self


@dataclass(slots=True, kw_only=True)
class Evaluations:
    """Counts them in a run: validations, where the metric comes from these, and otherwise training epochs.

    A metric that is there before a validation does not come from it.

    Attributes:
        monitor: name of the metric.
        validations, epochs: that ended so far, also in processes before this one.
        kind: which of them count; None while the metric was not logged.
        amid_epoch: whether a validation has ended since an epoch did.
    """

    monitor: str
    validations: int = 0
    epochs: int = 0
    kind: Literal["validations", "epochs"] | None = None
    amid_epoch: bool = False

    @classmethod
    def resumed(cls, monitor: str, state: Mapping[str, Any] | None) -> Self | None:
        """As a checkpoint's `state` has it; None where a checkpoint of an earlier version has none: not known then."""
        return None if state is None else cls(**{**state, "monitor": monitor})

    def state(self) -> dict[str, Any]:
        """For a checkpoint: plain values."""
        return asdict(self)

    def validation_begins(self, metrics: Mapping[str, Any]) -> None:
        """`metrics` as logged before it."""
        self._see(metrics, "epochs")

    def validation_ended(self, metrics: Mapping[str, Any]) -> None:
        """`metrics` with those of the validation."""
        self.validations, self.amid_epoch = self.validations + 1, True
        self._see(metrics, "validations")

    def epoch_ended(self, metrics: Mapping[str, Any]) -> None:
        """A training epoch."""
        self.epochs, self.amid_epoch = self.epochs + 1, False
        self._see(metrics, "epochs")

    def completed(self, metrics: Mapping[str, Any], *, reached: bool) -> int | None:
        """How many; None before the first. A run that `reached` its target did so in the last of them.

        That is the epoch in progress where a validation found the target in what training had logged.
        """
        self._see(metrics, "epochs")
        if self.kind is None:
            return None
        epochs = self.epochs + (reached and self.amid_epoch)
        return (self.validations if self.kind == "validations" else epochs) or None

    def _see(self, metrics: Mapping[str, Any], kind: Literal["validations", "epochs"]) -> None:
        if self.kind is None and self.monitor in metrics:
            self.kind = kind
