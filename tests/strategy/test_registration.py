import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from energy_lightning import registration

NAMES = list(registration.START_METHOD_OF)


class Registry(dict[str, Any]):
    def register(self, name: str, strategy: Any, description: str, **init_params: Any) -> None:
        assert name not in self, "registered twice"
        self[name] = (strategy, init_params)


def run_python(code: str, python: str = sys.executable) -> str:
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout


def test_registering_twice_changes_nothing() -> None:
    module = SimpleNamespace(__name__="lightning.pytorch.strategies", StrategyRegistry=Registry())
    registration.register(module)
    before = dict(module.StrategyRegistry)
    registration.register(module)
    assert module.StrategyRegistry == before
    assert {name: params["start_method"] for name, (_, params) in before.items()} == registration.START_METHOD_OF


def test_import_loads_neither_torch_nor_lightning_and_keeps_one_finder() -> None:
    code = """
import sys, importlib
import energy_lightning
from energy_lightning import registration
registration.register_when_imported()
assert not {"torch", "lightning", "pytorch_lightning", "numpy"} & set(sys.modules)
print(sum(type(finder).__name__ == "_PostImportFinder" for finder in sys.meta_path))
"""
    assert run_python(code).strip() == "1"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import energy_lightning", "import lightning.pytorch, pytorch_lightning"])
def test_both_packages_know_the_names_whatever_is_imported_first(first: str, quick_python: str) -> None:
    code = f"""
{first}
import energy_lightning, lightning.pytorch, pytorch_lightning
from importlib.machinery import SourceFileLoader
for package in (lightning.pytorch, pytorch_lightning):
    known = set(package.strategies.StrategyRegistry)
    assert {set(NAMES)!r} <= known, known
    assert isinstance(package.strategies.__loader__, SourceFileLoader)
    assert package.strategies.__spec__.loader is package.strategies.__loader__
print("ok")
"""
    ours_first = first == "import energy_lightning"  # in the other, Lightning may have been imported before
    assert run_python(code, sys.executable if ours_first else quick_python).strip() == "ok"


def test_unknown_attribute_names_the_public_ones() -> None:
    import energy_lightning

    with pytest.raises(AttributeError, match="KareusStrategy"):
        energy_lightning.Kareus  # noqa: B018
    assert "KareusStrategy" in dir(energy_lightning)
