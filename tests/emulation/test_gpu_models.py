"""GPU models: what the files hold and what they refuse."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
import pytest
import yaml

from energy_lightning.emulation import GPU
from energy_lightning.types import DeviceError


def a100_values() -> dict[str, Any]:
    file = resources.files("energy_lightning.emulation").joinpath("gpus", "a100-sxm4-40gb.yaml")
    values: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return values


@pytest.mark.parametrize("name", GPU.names())
def test_every_packaged_model_loads_and_is_sane(name: str) -> None:
    gpu = GPU.load(name)
    assert gpu.name == name
    assert gpu.frequencies_mhz[-1] == gpu.max_frequency_mhz
    assert 0 < gpu.static_power_w <= gpu.blocking_power_w < gpu.power_limit_w
    assert gpu.voltage_squared(gpu.max_frequency_mhz) == pytest.approx(1.0)
    assert (np.diff(gpu.voltage_squared(gpu.frequencies_mhz)) >= 0).all()
    assert gpu.collective.default_sms < gpu.num_sms


def test_unknown_gpu_names_the_near_one() -> None:
    with pytest.raises(DeviceError, match="did you mean a100-sxm4-40gb"):
        GPU.load("a100-sxm-40gb")


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("power", "static_w", float("nan"), "static_w must be a finite number >= 0, got nan"),
        ("power", "static_w", "55 W", "got '55 W'"),
        ("memory", "bandwith", 1.0, "unknown key 'bandwith'"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(section: str, key: str, value: object, message: str) -> None:
    values = a100_values()
    values[section][key] = value
    with pytest.raises(DeviceError, match=f"mine.yaml.*{message}"):
        GPU.from_mapping(values, where="mine.yaml")


def test_a_missing_key_is_named() -> None:
    values = a100_values()
    del values["thermal"]["ambient_c"]
    with pytest.raises(DeviceError, match="thermal: missing key 'ambient_c'"):
        GPU.from_mapping(values, where="mine.yaml")


def test_a_model_based_on_another_takes_what_it_does_not_say() -> None:
    a100 = GPU.load("a100-sxm4-40gb")
    mine = GPU.from_mapping({"based_on": "h200-sxm", "name": "mine", "power": {"limit_w": 500.0}})
    assert (mine.name, mine.power_limit_w, mine.memory.bandwidth_bytes_per_s) == ("mine", 500.0, 4.8e12)
    assert mine.compute.linear_efficiency == a100.compute.linear_efficiency
    with pytest.raises(DeviceError, match="based_on names no packaged GPU: 'h300'"):
        GPU.from_mapping({"based_on": "h300"})


def test_a_dtype_the_gpu_lacks() -> None:
    with pytest.raises(DeviceError, match="no matrix products in bf16; choose fp16 or fp32"):
        GPU.load("v100").peak_flops_per_s("bf16")


def test_from_file(tmp_path: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(a100_values() | {"name": "mine"}))
    assert GPU.from_file(path).name == "mine"


def test_constants_are_replaced_in_a_copy() -> None:
    gpu = GPU.load("a100-sxm4-40gb")
    other = gpu.with_constants(power__static_w=60.0)
    assert other.static_power_w == 60.0
    assert gpu.static_power_w != 60.0
