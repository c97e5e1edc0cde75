"""Every code block of the README runs; long trainings are shortened by further arguments."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if language == "bash" for line in block.replace("\\\n", "").splitlines()]

SHORT = [
    "trainer.max_steps=2",
    "trainer.limit_val_batches=1",
    "data.limit=64",
    "data.batch_size=4",
    "data.max_length=16",
]
SHORT += ["trainer.accelerator=cpu", "validate_first=false", "+trainer.enable_progress_bar=false"]

SHORTER = {
    "plan": ["points=3", "frequencies_mhz=[1110,1260,1410]", "compare_with=[]"],
    "predict": ["emulated_runs=40"],
    "sweep": ["count=30"],
    "doctor": [],
}

# Started as users start them: the first that trains, and those that load nothing of Lightning.
AS_USERS_DO = ("energy-lightning train model=bert ", "plan ", "predict ", "sweep ", "doctor")

MODULES = {
    "energy-lightning": ["-m", "energy_lightning.app"],
    "torchrun": ["-m", "torch.distributed.run"],
    "python": [],
}

# What the README's snippets take for granted, in a file that Lightning's other ranks run again.
BEFORE = """
from energy_lightning.tasks.data import NextTokenData
from energy_lightning.tasks.models import ModelSpec, build_model
from energy_lightning.tasks.modules import NextToken
from energy_lightning.tasks.sources import TextFile
from lightning.pytorch import seed_everything

seed_everything(0)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = NextToken(build_model(ModelSpec("next_token", architecture="llama", config=sizes), tokenizer="bytes"))
data = NextTokenData(TextFile(r"TEXT"), max_length=16, batch_size=4, limit=16)
"""


def run(command: list[str], folder: Path) -> str:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # as where the package is activated
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.distributed
def test_python_blocks_run_as_one_script(tmp_path: Path, quick_python: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    blocks = [block for language, block in BLOCKS if language == "python"]
    assert len(blocks) == 5
    for number, block in enumerate(blocks):
        script = tmp_path / f"block_{number}.py"
        above = "from lightning.pytorch import Trainer\n" if number else ""  # the first block imports it
        script.write_text(BEFORE.replace("TEXT", str(text)) + above + block)
        printed = run([quick_python, str(script)], tmp_path)
        assert "EMULATED" in printed or "Trainer(" not in block


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("line", [line for line in COMMANDS if not line.startswith("make ")])
def test_commands_run(line: str, tmp_path: Path, quick_python: str) -> None:
    program, *arguments = shlex.split(line)
    short = next((arguments for name, arguments in SHORTER.items() if f" {name} " in f"{line} "), SHORT)
    if "--multirun" in line:
        short = [*SHORT, "model=bert_small", "model.config.hidden_size=32"]
    python = sys.executable if any(words in line for words in AS_USERS_DO) else quick_python
    printed = run([python, *MODULES[program], *arguments, *short], tmp_path)
    summaries = list(tmp_path.rglob("summary.json"))
    assert len(summaries) == (0 if "doctor" in line else 2 if "--multirun" in line else 1)
    assert "doctor" not in line or "A job uses:" in printed
    for summary in summaries:
        assert '"status": "completed"' in summary.read_text()


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("make ")])
def test_make_targets_exist(line: str) -> None:
    run([*shlex.split(line), "--dry-run"], ROOT)


def test_files_it_names_exist() -> None:
    for name in re.findall(r"\]\(((?!https?://)[^)]+)\)", README):
        assert (ROOT / name).is_file(), name
    assert len(BLOCKS) >= 5
