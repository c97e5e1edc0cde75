"""Learning rates for other batch sizes."""

from __future__ import annotations

import pytest

from energy_lightning.recurring import RecurringError, scaled_learning_rate


@pytest.mark.parametrize(
    ("rule", "batch_size", "expected"),
    [("linear", 64, 0.2), ("linear", 8, 0.025), ("sqrt", 128, 0.2), ("sqrt", 8, 0.05), ("none", 8, 0.1)],
)
def test_scales_from_the_default(rule: str, batch_size: int, expected: float) -> None:
    assert scaled_learning_rate(0.1, batch_size=batch_size, default=32, rule=rule) == pytest.approx(expected)


def test_published_librispeech_rates_follow_the_square_root() -> None:
    """DeepSpeech2's AdamW rates in the published traces: 2.6e-4 at 192, 1.06e-4 at 32."""
    assert scaled_learning_rate(2.6e-4, batch_size=32, default=192) == pytest.approx(1.06e-4, rel=0.01)


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(RecurringError, match="known: linear, sqrt, none"):
        scaled_learning_rate(0.1, batch_size=8, default=32, rule="cubic")
    for rate, size, default in ((0.0, 8, 32), (0.1, 0, 32), (0.1, 8, 0), (float("nan"), 8, 32), ("0.1", 8, 32)):
        with pytest.raises(RecurringError, match=r"(learning_rate|batch_size|default) must be"):
            scaled_learning_rate(rate, batch_size=size, default=default)
