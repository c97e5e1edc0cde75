"""Host: what a device uses of the process that opens it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This process, unless a test gives another.

    Attributes:
        environment: where CUDA_VISIBLE_DEVICES and the state directory are looked up.
        torch: module torch, or None where nobody has imported it.
        clock_s: monotonic time in s.
        sleep: waits for a time in s.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    torch: Any = field(default_factory=lambda: sys.modules.get("torch"))
    clock_s: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep

    @property
    def has_cuda(self) -> bool:
        """Whether torch is there and sees a CUDA GPU."""
        return self.torch is not None and bool(self.torch.cuda.is_available())
