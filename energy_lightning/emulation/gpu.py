"""GPU: the constants of one GPU model, read from a YAML file. Every constant has a physical meaning and a unit."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energy_lightning.emulation.gpu_values import (
    check_clocks,
    check_lent_sms,
    checked_keys,
    checked_values,
    completed,
    packaged_names,
    packaged_values,
    read_values,
)
from energy_lightning.types import DeviceError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """SM clocks that can be locked, and the time a switch takes."""

    min_mhz: int
    max_mhz: int
    step_mhz: int
    switch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Matrix products.

    peak_flops_per_s: dense peak at the highest clock with all SMs, by dtype. *_efficiency: share of the peak that large
    products reach. gradient_efficiency: throughput of backward's linears relative to forward's (larger outputs fill the
    SMs better, transposed operands slow them). launch_overhead_s: time between two kernels of a stream.
    """

    peak_flops_per_s: Mapping[str, float]
    linear_efficiency: float
    attention_efficiency: float
    gradient_efficiency: float
    launch_overhead_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Device memory and the cache before it.

    sm_bytes_per_cycle: what one SM moves a clock cycle when the memory itself is no limit. cache_bytes_per_s: on-chip
    cache to SMs for the tiles of matrix products; it does not follow the SM clock.
    """

    bandwidth_bytes_per_s: float
    bandwidth_efficiency: float
    sm_bytes_per_cycle: float
    cache_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Collectives; the formula is in `timeline.collective_time_s`.

    p2p_bytes_per_s: what one GPU sends to its peer in the next pipeline stage.
    stall_s: wait for the slowest rank at the start, SMs held. link_bytes_per_s: what many SMs reach.
    slowdown_by_memory: relative slow-down of a collective beside an operator that saturates the memory;
    slowdown_by_linear: beside a linear, in addition. product_slowdown: of a linear beside a collective.
    default_sms: SMs that the communication library takes where nobody says how many.
    """

    link_bytes_per_s: float
    p2p_bytes_per_s: float
    latency_s: float
    sm_bytes_per_s: float
    sm_latency_share: float
    threads_exponent: float
    default_sms: int
    slowdown_by_memory: float
    slowdown_by_linear: float
    product_slowdown: float
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power at the reference temperature; entries that scale with f V^2 are given at the highest clock.

    static_w: leakage, memory refresh, board. idle_clock_w: clock tree (f V^2). blocking_w: measured draw while blocked
    on a peer. limit_w: the board's power limit as shipped; least_limit_w: the least one that can be set. sm_active_w:
    all SMs issuing (f V^2). *joule_per_flop scale with V^2. sm_collective_w: one SM spinning in a collective (f V^2);
    exposed_w: caches and memory controllers that nothing but a collective keeps awake, while it alone runs at the
    links' full rate (f V^2). Relative voltage = max(voltage_floor, 1 - voltage_slope x (1 - clock ratio)), the bend
    between the two rounded over about +-2 x voltage_rounding (0: sharp).
    """

    static_w: float
    blocking_w: float
    limit_w: float
    least_limit_w: float
    idle_clock_w: float
    sm_active_w: float
    joule_per_flop: float
    attention_joule_per_flop: float
    joule_per_byte: float
    joule_per_link_byte: float
    sm_collective_w: float
    exposed_w: float
    voltage_floor: float
    voltage_slope: float
    voltage_rounding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """One-node RC: temperature tends to ambient_c + resistance x power; leakage is linear around reference_c."""

    reference_c: float
    ambient_c: float
    resistance_c_per_w: float
    capacity_j_per_c: float
    leakage_w_per_c: float


_TYPES = {
    "clocks": Clocks,
    "compute": Compute,
    "memory": Memory,
    "collective": Links,
    "power": Power,
    "thermal": Thermal,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """One GPU model. `GPU.load(name)` reads a packaged one; `GPU.from_file(path)` reads yours."""

    name: str
    display_name: str
    num_sms: int
    memory_bytes: float
    clocks: Clocks
    compute: Compute
    memory: Memory
    collective: Links
    power: Power
    thermal: Thermal
    counter_refresh_s: float

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the packaged GPU models."""
        return packaged_names()

    @classmethod
    def load(cls, name: str) -> GPU:
        """A packaged GPU model; DeviceError naming near ones if unknown."""
        if name not in cls.names():
            near = [known for known in cls.names() if known.startswith(str(name))]
            near = near or difflib.get_close_matches(str(name), cls.names(), n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise DeviceError(f"unknown GPU {name!r}; {hint}known: {', '.join(cls.names())}")
        return cls.from_mapping(packaged_values(name), where=f"{name}.yaml")

    @classmethod
    def from_file(cls, path: str | Path) -> GPU:
        """A GPU model described in a YAML file of your own (same keys as the packaged ones).

        DeviceError if it cannot be read or used.
        """
        return cls.from_mapping(read_values(path), where=str(path))

    @classmethod
    def from_mapping(cls, data: Any, *, where: str = "GPU") -> GPU:
        """From plain nested values; DeviceError naming the first missing, unknown or unusable key.

        `based_on` may name a packaged model whose values hold where `data` has none.
        """
        values = dict(checked_keys(completed(data, cls.names(), where), cls, where))
        for section, kind in _TYPES.items():
            values[section] = kind(**checked_values(checked_keys(values[section], kind, f"{where}: {section}"), where))
        checked_values({name: value for name, value in values.items() if name not in _TYPES}, where)
        clocks, links = values["clocks"], values["collective"]
        check_clocks(clocks.min_mhz, clocks.max_mhz, clocks.step_mhz, where)
        check_lent_sms(links.default_sms, values["num_sms"], where)
        return cls(**values)

    @property
    def frequencies_mhz(self) -> tuple[int, ...]:
        """SM clocks that can be locked, ascending."""
        return tuple(range(self.clocks.min_mhz, self.clocks.max_mhz + 1, self.clocks.step_mhz))

    @property
    def max_frequency_mhz(self) -> int:
        """The highest SM clock."""
        return self.clocks.max_mhz

    @property
    def static_power_w(self) -> float:
        """Power drawn whatever the GPU does, at the reference temperature."""
        return self.power.static_w

    @property
    def blocking_power_w(self) -> float:
        """Power while blocked on a peer."""
        return self.power.blocking_w

    @property
    def power_limit_w(self) -> float:
        """Board power limit."""
        return self.power.limit_w

    @property
    def power_limit_range_w(self) -> tuple[float, float]:
        """(least, most) power limit that can be set; the most is the limit as shipped."""
        return min(self.power.least_limit_w, self.power.limit_w), self.power.limit_w

    @property
    def switch_time_s(self) -> float:
        """Time that a change of the locked clock takes."""
        return self.clocks.switch_s

    def peak_flops_per_s(self, dtype: str) -> float:
        """Dense peak at the highest clock; DeviceError if the GPU has no matrix products in `dtype`."""
        peaks = self.compute.peak_flops_per_s
        if dtype not in peaks:
            raise DeviceError(
                f"{self.display_name} has no {dtype} tensor cores, no matrix products in {dtype}; "
                f"choose {' or '.join(peaks)}"
            )
        return peaks[dtype]

    def clock_ratio(self, frequency_mhz: Any) -> Floats:
        """Clock relative to the highest; same shape as `frequency_mhz`."""
        return np.asarray(frequency_mhz, dtype=np.float64) / self.clocks.max_mhz

    def voltage_squared(self, frequency_mhz: Any) -> Floats:
        """V(f)^2 relative to the highest clock's; same shape as `frequency_mhz`."""
        power, clocks = self.power, np.append(np.ravel(self.clock_ratio(frequency_mhz)), 1.0)
        above = 1.0 - power.voltage_slope * (1.0 - clocks) - power.voltage_floor
        width = power.voltage_rounding
        bent = width * np.logaddexp(0.0, above / width) if width else np.maximum(above, 0.0)
        voltage = power.voltage_floor + bent
        squared: Floats = ((voltage[:-1] / voltage[-1]) ** 2).reshape(np.shape(frequency_mhz))
        return squared

    def check_frequency(self, frequency_mhz: float) -> None:
        """DeviceError naming the nearest clocks if `frequency_mhz` cannot be locked."""
        known = self.frequencies_mhz
        if frequency_mhz not in known:
            nearest = sorted(sorted(known, key=lambda f: abs(f - frequency_mhz))[:2])
            raise DeviceError(
                f"{self.display_name} has no SM clock of {frequency_mhz:g} MHz; nearest: "
                f"{', '.join(map(str, nearest))} (range {known[0]} to {known[-1]} MHz, step {self.clocks.step_mhz})"
            )

    def check_sm_count(self, sm_count: float) -> None:
        """DeviceError unless a collective may take `sm_count` SMs (one must be left to compute)."""
        if not (1 <= sm_count < self.num_sms and sm_count == int(sm_count)):
            raise DeviceError(
                f"{self.display_name} cannot lend {sm_count:g} SMs to a collective; choose 1 to {self.num_sms - 1}"
            )

    def with_constants(self, **constants: float) -> GPU:
        """A copy with constants replaced, each named "section__constant" (for fitting and what-if studies)."""
        changed: dict[str, dict[str, float]] = {}
        for name, value in constants.items():
            section, _, constant = name.partition("__")
            changed.setdefault(section, {})[constant] = value
        return replace(self, **{section: replace(getattr(self, section), **new) for section, new in changed.items()})
