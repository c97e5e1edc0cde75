"""Shared set-up. Being here also puts this folder on sys.path, so that tests can import distributed_helpers."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from loaded_python import loaded_python

# Lightning and torch.distributed leave these behind in a process that has trained; a process started from it would
# take itself for a rank of that training, on a port that is still in use.
_LAUNCHERS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "PL_GLOBAL_SEED")
_AT_START = {name: os.environ.get(name) for name in _LAUNCHERS}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--allow-clocks", action="store_true", help="tests marked gpu may lock this machine's SM clocks (given back)"
    )
    parser.addoption(
        "--real-python", action="store_true", help="every process starts an interpreter of its own: three times as long"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Several workers take files in the order below; by themselves they would leave those of few tests to the end."""
    if config.pluginmanager.hasplugin("xdist"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: one at the end would leave the other workers idle."""
    long = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "distributed")))}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Several test processes share few cores; results must not depend on how reductions are split."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def quick_python(request: pytest.FixtureRequest) -> Iterator[str]:
    """A Python interpreter for processes that train: see loaded_python."""
    if request.config.getoption("--real-python"):
        yield sys.executable
        return
    with tempfile.TemporaryDirectory() as folder, loaded_python(Path(folder)) as python:
        yield python


@pytest.fixture(autouse=True)
def _no_training_left() -> Iterator[None]:
    """Leave no process group, and the launchers' environment variables as they were before all tests."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    for name, value in _AT_START.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
