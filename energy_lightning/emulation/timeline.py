"""Time and dynamic energy of one partition, for many configurations at once.

Two streams share one GPU. The compute stream runs operators in order; the collective starts beside one of them on
SMs of its own. While both run, the operator has fewer SMs and less memory bandwidth, matrix products also suffer in the
caches, and the collective advances more slowly the busier the operator keeps the memory. Rates are constant within
(operator, collective running or not), so each operator has a closed form and no time stepping is needed; all formulas
are elementwise over configurations.

Operator alone:  t = (compute^p + issue^p + dram^p + cache^p)^(1/p) + kernels x launch overhead, p = 3 (smooth maximum)
    compute = flops / (efficiencies x peak x clock ratio x SM share)          matrix units
    issue   = bytes / (SMs x clock x bytes per cycle)                       load/store path of the SMs
    dram    = bytes / (efficiency x bandwidth left by the collective)       device memory
    cache   = tiles' bytes / cache bandwidth, linears only                  on-chip cache to SMs; a clock of its own

Not modelled: wave quantisation, cache hits across operators, clock ramps.
Shapes: every array is (n,), n configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energy_lightning.emulation.gpu import GPU, Floats
from energy_lightning.workload import Collective, Operator
from energy_lightning.workload.operators import DTYPE_BYTES

_SMOOTHNESS = 3.0
# A ring step reads its input and writes its output: about two bytes of device memory for a byte on the wire.
_MEMORY_BYTES_PER_WIRE_BYTE = 2.0
# A tile of m x n outputs of a linear takes 2mn FLOPs for every m + n values that it reads of its operands. Tiles of
# 128 x 256; backward, where an operand is transposed, 128 x 64.
_FLOPS_PER_CACHED_VALUE = {False: 2 * 128 * 256 / (128 + 256), True: 2 * 128 * 64 / (128 + 64)}
# Attention keeps its tiles in the SMs, so it suffers less from sharing the caches than a linear; elementwise operators
# suffer through the device memory alone.
_SHARE_SLOWED = {"linear": 1.0, "attention": 0.5, "memory": 0.0}
# One SM feeds several peers at once, though not as fast as several SMs.
_PEERS_EXPONENT = 0.5
EXPOSED = -1


@dataclass(frozen=True, slots=True)
class Configurations:
    """n configurations of one partition.

    Attributes:
        frequency_mhz, sm_count, block_threads: (n,) floats.
        launch: (n,) integers, index of the operator beside which the collective starts, or EXPOSED.
        join: (n,) integers, index of the operator before which compute waits for the collective (after it, where it is
            launched beside that very operator); the number of operators: no wait before the end.
    """

    frequency_mhz: Floats
    sm_count: Floats
    block_threads: Floats
    launch: np.ndarray
    join: np.ndarray


def operator_time_s(
    operators: Sequence[Operator], gpu: GPU, frequency_mhz: Floats, num_sms: Floats | float, bandwidth: Floats | float
) -> tuple[Floats, Floats]:
    """Time (s) of k operators on `num_sms` SMs with `bandwidth` bytes/s of device memory, and the share of it that
    memory is busy: (k, n) each, all operators at once because most of the cost is numpy's per call."""
    overhead_s = gpu.compute.launch_overhead_s
    rows = [(o.flops, o.bytes, _cached_bytes(o), o.num_kernels * overhead_s, _flops_per_s(o, gpu)) for o in operators]
    flops, moved, cached, launches_s, peak = np.array(rows).reshape(-1, 5).T[:, :, None]
    compute = flops / (peak * (gpu.clock_ratio(frequency_mhz) * (num_sms / gpu.num_sms)))
    issue = moved / (gpu.memory.sm_bytes_per_cycle * num_sms * frequency_mhz * 1e6)
    dram = moved / bandwidth
    cache = cached / gpu.memory.cache_bytes_per_s
    busy = (compute**_SMOOTHNESS + issue**_SMOOTHNESS + dram**_SMOOTHNESS + cache**_SMOOTHNESS) ** (1.0 / _SMOOTHNESS)
    time_s = busy + launches_s
    return time_s, dram / np.maximum(time_s, 1e-15)  # an operator of no work takes no time


def _flops_per_s(operator: Operator, gpu: GPU) -> float:
    """What the operator reaches of the peak, all SMs at the highest clock."""
    efficiency = gpu.compute.attention_efficiency if operator.kind == "attention" else gpu.compute.linear_efficiency
    efficiency *= operator.efficiency * (gpu.compute.gradient_efficiency if operator.gradient else 1.0)
    return efficiency * gpu.peak_flops_per_s(operator.dtype)


def _cached_bytes(operator: Operator) -> float:
    """Bytes that the tiles of a linear read through the on-chip cache; other operators' reads are in `issue`."""
    if operator.kind != "linear":
        return 0.0
    return operator.flops / _FLOPS_PER_CACHED_VALUE[operator.gradient] * DTYPE_BYTES[operator.dtype]


def collective_time_s(collective: Collective, gpu: GPU, configurations: Configurations) -> Floats:
    """Time (s) of the collective with nothing beside it: the ranks meet, then its SMs or the links limit it.

    The limit by SMs is a / SMs with a falling as the clock rises; both limits are joined by a smooth maximum.
    """
    links, threads = gpu.collective, configurations.block_threads / 1024.0
    slower = links.sm_latency_share + (1.0 - links.sm_latency_share) / gpu.clock_ratio(configurations.frequency_mhz)
    peers = (collective.group_size - 1) ** _PEERS_EXPONENT
    per_sm = links.sm_bytes_per_s * peers * threads**links.threads_exponent / slower
    wire = collective.wire_bytes
    by_sms, by_links = wire / (configurations.sm_count * per_sm), wire / links.link_bytes_per_s
    moving_s: Floats = np.hypot(by_sms, by_links)
    return links.stall_s + links.latency_s + moving_s


def _operators_energy_j(operators: Sequence[Operator], gpu: GPU, v2: Floats) -> Floats:
    power = gpu.power
    per_flop = {"attention": power.attention_joule_per_flop}
    flops_j = sum(o.flops * per_flop.get(o.kind, power.joule_per_flop) for o in operators)
    return flops_j * v2 + power.joule_per_byte * sum(o.bytes for o in operators)


def _side_by_side(
    operators: Sequence[Operator], gpu: GPU, c: Configurations, bandwidth: Floats
) -> tuple[Floats, Floats]:
    """Time (s) of k operators while the collective runs beside each, and its speed relative to alone: (k, n) each."""
    links = gpu.collective
    time_s, memory_busy = operator_time_s(operators, gpu, c.frequency_mhz, gpu.num_sms - c.sm_count, bandwidth)
    rows = [(1.0 + _SHARE_SLOWED[o.kind] * links.product_slowdown, o.kind == "linear") for o in operators]
    slowed, is_linear = np.array(rows).reshape(-1, 2).T[:, :, None]
    beside_linear = links.slowdown_by_linear * is_linear
    return slowed * time_s, 1.0 / (1.0 + links.slowdown_by_memory * memory_busy / slowed + beside_linear)


def partition_time_and_energy(
    operators: Sequence[Operator], collective: Collective | None, gpu: GPU, configurations: Configurations
) -> tuple[Floats, Floats]:
    """Time (s) and energy (J, static included) per GPU, each (n,)."""
    c = configurations
    v2 = gpu.voltage_squared(c.frequency_mhz)
    fv2 = v2 * gpu.clock_ratio(c.frequency_mhz)
    power, bandwidth = gpu.power, gpu.memory.bandwidth_bytes_per_s * gpu.memory.bandwidth_efficiency
    solo_s, _ = operator_time_s(operators, gpu, c.frequency_mhz, float(gpu.num_sms), bandwidth)
    if collective is None:
        time_s: Floats = solo_s.sum(axis=0)
        active_s, collective_j = time_s, np.zeros_like(time_s)
    else:
        wire, alone_s = collective.wire_bytes, collective_time_s(collective, gpu, c)
        drawn = np.minimum(_MEMORY_BYTES_PER_WIRE_BYTE * wire / np.maximum(alone_s, 1e-12), 0.5 * bandwidth)
        beside = _side_by_side(operators, gpu, c, bandwidth - drawn)
        compute_s, together_s, exposed_s = _two_streams(solo_s, *beside, alone_s, c)
        time_s = exposed_s + compute_s
        active_s = compute_s - together_s * c.sm_count / gpu.num_sms
        full_rate_s = exposed_s * wire / gpu.collective.link_bytes_per_s / np.maximum(alone_s, 1e-12)
        collective_j = power.sm_collective_w * c.sm_count * (exposed_s + together_s) + power.exposed_w * full_rate_s
        collective_j = fv2 * collective_j + power.joule_per_link_byte * wire
    energy_j = _operators_energy_j(operators, gpu, v2) + collective_j + power.static_w * time_s
    return time_s, energy_j + fv2 * (power.idle_clock_w * time_s + power.sm_active_w * active_s)


def _two_streams(
    solo_s: Floats, shared_s: Floats, rate: Floats, alone_s: Floats, c: Configurations
) -> tuple[Floats, Floats, Floats]:
    """Time (s) that operators run, that the collective runs beside one of them and that it runs alone, (n,) each.

    solo_s, shared_s: every operator without and beside the collective, (k, n); rate: the collective's speed beside it.
    alone_s: the collective's time with nothing beside it, (n,).
    """
    first = c.launch == EXPOSED
    index = np.arange(len(solo_s))[:, None]
    waits = c.join >= c.launch  # joined before it is launched: no wait but the end
    beside = ~first & (c.launch <= index) & (~waits | (index < c.join) | (index == c.launch))
    advance_s = np.where(beside, shared_s * rate, 0.0)  # of the collective, in seconds of running alone
    left_s = np.maximum(alone_s - (np.cumsum(advance_s, axis=0) - advance_s), 0.0)
    beside_s = np.where(beside, np.minimum(shared_s, left_s / rate), 0.0)
    compute_s = beside_s + (1.0 - beside_s / np.maximum(shared_s, 1e-15)) * solo_s
    exposed_s = np.maximum(alone_s - advance_s.sum(axis=0), 0.0)
    return compute_s.sum(axis=0), beside_s.sum(axis=0), exposed_s
