"""Shared set-up. Being here also puts this folder on sys.path, so that tests can import distributed_helpers."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Several test processes share few cores; results must not depend on how reductions are split."""
    torch.set_num_threads(1)
