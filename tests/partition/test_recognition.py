"""Which stacks are recognised, and what the errors say."""

from __future__ import annotations

import pytest
from tiny_models import make
from torch import nn

from energy_lightning.partition import (
    ARCHITECTURES,
    TensorParallelError,
    UnrecognisedModelError,
    check_tensor_parallel_size,
    find_stacks,
    install,
)


class Wrapper(nn.Module):
    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


def test_stacks_are_found_inside_other_modules() -> None:
    stacks = find_stacks(Wrapper(encoder=make("bert_base"), head=nn.Linear(2, 2), decoder=make("llama")))
    assert [(stack.path, stack.architecture, stack.num_layers) for stack in stacks] == [
        ("encoder.encoder.layer", "bert", 2),
        ("decoder.model.layers", "llama", 2),
    ]
    assert stacks[1].config.num_key_value_heads == 2
    assert find_stacks(make("bert").bert.encoder)[0].path == "layer"


def test_a_model_without_known_blocks() -> None:
    assert find_stacks(nn.Linear(2, 2)) == []
    with pytest.raises(UnrecognisedModelError, match=r"Linear has no transformer blocks.*known: bert \(.*, llama \("):
        install(nn.Linear(2, 2))


def test_what_keeps_a_known_model_from_being_recognised_is_named() -> None:
    class LoraLinear(nn.Linear):
        """Stands for any replacement that computes more than its weight says."""

    adapted = make("llama")
    adapted.model.layers[1].self_attn.v_proj = LoraLinear(16, 8)
    subclassed = make("bert")
    subclassed.bert.encoder.layer[0].__class__ = type("MyLayer", (type(subclassed.bert.encoder.layer[0]),), {})
    chunked = make("bert", chunk_size_feed_forward=2)
    crossed = make("bert_base", is_decoder=True, add_cross_attention=True)
    for model, reason in (
        (adapted, r"model\.layers: layer 1: self_attn\.v_proj is a .*LoraLinear, not a torch\.nn\.Linear"),
        (subclassed, r"layer 0 is a .*MyLayer, not a transformers"),
        (chunked, r"chunk_size_feed_forward is 2"),
        (crossed, r"cross-attention"),
    ):
        assert find_stacks(model) == []
        with pytest.raises(UnrecognisedModelError, match=reason):
            install(model)


def test_tensor_parallel_sizes_that_fit() -> None:
    (llama,) = find_stacks(make("llama"))  # 4 heads, 2 key-value heads, width 24
    (bert,) = find_stacks(make("bert"))  # 4 heads, width 24
    for stack, sizes in ((llama, (1, 2)), (bert, (1, 2, 4))):
        for size in sizes:
            check_tensor_parallel_size(stack, size)
    with pytest.raises(
        TensorParallelError,
        match=r"tensor_parallel_size=4 does not divide num_key_value_heads=2 of model\.layers.*possible: 1, 2$",
    ):
        check_tensor_parallel_size(llama, 4)
    with pytest.raises(TensorParallelError, match=r"possible: 1, 2, 4$"):
        check_tensor_parallel_size(bert, 3)
    with pytest.raises(TensorParallelError, match="tensor_parallel_size=0"):
        check_tensor_parallel_size(bert, 0)


def test_operators_have_the_names_that_plans_use() -> None:
    llama, bert = ARCHITECTURES["llama"], ARCHITECTURES["bert"]
    assert llama.operator_names("fwd_attn") == ("norm_0", "linear_0", "rope_0", "attn_0", "linear_1")
    assert llama.operator_names("bwd_attn") == ("norm_0", "linear_1", "attn_0", "rope_0", "linear_0")
    assert bert.operator_names("rec_mlp") == ("norm_0", "linear_0", "activation_0", "linear_1")
    assert bert.operator_names("bwd_mlp") == ("norm_0", "linear_1", "activation_0", "linear_0")


def test_rows_from_outside_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energy_lightning.partition.recognition.ARCHITECTURES", {})
    assert find_stacks(make("llama")) == []
    monkeypatch.setattr("energy_lightning.partition.recognition.ARCHITECTURES", {"llama": ARCHITECTURES["llama"]})
    assert [stack.architecture for stack in find_stacks(make("llama"))] == ["llama"]
