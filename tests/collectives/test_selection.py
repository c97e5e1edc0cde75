"""What machines and groups described by hand can run, and the reasons given. Choosing together: selection_checks.py."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from energy_lightning.collectives import (
    BACKENDS,
    Backend,
    CollectivesChoice,
    CollectivesError,
    Machine,
    available_collectives,
    select_collectives,
)
from energy_lightning.collectives.mscclpp_opening import check_group, import_library
from energy_lightning.collectives.nccl_per_call import describe, loaded_nccl
from energy_lightning.collectives.peers import Peer, not_one_node, refusal_of, shared_gpu, unreachable_peer

A100S = Machine(
    cuda_version="12.8",
    compute_capabilities=((8, 0), (8, 0)),
    nccl_version="2.27.5",
    distributions={"mscclpp": "0.10.1.dev3+gabc", "nccl4py": "0.6.0"},
)


def choice(name: str, machine: Machine) -> CollectivesChoice:
    return next(found for found in available_collectives(machine) if found.name == name)


# what a machine can do, without a process group


def test_this_machine_is_described_without_a_process_group() -> None:
    assert not dist.is_initialized()
    choices = available_collectives()
    assert [found.name for found in choices] == ["mscclpp", "nccl4py", "nccl_capped", "nccl", "gloo"]
    assert choices[-1].usable
    assert choices[-1].version == str(torch.__version__)
    if not torch.cuda.is_available():
        assert all("no NVIDIA GPU" in found.reasons[0] for found in choices[:-1])


def test_mscclpp_on_machines_that_can_and_cannot() -> None:
    assert choice("mscclpp", A100S).usable
    assert choice("mscclpp", A100S).version == "0.10.1.dev3+gabc"
    cases = {
        "0.9.0 is too old: 0.10.0": replace(A100S, distributions={"mscclpp": "0.9.0"}),
        "not installed": replace(A100S, distributions={}),
        "CUDA 11.8: 12.0 or later": replace(A100S, cuda_version="11.8"),
        "capability 6.1: 7.0 or later": replace(A100S, compute_capabilities=((8, 0), (6, 1))),
        "no NVIDIA GPU": replace(A100S, compute_capabilities=()),
    }
    for reason, machine in cases.items():
        (found,) = choice("mscclpp", machine).reasons
        assert reason in found


def test_nccl4py_needs_a_nccl_that_takes_caps_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energy_lightning.collectives.nccl_per_call.loaded_nccl", lambda: "2.27.5")
    assert describe(A100S).reasons == ("the NCCL in this process is 2.27.5: a cap per call needs 2.31 or later",)
    monkeypatch.setattr("energy_lightning.collectives.nccl_per_call.loaded_nccl", lambda: "2.32.3")
    assert describe(A100S).usable
    monkeypatch.setattr("energy_lightning.collectives.nccl_per_call.loaded_nccl", lambda: None)
    assert "finds no libnccl" in describe(A100S).reasons[0]
    assert "0.5.9 is too old" in describe(replace(A100S, distributions={"nccl4py": "0.5.9"})).reasons[0]
    assert "energy-lightning[nccl]" in describe(replace(A100S, distributions={})).reasons[0]


def test_the_environment_overrules_and_is_named() -> None:
    machine = Machine.read({"NCCL_MAX_CTAS": "4", "HOME": "/nowhere"})
    assert machine.nccl_overrides == {"NCCL_MAX_CTAS": "4"}
    assert machine.overruled_sm_count() == 4
    for name in ("nccl4py", "nccl_capped", "nccl"):
        limits = choice(name, replace(A100S, distributions={}, nccl_overrides=machine.nccl_overrides)).limits
        assert "NCCL_MAX_CTAS=4 in the environment overrules the SM counts of schedules" in limits
    assert Machine.read({"NCCL_MAX_CTAS": "many"}).overruled_sm_count() is None


def test_nccl_needs_a_torch_that_has_it() -> None:
    assert "no NCCL" in choice("nccl", replace(A100S, nccl_version=None)).reasons[0]
    assert choice("nccl_capped", A100S).version == "2.27.5"


# what a group can do


def peers(**changes: Any) -> list[Peer]:
    """Two ranks with GPUs of their own on one node; `changes` are the second's."""
    first = Peer(node="n", gpu="GPU-a", versions={"mscclpp": "0.10.0"})
    return (
        [first, replace(first, gpu="GPU-b", **changes)] if "gpu" not in changes else [first, replace(first, **changes)]
    )


def test_mscclpp_refuses_groups_that_its_algorithms_cannot_serve() -> None:
    check_group(peers())
    many = [Peer(node="n", gpu=f"GPU-{i}", versions={"mscclpp": "0.10.0"}) for i in range(9)]
    for group, message in (
        (many, "9 ranks, its algorithms serve 2 to 8"),
        (many[:1], "1 ranks, its algorithms serve 2 to 8"),
        (peers(node="m"), "run on 2 nodes"),
        (peers(gpu="GPU-a"), "two ranks share GPU GPU-a"),
        (peers(versions={"mscclpp": "0.11.0"}), r"different versions: 0\.10\.0, 0\.11\.0"),
    ):
        with pytest.raises(CollectivesError, match=message):
            check_group(group)
    assert not_one_node(peers()) is None
    assert shared_gpu([Peer(node="n"), Peer(node="n")]) is None, "CPUs have no UUID to share"


def test_refusals_name_the_rank_unless_all_refuse() -> None:
    assert refusal_of("mscclpp", peers()) is None
    assert refusal_of("mscclpp", peers(refusals={"mscclpp": "too old"})) == "rank 1 of the group: too old"
    both = [replace(peer, refusals={"mscclpp": "not installed"}) for peer in peers()]
    assert refusal_of("mscclpp", both) == "not installed"


class TwoGpus:
    """As much of torch.cuda as P2P takes."""

    def __init__(self, *, direct: bool, visible: tuple[str, ...] = ("GPU-a", "GPU-b")) -> None:
        self._direct, self._visible = direct, visible

    def device_count(self) -> int:
        return len(self._visible)

    def get_device_properties(self, index: int) -> Any:
        class Properties:
            uuid = self._visible[index]

        return Properties

    def can_device_access_peer(self, own: int, other: int) -> bool:
        assert own != other
        return self._direct


def test_gpus_without_direct_access_are_found_where_they_can_be_seen() -> None:
    device = torch.device("cuda", 0)
    assert unreachable_peer(0, peers(), device, cuda=TwoGpus(direct=True)) is None
    found = unreachable_peer(0, peers(), device, cuda=TwoGpus(direct=False))
    assert found == "no direct access (P2P) from the GPU of rank 0 to that of rank 1"
    assert unreachable_peer(0, peers(), device, cuda=TwoGpus(direct=False, visible=("GPU-a",))) is None


# importing MSCCL++


@pytest.fixture
def no_mscclpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test imports under its names is forgotten afterwards."""
    names = ("mscclpp", "mscclpp.ext", "mscclpp.utils")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def test_importing_mscclpp_leaves_the_root_logger_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_mscclpp: None
) -> None:
    package = tmp_path / "mscclpp"
    package.mkdir()
    (package / "__init__.py").write_text("import logging\nlogging.basicConfig(level=logging.DEBUG, force=False)\n")
    (package / "ext.py").write_text("")
    (package / "utils.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])  # as in a program that has not set logging up
    level = root.level
    assert import_library().__name__ == "mscclpp"
    assert root.handlers == []
    assert root.level == level


def test_mscclpp_without_a_driver_is_a_reason_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_mscclpp: None
) -> None:
    (tmp_path / "mscclpp.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CollectivesError, match=r"cannot be imported: libcuda\.so\.1"):
        import_library()


def test_rows_from_outside_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    marker: Any = object()
    found = CollectivesChoice(name="mine", version="1", supports_sm_count=True)
    row = Backend(device_type=None, describe=lambda machine: found, prepare=lambda opening: lambda: marker)
    monkeypatch.setitem(BACKENDS, "mine", row)
    assert select_collectives("mine") is marker


def test_nccl_that_nccl4py_loads_has_a_version_where_it_is_installed() -> None:
    pytest.importorskip("nccl.core", reason="nccl4py is not installed")
    version = loaded_nccl()
    assert version is None or version.split(".")[0] == "2"
