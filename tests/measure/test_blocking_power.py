"""P2P-blocking power: measured once a GPU, kept by UUID."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from energy_lightning.device import Device, EmulatedDevice
from energy_lightning.device.blocking_cache import load_blocking_power_w, save_blocking_power_w
from energy_lightning.device.host import Host
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.emulation import GPU
from energy_lightning.measure.blocking_power import blocking_power_w
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import MeasurementError
from energy_lightning.workload import Workload

UUID = "GPU-aaaa0000-0000-0000-0000-000000000001"


class Named(ScriptedDevice):
    """Draws 91 W while it waits for a peer, 1 W else; the energy counter refreshes every 0.1 s."""

    uuid = UUID

    def __init__(self, **options: Any) -> None:
        super().__init__(refresh_s=0.1, **options)
        self.spinning_until_s = 0.0

    def spin(self, time_s: float) -> None:
        self.spinning_until_s = self.now_s() + time_s

    def idle(self, time_s: float) -> None:
        end_s = self.now_s() + time_s
        while self.now_s() < end_s - 1e-9:
            self._advance(min(0.01, end_s - self.now_s()), 91.0 if self.now_s() < self.spinning_until_s else 1.0)

    def power_w(self) -> float:
        return 91.0 if self.now_s() < self.spinning_until_s else 1.0


def test_it_is_the_power_of_a_gpu_that_spins_measured_once(tmp_path: Path) -> None:
    device = Named()
    assert blocking_power_w(device, tmp_path, spin=device.spin) == pytest.approx(91.0, rel=0.06)
    found_w, then_s = blocking_power_w(device, tmp_path, spin=device.spin), device.now_s()
    assert blocking_power_w(Named(), tmp_path) == found_w  # kept: nothing spins, no CUDA is looked for
    assert device.now_s() == then_s
    assert load_blocking_power_w(tmp_path, "GPU-of-another") is None


def test_without_any_energy_reading_it_is_a_named_error_and_nothing_is_kept(tmp_path: Path) -> None:
    device = Named(energy_source="none")
    with pytest.raises(MeasurementError, match="the blocking power of scripted GPU cannot be measured"):
        blocking_power_w(device, tmp_path, spin=device.spin)
    assert load_blocking_power_w(tmp_path, UUID) is None


def test_a_slice_of_a_gpu_is_not_measured(tmp_path: Path) -> None:
    device = Named()
    device.is_mig = True  # type: ignore[attr-defined]
    with pytest.raises(MeasurementError, match="shared with the GPU's other slices"):
        blocking_power_w(device, tmp_path, spin=device.spin)


def test_without_cuda_it_says_what_is_used_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MeasurementError, match="no CUDA GPU to wait on; scripted GPU keeps 80 W"):
        blocking_power_w(Named(), tmp_path)


def test_a_device_without_uuid_keeps_its_model(tmp_path: Path) -> None:
    device: Device = EmulatedDevice(GPU.load("a100-sxm4-40gb"), Workload.preset("bert_base"))
    assert blocking_power_w(device, tmp_path) == 85.0
    assert list(tmp_path.iterdir()) == []


def test_on_cuda_a_kernel_of_one_thread_spins_on_the_gpu_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, cycles, on = Named(), [], []

    class Chosen:
        def __init__(self, index: int | None) -> None:
            on.append(index)

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    device.cuda_index = 3  # type: ignore[attr-defined]

    def sleep(num_cycles: int) -> None:
        cycles.append(num_cycles)
        device.spinning_until_s = max(device.spinning_until_s, device.now_s()) + num_cycles / 1410e6

    stand_in = SimpleNamespace(is_available=lambda: True, _sleep=sleep, device=Chosen)
    monkeypatch.setattr(torch, "cuda", stand_in)
    assert blocking_power_w(device, tmp_path) == pytest.approx(91.0, rel=0.06)
    assert on == [3]
    assert sum(cycles) == pytest.approx(3.0 * 1410e6)


def test_the_nvidia_device_tells_what_was_measured_else_the_packaged_model(tmp_path: Path) -> None:
    host = Host(environment={"XDG_STATE_HOME": str(tmp_path)}, torch=None)
    with NvmlEmulator([EmulatedBoard(uuid=UUID, permissions=())]):
        device = NvidiaDevice(0, host=host)
        assert device.blocking_power_w == 85.0
        save_blocking_power_w(tmp_path / "energy_lightning", UUID, 77.5, gpu=device.name)
        assert device.blocking_power_w == 77.5


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"blocking_power_w": "much"}', '{"blocking_power_w": -1}', "\xff"]
)
def test_a_damaged_file_is_not_used(tmp_path: Path, content: str) -> None:
    save_blocking_power_w(tmp_path, UUID, 77.5, gpu="some GPU")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_bytes(content.encode("latin-1"))
    assert load_blocking_power_w(tmp_path, UUID) is None
