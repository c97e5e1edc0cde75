"""GPU models: what the files hold and what they refuse."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
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
        ("memory", "bandwidth_bytes_per_s", 0, "bandwidth_bytes_per_s must be a finite number > 0, got 0"),
        ("collective", "sm_bytes_per_s", 0.0, "sm_bytes_per_s must be a finite number > 0, got 0.0"),
        ("collective", "default_sms", 108, "default_sms must be below num_sms = 108, got 108"),
        ("clocks", "step_mhz", 0, "step_mhz must be a whole number >= 1, got 0"),
        ("clocks", "max_mhz", 1410.0, "max_mhz must be a whole number >= 1, got 1410.0"),
        ("clocks", "min_mhz", 2010, "clocks must lead from min_mhz to max_mhz"),
        ("clocks", "step_mhz", 7, "in steps of step_mhz, got 210 to 1410 in steps of 7"),
        ("compute", "peak_flops_per_s", 312.0e12, "peak_flops_per_s must map formats to numbers"),
        ("compute", "peak_flops_per_s", {"bf16": 0.0}, "peak_flops_per_s.bf16 must be a finite number > 0, got 0.0"),
        ("compute", "linear_efficiency", {"bf16": 0.5}, "linear_efficiency must be a finite number > 0"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(section: str, key: str, value: object, message: str) -> None:
    values = a100_values()
    values[section][key] = value
    with pytest.raises(DeviceError, match=f"mine.yaml.*{message}"):
        GPU.from_mapping(values, where="mine.yaml")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_sms", "108", "num_sms must be a whole number >= 1, got '108'"),
        ("memory_bytes", float("nan"), "memory_bytes must be a finite number > 0, got nan"),
        ("counter_refresh_s", -0.1, "counter_refresh_s must be a finite number >= 0, got -0.1"),
        ("display_name", None, "display_name must be a word, got None"),
    ],
)
def test_a_bad_value_outside_the_sections_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(DeviceError, match=f"mine.yaml.*{message}"):
        GPU.from_mapping(a100_values() | {key: value}, where="mine.yaml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"cannot read the GPU file .*mine\.yaml: No such file"):
        GPU.from_file(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x81")
    with pytest.raises(DeviceError, match=r"mine\.yaml is no text"):
        GPU.from_file(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text("power: [")
    with pytest.raises(DeviceError, match=r"mine\.yaml is no YAML"):
        GPU.from_file(tmp_path / "mine.yaml")


@pytest.mark.parametrize("name", [None, 3])
def test_a_gpu_name_that_is_no_word_is_unknown(name: object) -> None:
    with pytest.raises(DeviceError, match=f"unknown GPU {name!r}"):
        GPU.load(name)  # type: ignore[arg-type]


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
