"""The timetables, written out by hand."""

from energy_lightning.partition.order import Step, backward_steps, forward_steps


def _written(steps) -> list[str]:
    return [f"{step.key} {step.layer}.{step.nanobatch}" for step in steps]


def test_forward_interleaves_two_nanobatches() -> None:
    assert _written(forward_steps(2, 2)) == [
        *("fwd_attn 0.0", "fwd_attn 0.1", "fwd_mlp 0.0", "fwd_mlp 0.1"),
        *("fwd_attn 1.0", "fwd_attn 1.1", "fwd_mlp 1.0", "fwd_mlp 1.1"),
    ]


def test_backward_goes_through_layers_from_the_last_and_recomputes_where_asked() -> None:
    assert _written(backward_steps(range(2), 2, {1})) == [
        *("rec_attn 1.0", "rec_attn 1.1", "rec_mlp 1.0", "rec_mlp 1.1"),
        *("bwd_mlp 1.0", "bwd_mlp 1.1", "bwd_attn 1.0", "bwd_attn 1.1"),
        *("bwd_mlp 0.0", "bwd_mlp 0.1", "bwd_attn 0.0", "bwd_attn 0.1"),
    ]


def test_backward_stops_at_the_first_layer_that_wants_gradients() -> None:
    assert _written(backward_steps(range(1, 2), 1, ())) == ["bwd_mlp 1.0", "bwd_attn 1.0"]


def test_bodies_are_numbered_along_the_chain() -> None:
    keys = ("fwd_attn", "rec_mlp", "bwd_attn")
    assert [Step(key, layer, 0).body for layer in (0, 3) for key in keys] == [0, 1, 0, 6, 7, 6]
