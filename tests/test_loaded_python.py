"""The stand-in for the interpreter does what the interpreter would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from loaded_python import loaded_python

CODE = """
import os, sys, tempfile
loaded = {"torch", "lightning", "transformers", "energy_lightning"} & set(sys.modules)
print(sorted(loaded), sys.path[0] == "", sys.argv)
print(tempfile.gettempdir(), sys.modules["torch"].get_num_threads())
print(os.getcwd(), os.environ["ONLY"], "PATH" in os.environ, sys.stdin.read(), os.read(int(sys.argv[1]), 9))
print(os.path.basename(sys.executable), __name__, file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def _stands_in(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--real-python"):
        pytest.skip("nothing stands in for the interpreter")


def test_arguments_folder_environment_files_and_exit_code(quick_python: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"by a pipe")
    done = subprocess.run(
        [quick_python, "-c", CODE, str(reading)],
        cwd=tmp_path,
        env={"ONLY": "this", "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "3"},
        input="by input",
        pass_fds=[reading],
        capture_output=True,
        text=True,
    )
    for end in (reading, writing):
        os.close(end)
    loaded = f"['lightning', 'torch', 'transformers'] True ['-c', '{reading}']"
    assert done.stdout == f"{loaded}\n{tmp_path} 3\n{tmp_path} this False by input b'by a pipe'\n"
    assert done.stderr == "python __main__\n"
    assert done.returncode == 3


def test_files_and_modules_are_run_with_what_pythonpath_customizes(quick_python: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = 1\n")
    code = "import __main__, sys\nprint(getattr(__main__.__spec__, 'name', None), sys.argv[1:], customized)\n"
    (tmp_path / "beside.py").write_text(code)
    (tmp_path / "script.py").write_text("import beside\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for name, arguments in ((None, ["-u", str(tmp_path / "script.py"), "-x"]), ("script", ["-m", "script", "-x"])):
        said = {
            subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, check=True).stdout
            for python in (quick_python, sys.executable)
        }
        assert said == {f"{name} ['-x'] 1\n"}


def test_signals_errors_and_deaths_pass_both_ways(quick_python: str) -> None:
    for code in ("1 / 0", "raise SystemExit('no')", "raise SystemExit", "raise KeyboardInterrupt", "print(1)"):
        code = f"import atexit; atexit.register(print, 'exit handler'); {code}"
        ends = [
            (done.returncode, done.stdout, done.stderr.splitlines()[-1:])
            for python in (quick_python, sys.executable)
            for done in [subprocess.run([python, "-c", code], capture_output=True, text=True)]
        ]
        assert ends[0] == ends[1]
    sleeping = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen([quick_python, "-c", sleeping], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            assert pid != process.pid
            process.send_signal(number)
            assert process.wait() == -number
        until_s = time.monotonic() + 60.0
        while psutil.pid_exists(pid) and time.monotonic() < until_s:
            time.sleep(0.005)
        assert not psutil.pid_exists(pid)


def test_what_runs_when_the_loaded_process_ends_is_killed_and_has_failed(tmp_path: Path) -> None:
    sleeping = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with loaded_python(tmp_path, loaded=()) as python:
        process = subprocess.Popen([python, "-c", sleeping], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
    with process:
        assert process.wait() == 1
        assert process.stdout.read() == ""  # it has ended, too
    assert subprocess.run([python, "-c", "1"], stderr=subprocess.DEVNULL).returncode != 0


def test_options_of_the_interpreter_itself_start_a_real_one(quick_python: str) -> None:
    code = "import sys; print(sys.flags.no_site, 'torch' in sys.modules, sys.executable)"
    done = subprocess.run([quick_python, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"1 False {sys.executable}\n"
