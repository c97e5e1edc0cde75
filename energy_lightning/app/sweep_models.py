"""Which model an inference sweep serves: a local folder, a configuration file, or a packaged shape. No downloads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energy_lightning.types import ConfigError
from energy_lightning.workload import ModelShape, preset_names

_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A causal language model.

    Attributes:
        name: for people and tables.
        path: folder with config.json and weights, or None.
        config: transformers configuration of a model with random weights, or None with `path` or `preset`.
        preset: packaged shape, or None.
    """

    name: str
    path: Path | None = None
    config: dict[str, Any] | None = None
    preset: str | None = None

    @classmethod
    def open(cls, name: Any) -> ServedModel:
        """From the setting `served_model`: a folder, a .json file, or the name of a packaged shape.

        Raises:
            ConfigError: it is none of these, or its configuration cannot be read.
        """
        text = str(name)
        if text in preset_names():
            return cls(text, preset=text)
        path = Path(text).expanduser()
        if path.is_dir() and (path / _CONFIG).is_file():
            _read(path / _CONFIG)
            return cls(path.resolve().name, path=path.resolve())
        if path.is_file() and path.suffix == ".json":
            stem = path.resolve().parent.name if path.name == _CONFIG else path.stem
            return cls(stem, config=_read(path))
        raise ConfigError(
            f"served_model={name} is no folder with {_CONFIG}, no .json configuration, and none of "
            f"{', '.join(preset_names())}"
        )

    def shape(self) -> ModelShape:
        """What the emulation needs to know; WorkloadError for a model that it cannot describe."""
        if self.preset is not None:
            return ModelShape.preset(self.preset)
        config = self.config if self.config is not None else _read(Path(str(self.path)) / _CONFIG)
        return ModelShape.from_config(config, name=self.name)

    def options(self) -> dict[str, Any]:
        """model_path and model_config, as a measuring process takes them; ConfigError for a shape that none has."""
        if self.preset is None:
            return {"model_path": None if self.path is None else str(self.path), "model_config": self.config}
        return {"model_path": None, "model_config": _config_of(ModelShape.preset(self.preset))}


def _config_of(shape: ModelShape) -> dict[str, Any]:
    if not (shape.gated and shape.rotary and shape.causal):
        raise ConfigError(
            f"served_model={shape.name} can be emulated only; measure with a folder or a .json configuration"
        )
    return {
        "model_type": "qwen3" if shape.qk_norm else "llama",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": shape.tied_embeddings,
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no JSON configuration: {error}") from error
    if not isinstance(values, dict) or "model_type" not in values:
        raise ConfigError(f"{path} is no transformers configuration: it has no model_type")
    return values
