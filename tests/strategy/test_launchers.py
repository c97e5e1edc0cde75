"""The four ways to start the processes of one job give the same weights."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("launched_script.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run_script(interpreter: list[str], strategy: str, package: str, folder: Path) -> set[tuple[str, str, str]]:
    """{(rank, world size, sum of weights)} of the processes that reached the script's end."""
    paths = [str(SCRIPT.parent), str(SCRIPT.parents[2])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [*interpreter, str(SCRIPT), strategy, package]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    return set(re.findall(r"RESULT rank=(\d) of=(\d) sum=([-\d.]+)", run.stdout))


@pytest.fixture(scope="module")
def popen_results(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str, str]]:
    return run_script([sys.executable], "kareus", "lightning.pytorch", tmp_path_factory.mktemp("popen"))


@pytest.mark.distributed
@pytest.mark.slow
def test_popen_trains_the_same_weights_on_both_ranks(popen_results: set[tuple[str, str, str]]) -> None:
    assert {(rank, size) for rank, size, _ in popen_results} == {("0", "2"), ("1", "2")}
    assert len({weights for _, _, weights in popen_results}) == 1


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "strategy", "package"),
    [
        (TORCHRUN, "kareus", "lightning.pytorch"),
        ([], "kareus_spawn", "pytorch_lightning"),
        ([], "kareus_fork", "lightning.pytorch"),
    ],
    ids=["torchrun", "spawn", "fork"],
)
def test_other_launchers_end_in_the_weights_of_popen(
    launcher: list[str],
    strategy: str,
    package: str,
    popen_results: set[tuple[str, str, str]],
    tmp_path: Path,
    quick_python: str,
) -> None:
    results = run_script([quick_python, *launcher], strategy, package, tmp_path)
    assert {weights for _, _, weights in results} == {weights for _, _, weights in popen_results}
    assert len(results) == (2 if launcher else 1)  # spawn and fork leave the parent, with the weights given back
