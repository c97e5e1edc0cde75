"""Transformers models for the tasks: packaged MiniLM, config-only BERT and Llama of a chosen size, any path or name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from energy_lightning.tasks.tokenizers import open_tokenizer, packaged_minilm_folder
from energy_lightning.types import DataError

# task -> transformers' automatic class
_CLASSES = {"classification": "AutoModelForSequenceClassification", "next_token": "AutoModelForCausalLM"}
MINILM = "minilm"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model to train.

    Attributes:
        task: "classification" or "next_token".
        pretrained: "minilm" (packaged), a local folder or a hub name; None: random weights.
        architecture: transformers' model_type ("bert", "llama", ...) of a model with random weights.
        config: values of its transformers config, hidden_size and so on; with `pretrained`, values to override.
        num_labels: classes, for classification.
    """

    task: str
    pretrained: str | None = None
    architecture: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    num_labels: int = 2

    def __post_init__(self) -> None:
        if self.task not in _CLASSES:
            raise DataError(f"unknown model task {self.task!r}; known: {', '.join(_CLASSES)}")
        if (self.pretrained is None) == (self.architecture is None):
            raise DataError("a model needs either pretrained (weights) or architecture (random weights)")


def build_model(spec: ModelSpec, *, tokenizer: str) -> Any:
    """The transformers model of `spec` in training mode, sized for `tokenizer` when its weights are random.

    Raises DataError naming the remedy when weights or architecture cannot be had.
    """
    import transformers

    automatic = getattr(transformers, _CLASSES[spec.task])
    overrides = dict(spec.config)
    if spec.task == "classification":
        overrides["num_labels"] = spec.num_labels
    if spec.pretrained is None:
        return automatic.from_config(_fresh_config(spec.architecture or "", overrides, tokenizer)).train()
    folder = str(packaged_minilm_folder()) if spec.pretrained == MINILM else spec.pretrained
    with _quiet_loading():
        try:
            # It comes in evaluation mode, which the Trainer would keep: no dropout.
            return automatic.from_pretrained(folder, **overrides).train()
        except (OSError, ValueError) as error:
            raise DataError(
                f"cannot load the model {spec.pretrained!r} ({error}). Give a local folder holding config.json and "
                "weights, or the packaged model=bert"
            ) from error


def _fresh_config(architecture: str, values: Mapping[str, Any], tokenizer: str) -> Any:
    from transformers import AutoConfig

    opened = open_tokenizer(tokenizer)
    defaults = {"vocab_size": opened.vocab_size, "pad_token_id": opened.pad_id, "use_cache": False}
    try:
        return AutoConfig.for_model(architecture, **{**defaults, **values})
    except (ValueError, TypeError) as error:  # an unknown model_type; a value that its config refuses
        raise DataError(f"cannot build a {architecture!r} from {dict(values)}: {error}") from error


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """transformers prints a table of newly initialised weights, which a fresh classifier head always has."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging  # its functions carry no types
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
