"""The package as a whole: its floors, its import cycles, and the wheel that people install."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "energy_lightning"

# Module or package below energy_lightning -> its floor. A module imports from its own floor and from floors below.
FLOORS = {
    0: ["errors", "budget", "plan", "types", "workload"],
    1: ["search", "frontier", "emulation", "predict", "recurring"],
    2: ["device"],
    3: ["measure", "collectives", "partition", "parallel"],
    4: [
        *("strategy", "strategy_parts", "callbacks", "lightning", "pytorch_lightning", "registration", "tasks"),
        *("power_limit", "batch_size"),
    ],
    5: ["report", "app"],
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names}
HEAVY = ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "pynvml", "zeus")


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports_of(path: Path, *, at_import: bool) -> set[str]:
    """Modules of this package that a file imports: when it is imported, or at any time except for type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child)
            return
        if at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.update({f"{node.module}.{a.name}" for a in node.names} & set(MODULES) or {node.module})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return {name for name in found if name.split(".")[0] == "energy_lightning"}


def floor_of(module: str) -> int | None:
    _, _, rest = module.partition(".")
    return FLOOR_OF[rest.split(".")[0]] if rest else None


def test_every_module_has_a_floor() -> None:
    unknown = {name for name in MODULES if "." in name and name.split(".")[1] not in FLOOR_OF}
    assert not unknown, f"say in FLOORS where {sorted(unknown)} belong"


@pytest.mark.parametrize("module", [name for name in MODULES if "." in name])
def test_imports_point_down(module: str) -> None:
    own = floor_of(module)
    for imported in imports_of(MODULES[module], at_import=False):
        other = floor_of(imported)
        assert other is None or own is None or other <= own, (
            f"{module} (floor {own}) imports {imported} (floor {other})"
        )


def test_no_import_cycles() -> None:
    graph = {name: imports_of(path, at_import=True) & set(MODULES) - {name} for name, path in MODULES.items()}
    while leaves := [name for name, needs in graph.items() if not needs & set(graph)]:
        for name in leaves:
            del graph[name]
    # A package that collects the names of its modules is no cycle: they import each other, not the package.
    assert not graph, f"import cycle among {sorted(graph)}"


@pytest.mark.parametrize("floors", [(0, 1), (0, 1, 2)], ids=["numbers only", "with devices"])
def test_low_floors_need_no_heavy_package(floors: tuple[int, ...]) -> None:
    wanted = [name for name in MODULES if floor_of(name) in floors]
    code = f"import importlib, sys\nfor name in {wanted}: importlib.import_module(name)\n"
    code += f"print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_commands_that_fit_nothing_load_little() -> None:
    """The one that starts a training lives as long as that; a store is looked at often."""
    code = "import energy_lightning.app.train, energy_lightning.app.recurring, sys\n"
    code += f"print([name for name in {(*HEAVY, 'scipy', 'sklearn', 'pandas')} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():  # a copy, so that building leaves nothing in the checkout
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_all_of_conf(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", "energy_lightning", "conf"], cwd=ROOT, capture_output=True, text=True)
    expected = {
        name.replace("conf/", "energy_lightning/_conf/", 1) if name.startswith("conf/") else name
        for name in tracked.stdout.split()
        if (ROOT / name).is_file()
    }
    assert expected
    assert not expected - names
    assert not [name for name in names if name.startswith(("tests/", "conf/", "examples/"))]


def test_the_installed_command_finds_its_configuration(wheel: Path, tmp_path: Path) -> None:
    """From the wheel alone, in a folder without the checkout: conf/ is found and an unknown choice is refused."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from energy_lightning.app import main\n"
        "from energy_lightning.app.configuration import conf_dir\n"
        "print(conf_dir())\n"
        "sys.exit(main(['train', 'budget=free']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == str(site / "energy_lightning" / "_conf")
    assert done.returncode == 2
    assert "unknown budget=free. Known choices: deadline, energy_budget" in done.stderr
