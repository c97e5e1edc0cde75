"""Every name and argument that we call in MSCCL++, against notes on the sources of 0.10.

The package is on no index, so the stand-in that passes the contract is what is compared; where MSCCL++ is installed
with a driver, the package is, too. The notes lack three names that we use: RawGpuBuffer.data, ReduceOp.SUM (they tell
of a sum) and Bootstrap.get_n_ranks_per_node (which may be missing). What is not there, or works otherwise, shows in a
trial when a group is opened, and another backend is taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fake_mscclpp
import pytest
import torch
import torch.distributed as dist

from energy_lightning.collectives import CollectivesError
from energy_lightning.collectives.mscclpp_opening import import_library, make_issuer
from energy_lightning.collectives.process_group import ProcessGroupIssuer

EXECUTE = {  # parameter -> default, in order; what is not there has none
    "comm": inspect.Parameter.empty,
    "input_buffer": inspect.Parameter.empty,
    "output_buffer": inspect.Parameter.empty,
    "input_size": inspect.Parameter.empty,
    "output_size": inspect.Parameter.empty,
    "dtype": inspect.Parameter.empty,
    "op": None,
    "stream": 0,
    "executor": None,
    "nblocks": 0,
    "nthreads_per_block": 0,
    "symmetric_memory": False,
    "extras": None,
    "accum_dtype": None,
}
BUILD = ["scratch_buffer", "scratch_buffer_size", "rank"]


def names(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_the_stand_in_has_the_signatures_of_the_notes() -> None:
    found = inspect.signature(fake_mscclpp.Algorithm.execute).parameters
    assert {name: p.default for name, p in found.items() if name != "self"} == EXECUTE
    assert list(found)[1:] == list(EXECUTE)
    library = fake_mscclpp.library(None)
    assert names(library.ext.AlgorithmCollectionBuilder.build_default_algorithms) == BUILD
    assert names(library.TcpBootstrap.create) == ["rank", "n"]
    assert names(fake_mscclpp.Bootstrap.initialize) == ["unique_id", "timeout_sec"]
    assert names(library.Communicator) == ["bootstrap"]
    assert names(library.RawGpuBuffer) == ["nelems"]


def test_the_package_has_them_too() -> None:
    try:
        library = import_library()
    except CollectivesError as error:
        pytest.skip(f"mscclpp {error}")
    from mscclpp.ext import AlgorithmCollectionBuilder  # type: ignore[import-not-found]

    assert set(BUILD) <= set(names(AlgorithmCollectionBuilder.build_default_algorithms))
    for name in ("TcpBootstrap", "Communicator", "RawGpuBuffer", "ReduceOp"):
        assert hasattr(library, name)
    algorithm = __import__("mscclpp").Algorithm
    assert [name for name in names(algorithm.execute) if name in EXECUTE] == list(EXECUTE)
    assert callable(library.RawGpuBuffer.data)
    assert hasattr(library.ReduceOp, "SUM")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def without_data(library: Any) -> None:
    del library.RawGpuBuffer.data


def without_sum(library: Any) -> None:
    del library.ReduceOp.SUM


def executing(execute: Callable[..., int]) -> Callable[[Any], None]:
    def change(library: Any) -> None:
        builder = library.ext.AlgorithmCollectionBuilder
        build = builder.build_default_algorithms

        def build_others(self: Any, **options: Any) -> Any:
            found = build(self, **options)
            for algorithm in found:
                algorithm.execute = execute
            return found

        builder.build_default_algorithms = build_others

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_data, "cannot be set up for this group: AttributeError: .*'data'"),
        (without_sum, "cannot be set up for this group: AttributeError: .*'SUM'"),
        (executing(lambda comm, input_buffer: 0), "cannot be set up for this group: TypeError: .*arguments?"),
        (executing(lambda *args, **options: 0), r"wrong all_gather in a trial: \[0\.0, 0\.0"),
    ],
)
def test_a_library_that_is_another_one_is_found_out_when_a_group_is_opened(
    alone: None, change: Callable[[Any], None], words: str
) -> None:
    library, others = fake_mscclpp.library(None), Mock(spec=ProcessGroupIssuer)
    change(library)
    with pytest.raises(CollectivesError, match=words):
        make_issuer(None, torch.device("cpu"), library=library, others=others)
    others.close.assert_called_with(in_step=False)


def test_a_library_that_sums_rightly_is_taken(alone: None) -> None:
    library, others = fake_mscclpp.library(None), Mock(spec=ProcessGroupIssuer)
    assert make_issuer(None, torch.device("cpu"), library=library, others=others).name == "mscclpp"
    others.close.assert_not_called()
    assert [call[0] for call in library.calls] == ["default_allreduce_rsag", "default_allgather_fullmesh"]
