"""Which NVML GPU a torch device is: by UUID or PCI address, never by index, whatever CUDA_VISIBLE_DEVICES reorders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch
from nvidia_boards import AAAA, BBBB, cuda_properties, cuda_torch, machine

from energy_lightning.device.finding import find_gpu
from energy_lightning.device.nvml_emulator import EmulatedBoard
from energy_lightning.types import DeviceError

BOARDS = (
    EmulatedBoard(uuid=AAAA, pci_bus_id="00000000:07:00.0"),
    EmulatedBoard(uuid=BBBB, pci_bus_id="00000000:4E:00.0"),
)
SLICE = "MIG-11110000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("visible", "torch_device", "expected"),
    [
        (BBBB, 0, BBBB),
        (BBBB, None, BBBB),
        ("GPU-b", "cuda:0", BBBB),
        ("1,0", 0, BBBB),
        ("1,0", "cuda:1", AAAA),
        (f"{BBBB},{AAAA}", 1, AAAA),
        (None, 1, BBBB),
        (None, torch.device("cuda", 1), BBBB),
        ("0", "GPU-bbbb", BBBB),
    ],
)
def test_without_cuda_the_variable_is_read_as_cuda_reads_it(
    tmp_path: Path, visible: str | None, torch_device: Any, expected: str
) -> None:
    with machine(tmp_path, *BOARDS) as m:
        assert m.open(torch_device, visible=visible).uuid == expected


@pytest.mark.parametrize(
    ("visible", "torch_device", "message"),
    [
        (None, None, "2 visible GPUs and no torch device to tell which; give torch_device"),
        ("", 0, r"no GPU 0 among the 0 visible ones \(CUDA_VISIBLE_DEVICES=\), counted from 0"),
        ("1", 1, r"no GPU 1 among the 1 visible ones \(CUDA_VISIBLE_DEVICES=1\)"),
        ("GPU-", 0, "'GPU-' is the beginning of 2 GPUs' UUIDs"),
        (None, "GPU-c", "'GPU-c' is no GPU of this machine; known: GPU-aaaa"),
        (None, -1, "no GPU -1 among the 2 visible ones, counted from 0"),
        (None, "cpu", "'cpu' is no NVIDIA GPU; give a CUDA device"),
        (None, True, "True is no NVIDIA GPU"),
        (SLICE, 0, "NVML knows no such slice"),
        (SLICE, 1, "CUDA shows one MIG slice to a process"),
    ],
)
def test_a_gpu_that_cannot_be_told_is_an_error(
    tmp_path: Path, visible: str | None, torch_device: Any, message: str
) -> None:
    with machine(tmp_path, *BOARDS) as m, pytest.raises(DeviceError, match=message):
        m.open(torch_device, visible=visible)


@pytest.mark.parametrize("index", [0, 1])
def test_with_cuda_torch_tells_the_uuid_and_the_variable_is_not_looked_at(tmp_path: Path, index: int) -> None:
    reordered = cuda_torch(cuda_properties(BBBB), cuda_properties(AAAA), current=1)  # as under any renumbering
    with machine(tmp_path, *BOARDS) as m:
        device = m.open(f"cuda:{index}", torch=reordered, visible="GPU-nonsense")
        assert (device.uuid, device.cuda_index) == ((BBBB, AAAA)[index], index)
        assert m.open(None, torch=reordered).uuid == AAAA  # torch's current device


@pytest.mark.parametrize("uuid", [None, "GPU-cccc0000-0000-0000-0000-000000000003"], ids=["no uuid", "another uuid"])
def test_where_the_uuid_does_not_help_the_pci_address_does(tmp_path: Path, uuid: str | None) -> None:
    told = cuda_torch(cuda_properties(uuid, pci_domain_id=0, pci_bus_id=0x4E, pci_device_id=0))
    elsewhere = cuda_torch(cuda_properties(uuid, pci_domain_id=0, pci_bus_id=0x99, pci_device_id=0))
    with machine(tmp_path, *BOARDS) as m:
        assert m.open(0, torch=told).uuid == BBBB
        with pytest.raises(DeviceError, match=r"NVML has no GPU at PCI 00000000:99:00\.0"):
            m.open(0, torch=elsewhere)
        with pytest.raises(DeviceError, match="name the GPU by its UUID, as nvidia-smi -L lists it"):
            m.open(0, torch=cuda_torch(cuda_properties(uuid)))


@pytest.mark.parametrize(
    ("visible", "torch_properties"),
    [(SLICE, None), (f"MIG-{BBBB}/1/0", None), (None, cuda_properties(SLICE))],
    ids=["variable", "variable as before R470", "torch"],
)
def test_a_slice_is_found_as_its_whole_gpu(tmp_path: Path, visible: str | None, torch_properties: Any) -> None:
    boards = (EmulatedBoard(uuid=AAAA), EmulatedBoard(uuid=BBBB, mig_uuids=(SLICE,)))
    with machine(tmp_path, *boards) as m:
        options = {} if torch_properties is None else {"torch": cuda_torch(torch_properties)}
        pynvml.nvmlInit()
        found = find_gpu(pynvml, None, m.host(visible, **options))
        assert (found.uuid, found.index, found.is_mig) == (BBBB, 1, True)


def test_the_whole_of_a_sliced_gpu_counts_as_shared_too(tmp_path: Path) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA, mig_uuids=(SLICE,))) as m:
        assert m.open(0).is_mig


@pytest.mark.parametrize(
    ("second", "visible", "order", "warns"),
    [
        ("a40", "1,0", None, True),
        ("a40", None, None, True),
        ("a40", "1,0", "PCI_BUS_ID", False),
        ("a40", "GPU-b", None, False),
        ("a100-sxm4-40gb", "1,0", None, False),
    ],
)
def test_indices_among_different_gpus_are_warned_of(
    tmp_path: Path, second: str, visible: str | None, order: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with machine(tmp_path, EmulatedBoard(uuid=AAAA), EmulatedBoard(uuid=BBBB, gpu=second)) as m:
        host = m.host(visible)
        environment = {**host.environment, **({} if order is None else {"CUDA_DEVICE_ORDER": order})}
        pynvml.nvmlInit()
        find_gpu(pynvml, 0, replace(host, environment=environment))
        assert ("CUDA_DEVICE_ORDER=PCI_BUS_ID" in caplog.text) == warns


@pytest.mark.parametrize(("visible", "torch_device"), [(None, 1), (BBBB, 0), (None, "GPU-bbbb"), ("1", None)])
def test_a_lost_gpu_keeps_nobody_from_the_others(tmp_path: Path, visible: str | None, torch_device: Any) -> None:
    with machine(tmp_path, *BOARDS) as m:
        m.nvml.lose(0)
        assert m.open(torch_device, visible=visible).uuid == BBBB
        with pytest.raises(DeviceError, match="GPU 0 does not answer: GPU is lost"):
            m.open(0)
        with pytest.raises(DeviceError, match=f"known: {BBBB}$"):
            m.open("GPU-aaaa")
