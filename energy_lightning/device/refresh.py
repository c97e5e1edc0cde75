"""How often a device's energy counter moves."""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from energy_lightning.device.protocol import Device

PROBE_INTERVAL_S = 0.001
PROBE_LIMIT_S = 1.0


def probe_refresh_s(device: Device, *, num_changes: int = 4, limit_s: float = PROBE_LIMIT_S) -> float:
    """How often the device's energy counter moves, in s: the median gap between changes while polling.

    Polls every millisecond (of the device's own clock) until `num_changes` gaps were seen or `limit_s` passed. A
    counter that never moved is said to refresh every `limit_s`: windows must be longer than that.
    """
    start_s, last_j, changes_s = device.now_s(), device.energy_j(), list[float]()
    while len(changes_s) <= num_changes and device.now_s() - start_s < limit_s:
        device.idle(PROBE_INTERVAL_S)
        reading_j = device.energy_j()
        if reading_j != last_j:
            changes_s.append(device.now_s())
            last_j = reading_j
    gaps_s = [after - before for before, after in itertools.pairwise(changes_s)]
    return statistics.median(gaps_s) if gaps_s else limit_s
