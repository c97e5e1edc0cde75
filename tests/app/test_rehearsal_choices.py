"""What the emulated A100 chooses for published jobs (reference: the Kareus paper's workloads)."""

import pytest

from energy_lightning.app.rehearsal import rehearse
from energy_lightning.types import Budget
from energy_lightning.workload import Workload


@pytest.mark.parametrize(("name", "overlap_pays"), [("qwen3_1.7b_tp4_cp2", False), ("llama3.2_3b_tp8", True)])
def test_sequential_is_chosen_where_overlap_does_not_pay(name: str, overlap_pays: bool) -> None:
    workload = Workload.preset(
        name, microbatch_size=8, sequence_length=4096, num_microbatches=8, activation_checkpointing=True
    )
    outcome = rehearse(workload, "a100-sxm4-40gb", Budget("max_throughput"))
    assert outcome.chosen.choice.forward.nanobatched is overlap_pays
    assert outcome.chosen.choice.backward.nanobatched is overlap_pays
    plain, halved = outcome.references["max frequency"], outcome.references["nanobatching only"]
    assert (halved.time_s < plain.time_s) is overlap_pays
    assert outcome.chosen.time_s <= min(plain.time_s, halved.time_s)
