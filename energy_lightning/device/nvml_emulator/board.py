"""EmulatedBoard: what one emulated board is and how it behaves, fixed before it is switched on."""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from energy_lightning.device.nvml_emulator.client.signatures import SIGNATURES
from energy_lightning.device.nvml_emulator.products import PRODUCTS, Product
from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError

PERMISSIONS = ("sm_clock", "memory_clock", "power_limit", "persistence")
_NAMESPACE = uuid.UUID("5b1f3a40-9d0e-4c57-8a55-6a7f6f9d6c11")  # makes default UUIDs the same on every machine


@dataclass(frozen=True, kw_only=True)
class EmulatedBoard:
    """One board of an emulated machine.

    Attributes:
        gpu: GPU model: the name of a packaged one, or yours.
        uuid, serial, pci_bus_id: as NVML gives them; None: made from the board's index.
        permissions: what this process's user may set, of "sm_clock", "memory_clock", "power_limit", "persistence".
        has_counter: False: the energy counter is NOT_SUPPORTED (boards before Volta).
        has_power, has_power_fields: the same for nvmlDeviceGetPowerUsage, and for power as field values.
        has_clock_control, has_power_control: the same for locked clocks and for setting the power limit.
        has_mig: it can be sliced; None: as the product. `mig_uuids`: UUIDs ("MIG-...") of its slices; any: MIG is on.
        architecture: nvmlDeviceArchitecture_t; None: the product's.
        counter_refresh_s: energy and power move only so often; 0: always exact; None: the GPU model's.
        power_noise_w: standard deviation of power readings (not of energy), seeded by `seed`; real sensors have some.
        average_s: span of the averaged power reading.
        clock_lag_s: time from a set or reset of locked clocks until the clock follows; None: the GPU model's.
        power_limit_w: the limit in force at the start; None: the default one.
        default_limit_w, limit_range_w: default limit, and the least and the highest that can be set; None: the model's.
        limit_granularity_w: limits are rounded to multiples of it; 0: taken as they are.
        locked_mhz: SM clocks (least, most) that were locked before; None: none.
        persistence: persistence mode at the start.
        counter_j: what the energy counter shows at the start.
        temperature_c: chip temperature at the start; None: that of an idle board.
        errors: C function -> return code that it always ends with.
        fail_after: C function -> (calls that still work, return code of all later ones).

    Raises:
        DeviceError: a value that no board has.
    """

    gpu: str | GPU = "a100-sxm4-40gb"
    uuid: str | None = None
    serial: str | None = None
    pci_bus_id: str | None = None
    permissions: tuple[str, ...] = PERMISSIONS
    has_counter: bool = True
    has_power: bool = True
    has_power_fields: bool = True
    has_clock_control: bool = True
    has_power_control: bool = True
    has_mig: bool | None = None
    mig_uuids: tuple[str, ...] = ()
    architecture: int | None = None
    counter_refresh_s: float | None = None
    average_s: float = 1.0
    power_noise_w: float = 0.0
    seed: int = 0
    clock_lag_s: float | None = None
    power_limit_w: float | None = None
    default_limit_w: float | None = None
    limit_range_w: tuple[float, float] | None = None
    limit_granularity_w: float = 0.0
    locked_mhz: tuple[int, int] | None = None
    persistence: bool = True
    counter_j: float = 0.0
    temperature_c: float | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    fail_after: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_permissions(self.permissions)
        for name in (*self.errors, *self.fail_after):
            check_function(name)
        for name in ("counter_refresh_s", "clock_lag_s", "average_s", "power_noise_w", "counter_j"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < float("inf"):
                raise DeviceError(f"{name} of an emulated board must be a number >= 0, got {value!r}")
        least_w, most_w = self.limits_w
        for name, limit_w in {"default_limit_w": self.shipped_limit_w, "power_limit_w": self.start_limit_w}.items():
            if not 0.0 < least_w <= limit_w <= most_w:
                raise DeviceError(f"{name} must be within {least_w:g} to {most_w:g} W (limit_range_w), got {limit_w!r}")

    @cached_property
    def model(self) -> GPU:
        """The GPU model; DeviceError if it is unknown."""
        return self.gpu if isinstance(self.gpu, GPU) else GPU.load(self.gpu)

    @cached_property
    def product(self) -> Product:
        """What NVML tells about the product; that of an A100 for models that are not packaged."""
        return PRODUCTS.get(self.model.name, Product())

    @property
    def shipped_limit_w(self) -> float:
        """Default power limit in W."""
        return self.model.power_limit_w if self.default_limit_w is None else self.default_limit_w

    @property
    def start_limit_w(self) -> float:
        """Power limit in W when the emulator starts."""
        return self.shipped_limit_w if self.power_limit_w is None else self.power_limit_w

    @cached_property
    def limits_w(self) -> tuple[float, float]:
        """Least and highest power limit that can be set, in W."""
        power = self.model.power
        return self.limit_range_w or (min(power.least_limit_w, power.limit_w), power.limit_w)

    @property
    def can_slice(self) -> bool:
        """Whether the board knows MIG."""
        known = self.product.has_mig if self.has_mig is None else self.has_mig
        return known or bool(self.mig_uuids)

    @property
    def nvml_architecture(self) -> int:
        """nvmlDeviceArchitecture_t."""
        return self.product.architecture if self.architecture is None else self.architecture

    @cached_property
    def name(self) -> str:
        """Product name as NVML gives it."""
        return f"NVIDIA {self.model.display_name}"

    def uuid_at(self, index: int) -> str:
        """UUID of the board at `index` of its machine."""
        return self.uuid or f"GPU-{uuid.uuid5(_NAMESPACE, str(index))}"

    def serial_at(self, index: int) -> str:
        """Serial number of the board at `index` of its machine."""
        return self.serial or f"{1320000000000 + index}"

    def pci_bus_id_at(self, index: int) -> str:
        """PCI bus id, domain:bus:device.function, of the board at `index` of its machine."""
        return self.pci_bus_id or f"00000000:{7 + 8 * index:02X}:00.0"


def check_permissions(permissions: Sequence[str]) -> None:
    """DeviceError naming the first that is none."""
    if unknown := [name for name in permissions if name not in PERMISSIONS]:
        raise DeviceError(f"unknown permission {unknown[0]!r} of a board; known: {', '.join(PERMISSIONS)}")


def check_function(name: str) -> None:
    """DeviceError naming near ones unless the C function `name` is served."""
    if name not in SIGNATURES:
        near = difflib.get_close_matches(name, SIGNATURES, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "give the C name, e.g. nvmlDeviceSetGpuLockedClocks"
        raise DeviceError(f"the emulated NVML has no function {name!r}; {hint}")
