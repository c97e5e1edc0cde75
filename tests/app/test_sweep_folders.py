"""Commands whose output folder cannot be written to: one line, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from energy_lightning.app import main
from energy_lightning.app.hydra_jobs import checked_arguments

COMMANDS = {
    "sweep": ["sweep", "count=2"],
    "predict training": ["predict", "training", "preset=bert_base", "tokens=1e6"],
    "predict inference": ["predict", "inference", "model_file=m.yaml", "csv=t.csv"],
    "fit": ["fit", "kind=inference", "csv=t.csv"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_costs_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([*COMMANDS[command], f"output_dir={tmp_path}/file/sub"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: cannot write into {tmp_path}/file/sub: Not a directory; give a folder with")
    assert len(error.splitlines()) == 1


def test_asking_for_help_makes_no_folder(tmp_path: Path) -> None:
    checked_arguments(["--help", f"output_dir={tmp_path}/new"], "sweep")
    assert not (tmp_path / "new").exists()
    checked_arguments([f"output_dir={tmp_path}/new"], "sweep")
    assert (tmp_path / "new").is_dir()
