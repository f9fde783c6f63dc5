"""The packages import one way: launch -> recipes -> embedded -> rewards -> rollout -> data_sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = ("data_sources", "rollout", "rewards", "embedded", "recipes", "launch")
MODULES = sorted(path for package in ORDER for path in (ROOT / package).rglob("*.py"))


def imported_packages(source: str) -> set[str]:
    """Top-level names of every import of a module, those inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("package", ORDER)
def test_no_package_imports_one_above_it(package):
    above = set(ORDER[ORDER.index(package) + 1 :])
    wrong = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in MODULES
        if path.relative_to(ROOT).parts[0] == package and (found := imported_packages(path.read_text()) & above)
    }
    assert not wrong


@pytest.mark.parametrize("package", ("benchmarks", "docker", "docs", "tests"))
def test_folders_that_are_no_packages_stay_none(package):
    assert not (ROOT / package / "__init__.py").exists()


def test_only_the_plug_ins_and_the_type_shims_import_slime():
    importing = {str(p.relative_to(ROOT)) for p in MODULES if "slime" in imported_packages(p.read_text())}
    allowed = {"data_sources/sample.py", "rewards/filter_output.py", "launch/slime_cpu/shims.py"}
    assert {path for path in importing if not path.endswith("slime_plugin.py")} <= allowed
