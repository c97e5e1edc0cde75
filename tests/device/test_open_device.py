"""open_device: names, the automatic choice and its one line."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from energy_lightning.device import DEVICES, EmulatedDevice, describe_mode, open_device
from energy_lightning.device.host import Host
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.types import DeviceError
from energy_lightning.workload import Workload

BERT = Workload.preset("bert_base")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(DeviceError, match="unknown device 'nvdia'; known: auto, emulated, nvidia"):
        open_device("nvdia", workload=BERT)
    with pytest.raises(DeviceError, match="unknown GPU 'a100'; did you mean"):
        open_device("emulated", gpu="a100", workload=BERT)


def test_without_a_gpu_auto_is_emulated_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energy_lightning.device.opening._cuda_is_available", lambda: False)
    device = open_device("auto", workload=BERT)
    assert device.emulated
    assert [r.message for r in caplog.records] == [
        "No NVIDIA GPU: time and energy below are EMULATED (A100-SXM4-40GB model)"
    ]


def test_with_a_gpu_auto_takes_it_and_says_in_one_line_what_it_permits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energy_lightning.device.opening._cuda_is_available", lambda: True)
    monkeypatch.setattr("energy_lightning.device.finding.Host.has_cuda", False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with NvmlEmulator([EmulatedBoard(permissions=())]), caplog.at_level(logging.INFO, logger="energy_lightning"):
        device = open_device("auto", workload=BERT, torch_device=0, job="a job", seed=3)
        assert (device.emulated, device.mode) == (False, "measure-only")
        lines = [r.message for r in caplog.records if r.name == "energy_lightning.device.opening"]
        assert lines == [describe_mode(device)]


def test_what_nvidia_takes_by_name_reaches_it_and_an_emulated_device_has_no_use_for_the_job(tmp_path: Path) -> None:
    host = Host(environment={"XDG_STATE_HOME": str(tmp_path)}, torch=None)
    with NvmlEmulator([EmulatedBoard()]):
        device = open_device("nvidia", workload=BERT, static_power_w=12.0, host=host, job="a job")
        assert device.static_power_w == 12.0
        device.close()
    assert open_device("emulated", workload=BERT, job="a job").emulated


def test_options_reach_the_emulated_device() -> None:
    device = open_device("emulated", workload=BERT, counter_refresh_s=0.1)
    device.idle(0.05)
    assert device.energy_j() == 0.0


def test_a_device_of_ones_own() -> None:
    made = []

    def mine(**arguments: object) -> EmulatedDevice:
        made.append(arguments)
        return open_device("emulated", workload=BERT)  # type: ignore[return-value]

    assert open_device("mine", workload=BERT, devices={**DEVICES, "mine": mine}).emulated
    assert len(made) == 1


def test_neither_torch_nor_nvml_is_imported() -> None:
    code = (
        "import sys; from energy_lightning.device import open_device; from energy_lightning.workload import Workload; "
        "open_device('auto', workload=Workload.preset('bert_base')); "
        "print(sorted({'torch', 'pynvml', 'lightning', 'zeus'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
