"""What the execution engine and the gradient reducer ask of a collective backend, whatever runs it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from energy_lightning.collectives.grants import GrantLedger


class Handle(Protocol):
    """One running collective.

    Attributes:
        asked_sm_count: SMs the schedule asked for; None: left to the backend.
        granted_sm_count: SMs the backend lends at most; None where it decides for itself or cannot tell.
    """

    @property
    def asked_sm_count(self) -> int | None: ...  # noqa: D102 - see Attributes
    @property
    def granted_sm_count(self) -> int | None: ...  # noqa: D102 - see Attributes

    def wait(self) -> Tensor:
        """The result, safe to use by whatever the current stream (CPU: this thread) runs next. Idempotent."""
        ...


class Collectives(Protocol):
    """Asynchronous collectives over one group of ranks; every rank of the group makes the same calls in order.

    Tensors are contiguous; the caller leaves them alone between the call and `wait`. `sm_count` and
    `block_threads` are wishes: `supports_sm_count` says whether they are honoured, the handle what was granted.

    All raise CollectivesError for a tensor that the backend cannot take and where the library reports a failure.
    """

    name: str
    supports_sm_count: bool
    grants: GrantLedger
    """What was asked and granted so far."""

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    @property
    def rank(self) -> int:
        """This process's rank within the group."""
        ...

    def all_reduce(
        self, tensor: Tensor, *, average: bool = False, sm_count: int | None = None, block_threads: int | None = None
    ) -> Handle:
        """Sum (or mean: the sum, then divided) over the group, in place; `wait` returns `tensor`."""
        ...

    def all_gather(self, tensor: Tensor, *, sm_count: int | None = None, block_threads: int | None = None) -> Handle:
        """Every rank's `tensor` (n, ...) stacked along dim 0 in rank order; `wait` returns (size * n, ...)."""
        ...

    def reduce_scatter(
        self, tensor: Tensor, *, average: bool = False, sm_count: int | None = None, block_threads: int | None = None
    ) -> Handle:
        """Sum (or mean) of `tensor` (size * n, ...), of which rank r keeps block r; `wait` returns (n, ...)."""
        ...

    def close(self, *, in_step: bool = True) -> None:
        """Release communicators and buffers. Idempotent; collective over the group when `in_step`.

        `in_step` False: other ranks may have failed, so nothing is waited for.
        """
        ...
