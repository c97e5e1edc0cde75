"""Every name and argument that we call in MSCCL++, against notes on the sources of 0.10.

The package is on no index, so the stand-in that passes the contract is what is compared; where MSCCL++ is installed
with a driver, the package is, too.
"""

from __future__ import annotations

import inspect
from typing import Any

import fake_mscclpp
import pytest

from energy_lightning.collectives import CollectivesError
from energy_lightning.collectives.mscclpp_opening import import_library

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
