"""Small models and batches for the engine's tests, and the comparison with the untouched model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

from energy_lightning.types import PhasePlan, Plan, Schedule

Batch = dict[str, Tensor]


def bert_config(**changes: Any) -> BertConfig:
    values = {
        "vocab_size": 61,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "num_labels": 3,
        "initializer_range": 0.3,
    }
    return BertConfig(**{**values, **changes})


def llama_config(**changes: Any) -> LlamaConfig:
    values = {
        "vocab_size": 61,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "num_labels": 3,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    }
    return LlamaConfig(**{**values, **changes})


MODELS: dict[str, Callable[..., PreTrainedModel]] = {
    "bert": lambda **changes: BertForSequenceClassification(bert_config(**changes)),
    "bert_mlm": lambda **changes: BertForMaskedLM(bert_config(**changes)),
    "bert_base": lambda **changes: BertModel(bert_config(**changes)),
    "llama": lambda **changes: LlamaForCausalLM(llama_config(**changes)),
    "llama_bias": lambda **changes: LlamaForCausalLM(llama_config(attention_bias=True, mlp_bias=True, **changes)),
    "llama_classifier": lambda **changes: LlamaForSequenceClassification(llama_config(**changes)),
}


def make(kind: str, **changes: Any) -> PreTrainedModel:
    """A model in training mode; the same weights every time. Biases and norms are not at their trivial values."""
    torch.manual_seed(7)
    model = MODELS[kind](**changes).train()
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def make_batch(kind: str, batch_size: int, *, seed: int = 0, padded: bool = True, length: int = 7) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 61, (batch_size, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        for row in range(0, batch_size, 2):
            mask[row, length - 1 - row % 3 :] = 0
    ids = ids * mask
    if kind in ("bert", "llama_classifier"):
        labels = torch.randint(0, 3, (batch_size,), generator=generator)
    else:
        labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The model's loss, or some scalar of every output of a model that has none."""
    if type(model) is BertModel:
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        return output.last_hidden_state.square().mean() + output.pooler_output.sum()
    return model(**batch).loss  # type: ignore[no-any-return]


def train_on(model: nn.Module, batches: Iterable[Batch]) -> list[float]:
    """Forward and backward on each batch, gradients accumulating; the losses."""
    losses = []
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        losses.append(loss.item())
    return losses


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_close(
    found: dict[str, Tensor | None], expected: dict[str, Tensor | None], *, tolerance: float = 1e-5
) -> None:
    """Every tensor differs by at most `tolerance` times the largest entry of the expected one.

    The gradient of BERT's key bias is zero but for rounding, as softmax does not see what its inputs share: it is
    measured against the largest entry of all. Other small ones, against a thousandth of that.
    """
    assert found.keys() == expected.keys()
    largest = max(want.abs().max().item() for want in expected.values() if want is not None)
    for name, want in expected.items():
        have = found[name]
        assert (have is None) == (want is None), f"{name}: found {have}, expected {want}"
        if have is None or want is None:
            continue
        assert have.shape == want.shape, f"{name}: shape {tuple(have.shape)}, expected {tuple(want.shape)}"
        scale = max(want.abs().max().item(), largest if name.endswith("self.key.bias") else 1e-3 * largest)
        error = (have - want).abs().max().item() / scale
        assert error <= tolerance, f"{name}: relative error {error:.2e} > {tolerance:.0e}"


def plan_of(forward: dict[str, str | None] | None = None, backward: dict[str, str | None] | None = None) -> Plan:
    """A nanobatched plan from {partition key: launch point} per phase."""
    phases = {"forward": forward or {}, "backward": backward or {}}
    made = [
        PhasePlan(phase, None, True, {key: Schedule(launch=launch) for key, launch in launches.items()})  # type: ignore[arg-type]
        for phase, launches in phases.items()
    ]
    return Plan.single_stage(*made)
