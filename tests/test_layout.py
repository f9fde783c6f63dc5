"""The packages import one way.

launch -> recipes -> embedded -> rewards -> rollout -> sandbox -> data_sources -> leaf modules.
"""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import read

ROOT = Path(__file__).parents[1]
ORDER = ("data_sources", "sandbox", "rollout", "rewards", "embedded", "recipes", "launch")
MODULES = sorted(path for package in ORDER for path in (ROOT / package).rglob("*.py"))
SHARED = ROOT / "src" / "slime_swe"  # beside the links to the packages
LEAVES = sorted([*SHARED.glob("*.py"), *(path for path in SHARED.glob("*/*.py") if not path.parent.is_symlink())])


def imported_packages(source: str) -> set[str]:
    """The package of every import of a module, those inside functions too: ours by the name below `slime_swe`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {_package(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {_package(f"{node.module}.{alias.name}") for alias in node.names}
    return names


def _package(name: str) -> str:
    return name.removeprefix("slime_swe.").partition(".")[0]


def imported_modules(path: Path, names: set[str]) -> set[str]:
    """Our modules that a module imports, those inside functions and those for a type checker alone too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= parts & names or {str(node.module)}
    return (found & names) - {name_of(path)}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("slime_swe", *parts[2 if parts[0] == "src" else 0 :])).removesuffix(".__init__")


def test_no_module_imports_itself_by_way_of_others():
    names = {name_of(path) for path in (*MODULES, *LEAVES)}
    graph = {name_of(path): imported_modules(path, names) for path in (*MODULES, *LEAVES)}
    assert len(graph["slime_swe.recipes.base"]) > 1
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the modules of a circle


def test_the_product_has_no_more_files_than_it_had():
    """What is only read together belongs into one file. A new variant, such as an agent, may raise the number."""
    assert len(MODULES) + len(LEAVES) <= 443


EPISODE = (  # a native agent in a local sandbox, graded by the values of calls
    *("data_sources.slime_plugin", "rollout.slime_plugin", "rollout.agents.native", "sandbox.local"),
    *("rewards.slime_plugin", "rewards.call_values"),
)


def test_an_episode_is_followed_through_no_more_modules_than_it_was():
    names = {name_of(path): path for path in (*MODULES, *LEAVES)}
    found: set[str] = set()
    wanted = {f"slime_swe.{name}" for name in EPISODE}
    while wanted:
        found |= wanted
        wanted = set().union(*(imported_modules(names[name], set(names)) for name in wanted)) - found
    assert len({name for name in found if names[name].read_text().strip()}) <= 72


def test_the_modules_that_all_share_import_no_package():
    assert not {str(path): found for path in LEAVES if (found := imported_packages(path.read_text()) & {*ORDER})}


@pytest.mark.parametrize("folder", [*ORDER, "tests", "benchmarks"])
def test_nothing_is_imported_by_the_name_of_its_folder(folder):
    """Under it a module would be loaded a second time, and one of the user's own could be meant."""
    bare = re.compile(rf"(?:^\s*(?:from|import) |\bfiles\(\")(?:{'|'.join(ORDER)})\b", re.MULTILINE)
    assert [str(path) for path in (ROOT / folder).rglob("*.py") if bare.search(path.read_text())] == []


@pytest.mark.parametrize("package", ORDER)
def test_no_package_imports_one_above_it(package):
    above = set(ORDER[ORDER.index(package) + 1 :])
    wrong = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in MODULES
        if path.relative_to(ROOT).parts[0] == package and (found := imported_packages(path.read_text()) & above)
    }
    assert not wrong


def test_a_recipe_is_made_without_the_rest():
    """Whoever reads `recipes/base.py` has little else to read, and a recipe needs no engine, sandbox or grader."""
    code = "import sys, slime_swe.recipes.base; print(*(name for name in sys.modules if name.startswith('slime_swe.')))"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True)
    found = {*done.stdout.decode().split()} - {"slime_swe.recipes"}
    assert "slime_swe.recipes.base" in found, done.stderr
    assert len(found - {"slime_swe.recipes.base"}) <= 6, found


def test_a_recipe_reads_nothing_from_the_environment():
    reading = re.compile(r"\b(environ|getenv)\b")
    assert not [str(path) for path in (ROOT / "recipes").rglob("*.py") if reading.search(path.read_text())]


@pytest.mark.parametrize("package", ("benchmarks", "docker", "docs"))
def test_folders_that_are_no_packages_stay_none(package):
    assert not (ROOT / package / "__init__.py").exists()


def bound(path: Path) -> set[str]:
    """The names that a module binds, those inside functions too."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    imported = {
        alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return defined | imported | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_benchmarks_import_what_there_is():
    """Most of them run in the extended tests alone, and the type checker reads none."""
    modules = {name_of(path): path for path in (*MODULES, *LEAVES)}
    missing = {
        f"{path.name}: {node.module}.{alias.name}"
        for path in (ROOT / "benchmarks").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slime_swe")
        for alias in node.names
        if f"{node.module}.{alias.name}" not in modules
        and not (node.module in modules and alias.name in bound(modules[str(node.module)]))
    }
    assert not missing


def test_only_the_plug_ins_and_the_type_shims_import_slime():
    importing = {str(p.relative_to(ROOT)) for p in [*MODULES, *LEAVES] if "slime" in imported_packages(p.read_text())}
    allowed = {"src/slime_swe/sample.py", "launch/slime_cpu/shims.py"}
    assert {path for path in importing if not path.endswith("slime_plugin.py")} <= allowed


def test_trees_are_made_by_one_thread_at_a_time():
    """But for programs that a sandbox runs, which are alone in their process."""
    making = {str(p.relative_to(ROOT)) for p in [*MODULES, *LEAVES] if "ast.parse(" in p.read_text()}
    programs = {"rewards/redteam/searcher.py", "data_sources/arc/tool/program.py", "data_sources/synthetic/runtests.py"}
    assert making == {"src/slime_swe/syntax.py", *programs}


CLOCKS = re.compile(
    r"(\b(monotonic|perf_counter|process_time|thread_time)(_ns)?|\.time(_ns)?|default_timer|getrusage|getloadavg"
    r"|cpu_percent|cpu_times|memory_info|memory_percent|virtual_memory)$"
)


def asserts_of_clocks(source: str) -> set[int]:
    """The lines of each `assert` of a time or of a use of the machine, be it by names that its function gives to it.

    Not seen: what an attribute holds, what another function returns, and what is raised otherwise.
    """
    lines: set[int] = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes, timed, before = [*ast.walk(function)], set[str](), None
            naming = [(getattr(node, "iter", node), names) for node in nodes if (names := _names_given(node))]
            while timed != before:
                before, timed = timed, timed.union(*(names for value, names in naming if _measures(value, timed)))
            lines |= {node.lineno for node in nodes if isinstance(node, ast.Assert) and _measures(node.test, timed)}
    return lines


def _measures(node: ast.AST, timed: set[str]) -> bool:
    called = (ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call))
    named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return bool(timed & named) or any(map(CLOCKS.search, called))


def _names_given(node: ast.AST) -> set[str]:
    places = getattr(node, "targets", [getattr(node, "target", None)])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "add"):
        places = [node.func.value]
    places = [place.value if isinstance(place, ast.Subscript) else place for place in places]
    names = [each for place in places if place for each in ast.walk(place) if isinstance(each, ast.Name)]
    return {name.id for name in names if name in places or isinstance(name.ctx, ast.Store)}


def test_no_test_judges_by_the_clock():
    """It would say something else on a slower or busy machine. Ratios are taken in tests/effort.py."""
    found = {str(path): asserts_of_clocks(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    assert not {path: sorted(lines) for path, lines in found.items() if lines}


def test_a_planted_clock_is_found():
    planted = """async def test_it(loop):
        self.begun, begun, took = 0, time.monotonic(), []
        took.append(time.perf_counter_ns() - begun)
        seen["all"] = took
        for one in seen.values():
            assert one < 5 and loop.done
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 30
        assert self.begun == 0 and loop.done, begun"""
    assert asserts_of_clocks(planted) == {6, 7}


def test_each_fault_of_the_mutants_can_be_made():
    """Its text is in its file once, and the tests that are to notice it exist."""
    for mutant in read(ROOT / "tests" / "mutants" / "mutants.toml"):
        assert (ROOT / mutant.file).read_text().count(mutant.old) == 1, mutant.name
        assert all((ROOT / test).exists() for test in mutant.tests), mutant.name
