"""Every name and argument that we call in nccl4py, against the package itself and against notes on its 0.6 sources.

The calls are recorded by the stand-in that passes the contract; nothing here needs a GPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import fake_nccl4py
import pytest
import torch
import torch.distributed as dist

from energy_lightning.collectives.choice import Machine, at_least
from energy_lightning.collectives.issuing import IssuedCollectives
from energy_lightning.collectives.nccl_per_call import NcclPerCallIssuer, loaded_nccl, prepare

PARAMETERS = {  # name -> parameters after self or cls; a star in front: keyword only
    "init": ["nranks", "rank", "unique_id", "config"],
    "allreduce": ["sendbuf", "recvbuf", "op", "*stream", "*config"],
    "allgather": ["sendbuf", "recvbuf", "*stream", "*config"],
    "reduce_scatter": ["sendbuf", "recvbuf", "op", "*stream", "*config"],
    "finalize": [],
    "destroy": [],
    "abort": [],
}


@pytest.fixture
def alone(tmp_path: Any) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def parameters(function: Any) -> list[str]:
    found = inspect.signature(function).parameters.values()
    return [("*" if p.kind is p.KEYWORD_ONLY else "") + p.name for p in found if p.name != "self"]


@pytest.fixture
def calls(alone: None) -> list[Any]:
    library = fake_nccl4py.library(None)
    issuer = NcclPerCallIssuer(None, torch.device("cpu"), library=library, error=fake_nccl4py.NCCLError)
    collectives = IssuedCollectives(issuer)
    for sm_count in (None, 3):
        collectives.all_reduce(torch.ones(2), sm_count=sm_count)
        collectives.all_gather(torch.ones(2), sm_count=sm_count)
        collectives.reduce_scatter(torch.ones(2), sm_count=sm_count)
    collectives.close()
    recorded: list[Any] = library.calls
    return recorded


@pytest.mark.parametrize(("in_step", "call"), [(True, "finalize"), (False, "abort")])
def test_a_communicator_that_cannot_be_released_is_one_line(
    alone: None, caplog: pytest.LogCaptureFixture, in_step: bool, call: str
) -> None:
    library = fake_nccl4py.library(None)
    issuer = NcclPerCallIssuer(None, torch.device("cpu"), library=library, error=fake_nccl4py.NCCLError)
    setattr(library.communicator, call, Mock(side_effect=fake_nccl4py.NCCLError("remote process exited")))
    IssuedCollectives(issuer).close(in_step=in_step)
    (line,) = caplog.messages
    assert line.endswith("NCCL did not release a communicator of 1 ranks: remote process exited")


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_stand_in_has_the_signatures_of_the_notes(name: str, alone: None) -> None:
    assert parameters(getattr(fake_nccl4py.library(None).Communicator, name)) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_package_has_them_too(name: str) -> None:
    core = pytest.importorskip("nccl.core", reason="nccl4py is not installed")
    assert parameters(getattr(core.Communicator, name)) == PARAMETERS[name]


def test_every_call_binds_to_the_package(calls: list[Any]) -> None:
    core = pytest.importorskip("nccl.core", reason="nccl4py is not installed")
    assert {name for name, _, _ in calls} == {"init", "allreduce", "allgather", "reduce_scatter"}
    for name, positional, keywords in calls:
        function = getattr(core.Communicator, name)
        owner = () if inspect.ismethod(function) else (object(),)  # self
        inspect.signature(function).bind(*owner, *positional, **keywords)
        config = keywords.get("config")
        if config is not None:
            real = core.NCCLCollConfig(**{field: getattr(config, field) for field in ("min_ctas", "max_ctas")})
            assert (real.min_ctas, real.max_ctas) == (3, 3)


def test_the_other_names_that_we_use_are_there() -> None:
    core = pytest.importorskip("nccl.core", reason="nccl4py is not installed")
    bindings = pytest.importorskip("nccl.bindings.nccl")
    assert issubclass(core.NcclInvalid, Exception)
    assert issubclass(bindings.NCCLError, Exception)
    assert core.SUM == core.NcclRedOp.SUM
    assert core.UniqueId.from_bytes(bytes(range(128))).as_bytes == bytes(range(128))
    assert parameters(core.get_unique_id) == ["empty"]
    assert isinstance(prepare(None, torch.device("cpu"), Machine()).keywords["error"], type)  # type: ignore[attr-defined]


def test_torch_tensors_are_taken_as_they_are() -> None:
    buffer = pytest.importorskip("nccl.core.buffer", reason="nccl4py is not installed")
    core = pytest.importorskip("nccl.core")
    expected = {torch.float32: core.FLOAT32, torch.float16: core.FLOAT16, torch.bfloat16: core.BFLOAT16}
    expected |= {torch.float64: core.FLOAT64, torch.int64: core.INT64, torch.int32: core.INT32}
    for dtype, wanted in expected.items():
        tensor = torch.zeros(5, 3, dtype=dtype)[1:]
        taken = buffer.NcclBuffer(tensor)
        assert (taken.dtype, taken.count, taken.ptr) == (wanted, 12, tensor.data_ptr())


def test_the_nccl_that_it_loads_takes_caps_per_call_or_is_refused() -> None:
    pytest.importorskip("nccl.core", reason="nccl4py is not installed")
    version = loaded_nccl()
    if version is not None:
        assert at_least(version, "2.0")
        assert not at_least(version, "999")
