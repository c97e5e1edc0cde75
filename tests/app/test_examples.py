"""The examples run as written, shortened by their own arguments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = {
    "finetune_bert.py": ["--max-steps", "3", "--batch-size", "2"],
    "finetune_llama.py": ["--max-steps", "8", "--devices", "2", "--tensor-parallel", "2"],
}


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example(name: str, tmp_path: Path, quick_python: str) -> None:
    script = EXAMPLES / name
    assert len(script.read_text().splitlines()) < 60
    command = [quick_python, str(script), *SHORT[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "EMULATED" in done.stdout + done.stderr
    if name == "finetune_llama.py":  # long enough to choose a plan
        assert (tmp_path / "outputs" / "finetune_llama" / "plan.yaml").is_file()
