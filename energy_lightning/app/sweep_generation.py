"""Prefill and decode of a local causal language model, timed and measured apart on the device at hand.

Prefill: the prompts of a batch in one pass that fills the cache of keys and values. Decode: the output tokens, one a
sequence and pass, each chosen greedily; the first comes out of prefill, so there is one pass fewer than tokens. All
prompts of a batch are equally long and all outputs too, so nothing is padded and nothing ends early. Not covered:
continuous batching, paged caches, tokenisation, weight quantisation, more than one GPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from energy_lightning.app.sweep_steps import DTYPES
from energy_lightning.app.sweep_windows import Repeated, WindowChoices, measure_repeated
from energy_lightning.types import ConfigError, DataError

if TYPE_CHECKING:
    from energy_lightning.device import Device
    from energy_lightning.measure import EnergyMeter


def load_model(options: Mapping[str, Any], device: torch.device) -> Any:
    """The causal language model of a local folder, or one with random weights of a configuration, ready to generate.

    Nothing is downloaded. `options`: model_path, or model_config (a transformers configuration as a mapping); dtype.

    Raises:
        DataError: the folder holds no such model, or the configuration describes none.
    """
    from transformers import AutoConfig
    from transformers import AutoModelForCausalLM as Untyped

    AutoModelForCausalLM: Any = Untyped
    dtype = DTYPES[options["dtype"]]
    try:
        if options["model_path"] is not None:
            model: Any = AutoModelForCausalLM.from_pretrained(options["model_path"], local_files_only=True, dtype=dtype)
            return model.to(device).eval()
        values = dict(options["model_config"])
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        with device:
            return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = options["model_path"] or options["model_config"]
        raise DataError(f"no causal language model in {where}: {' '.join(str(error).split())[:200]}") from error


class Generation:
    """Prefill and decode of one run on a loaded model; each may be repeated.

    Args:
        model: a transformers causal language model in evaluation mode.
        run: input_tokens, output_tokens and batch_size.

    Attributes:
        prompts: (batch, input_tokens), random tokens.
    """

    def __init__(self, model: Any, run: Mapping[str, Any], device: torch.device) -> None:
        self._model, self._passes = model, run["output_tokens"] - 1
        # transformers calls it `cache` from version 5 on.
        known = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        limit = getattr(model.config, "max_position_embeddings", None)
        needed = run["input_tokens"] + run["output_tokens"]
        if limit is not None and needed > limit:
            raise ConfigError(f"{needed} tokens do not fit the model's max_position_embeddings={limit}")
        shape = (run["batch_size"], run["input_tokens"])
        generator = torch.Generator(device).manual_seed(0)
        self.prompts = torch.randint(model.config.vocab_size, shape, device=device, generator=generator)
        self._first: Any = None
        self._cache: Any = None

    @torch.inference_mode()
    def prefill(self) -> None:
        """One pass over the prompts into an empty cache."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        self._first, self._cache = self._next(self.prompts, cache), cache

    @torch.inference_mode()
    def decode(self) -> torch.Tensor:
        """Output tokens (batch, output_tokens), by a pass for each after the first.

        The cache is then cut back to the prompts, so that it can be repeated.
        """
        tokens = [self._first]
        for _ in range(self._passes):
            tokens.append(self._next(tokens[-1], self._cache))
        if self._passes:
            self._cache.crop(-self._passes)
        return torch.cat(tokens, dim=1)

    def _next(self, tokens: Any, cache: Any) -> Any:
        found = self._model(tokens, use_cache=True, logits_to_keep=1, **{self._cache_name: cache})
        return found.logits[:, -1:].argmax(-1)


def measured_generation(
    run: Mapping[str, Any],
    choices: WindowChoices,
    load: Callable[[], Any],
    device: Device,
    meter: EnergyMeter,
    compute: torch.device,
) -> dict[str, Any]:
    """Seconds and joules of a batch's prefill and decode, and of one of its requests (energy_j, over the one GPU)."""
    generation = Generation(load(), run, compute)
    prefill = measure_repeated(device, meter, generation.prefill, choices)
    none = Repeated(0.0, 0.0, 0.0, 0, prefill.source)
    decode = measure_repeated(device, meter, generation.decode, choices) if run["output_tokens"] > 1 else none
    return {
        "prefill_time_s": prefill.time_s,
        "decode_time_s": decode.time_s,
        "latency_s": prefill.time_s + decode.time_s,
        "prefill_energy_j": prefill.energy_j / run["batch_size"],
        "decode_energy_j": decode.energy_j / run["batch_size"],
        "energy_j": (prefill.energy_j + decode.energy_j) / run["batch_size"],
        "energy_spread": max(prefill.spread, decode.spread),
        "temperature_c": device.temperature_c(),
        "energy_source": prefill.source,
    }
