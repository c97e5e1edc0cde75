import pytest

from energy_lightning.parallel.layout import ParallelLayout
from energy_lightning.types import EnergyLightningError, StrategyError


def test_peers_are_adjacent_and_share_a_replica() -> None:
    layout = ParallelLayout.for_devices(8, tensor_parallel_size=4, data_parallel_size="auto")
    assert (layout.data_parallel_size, layout.tensor_parallel_size) == (2, 4)
    assert [layout.data_parallel_rank(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_tensor_parallel_size_that_does_not_divide_names_the_possible_ones() -> None:
    with pytest.raises(StrategyError, match=r"tensor_parallel_size=4 .* 6 devices .*possible: 1, 2, 3, 6"):
        ParallelLayout.for_devices(6, tensor_parallel_size=4, data_parallel_size="auto")


def test_data_parallel_size_that_leaves_devices_over_names_the_right_one() -> None:
    with pytest.raises(EnergyLightningError, match=r"must be 4 or 'auto'"):
        ParallelLayout.for_devices(8, tensor_parallel_size=2, data_parallel_size=2)
