"""Reading and checking what a GPU's YAML file holds, before it becomes a `GPU`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from energy_lightning.types import DeviceError

_COUNTS = {"num_sms", "min_mhz", "max_mhz", "step_mhz", "default_sms"}
_WORDS = {"name", "display_name"}
_BY_DTYPE = {"peak_flops_per_s"}
# Divisors of the model: with a zero, times are infinite.
_POSITIVE = {
    *("memory_bytes", "linear_efficiency", "attention_efficiency", "gradient_efficiency", "peak_flops_per_s"),
    *("bandwidth_bytes_per_s", "bandwidth_efficiency", "sm_bytes_per_cycle", "cache_bytes_per_s"),
    *("link_bytes_per_s", "p2p_bytes_per_s", "sm_bytes_per_s", "limit_w", "voltage_floor"),
    *("resistance_c_per_w", "capacity_j_per_c"),
}


def read_values(path: str | Path) -> Any:
    """What the YAML file at `path` holds; DeviceError if it cannot be read."""
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DeviceError(f"cannot read the GPU file {path}: {error.strerror}; give the path of a YAML file") from error
    except UnicodeDecodeError as error:
        raise DeviceError(f"the GPU file {path} is no text ({error.reason}); give the path of a YAML file") from error
    except yaml.YAMLError as error:
        raise DeviceError(f"the GPU file {path} is no YAML: {' '.join(str(error).split())}") from error


def packaged_names() -> tuple[str, ...]:
    """Names of the packaged GPU models."""
    folder = resources.files("energy_lightning.emulation").joinpath("gpus")
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def packaged_values(name: str) -> Any:
    """What the packaged file of the model `name` holds."""
    file = resources.files("energy_lightning.emulation").joinpath("gpus", f"{name}.yaml")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def completed(data: Any, names: Sequence[str], where: str) -> Any:
    """`data` on top of the model that it is based on (one level of sections)."""
    if not isinstance(data, Mapping) or "based_on" not in data:
        return data
    if data["based_on"] not in names:
        raise DeviceError(f"{where}: based_on names no packaged GPU: {data['based_on']!r}; known: {', '.join(names)}")
    base = dict(completed(packaged_values(data["based_on"]), names, where))
    for key, value in data.items():
        if key != "based_on":
            nested = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
            base[key] = {**base[key], **value} if nested else value
    return base


def checked_keys(data: Any, kind: type, where: str) -> Mapping[str, Any]:
    """`data` if it is a mapping with exactly the fields of the dataclass `kind`; else DeviceError."""
    known = {field.name for field in fields(kind)}
    if not isinstance(data, Mapping):
        raise DeviceError(f"{where}: expected a mapping with the keys {', '.join(sorted(known))}, got {data!r}")
    if unknown := sorted(str(key) for key in data if key not in known):
        raise DeviceError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    if missing := sorted(known - set(data)):
        raise DeviceError(f"{where}: missing key {missing[0]!r}")
    return data


def checked_values(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` if each is what its name needs (words, counts, positive or other numbers); else DeviceError."""
    for name, value in values.items():
        if name in _WORDS:
            if not (isinstance(value, str) and value):
                raise DeviceError(f"{where}: {name} must be a word, got {value!r}")
        elif name in _BY_DTYPE:
            if not (isinstance(value, Mapping) and value):
                raise DeviceError(
                    f"{where}: {name} must map formats to numbers, e.g. {{bf16: 312.0e+12}}, got {value!r}"
                )
            for dtype, number in value.items():
                _check_number(f"{name}.{dtype}", number, name in _POSITIVE, where)
        elif name in _COUNTS:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DeviceError(f"{where}: {name} must be a whole number >= 1, got {value!r}")
        else:
            _check_number(name, value, name in _POSITIVE, where)
    return dict(values)


def check_clocks(min_mhz: int, max_mhz: int, step_mhz: int, where: str) -> None:
    """DeviceError unless steps lead from the lowest clock to the highest."""
    if max_mhz < min_mhz or (max_mhz - min_mhz) % step_mhz:
        raise DeviceError(
            f"{where}: clocks must lead from min_mhz to max_mhz in steps of step_mhz, got {min_mhz} to {max_mhz} in "
            f"steps of {step_mhz}"
        )


def check_lent_sms(default_sms: int, num_sms: int, where: str) -> None:
    """DeviceError unless a collective's default leaves an SM to compute."""
    if default_sms >= num_sms:
        raise DeviceError(f"{where}: collective.default_sms must be below num_sms = {num_sms}, got {default_sms}")


def _check_number(name: str, value: Any, positive: bool, where: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (positive and value == 0):
        raise DeviceError(f"{where}: {name} must be a finite number {'>' if positive else '>='} 0, got {value!r}")
