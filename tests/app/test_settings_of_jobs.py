"""What a rehearsed or planned job is where the command line leaves it open."""

from __future__ import annotations

import pytest

from energy_lightning.app.settings import build_workload


@pytest.mark.parametrize(
    ("preset", "expected"), [("bert_large", 512), ("gpt3_175b", 2048), ("llama3.2_3b", 4096), ("qwen3_1.7b", 4096)]
)
def test_sequences_are_as_long_as_such_models_are_trained_with(preset: str, expected: int) -> None:
    job = build_workload({"preset": preset, "sequence_length": None})
    assert job is not None
    assert job.sequence_length == expected


def test_a_sequence_length_that_is_given_stays() -> None:
    job = build_workload({"preset": "bert_large", "sequence_length": 128})
    assert job is not None
    assert job.sequence_length == 128
