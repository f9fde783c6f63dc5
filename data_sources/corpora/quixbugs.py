"""QuixBugs: forty small programs with one faulty line each, in Python and in Java; its own tests are the oracle.

A task is a small repository: the program, what it needs, and its tests. QuixBugs does not say which tests fail with the
faulty program. `quixbugs_files/tests.json` does; it was made by running both versions in a sandbox. Tests that take
minutes (one of knapsack, one of levenshtein) are skipped, as QuixBugs itself does. Upstream: jkoppel/QuixBugs.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from slime_swe.data_sources.corpora.corpus import Corpus, Split, checkout_folder
from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.patches import make_patch

CORPUS = Corpus(
    name="quixbugs",
    title="QuixBugs",
    licence="MIT",
    home="https://github.com/jkoppel/QuixBugs",
    commit="4257f44b0ff1181dedaedee6a447e133219fcebf",
    counted="the readme: 40 programs in each language",
    needs="nothing for Python; a JDK and JUnit 4 (Debian: default-jdk-headless junit4) for Java",
    splits={"python": Split(40, "Python"), "java": Split(40, "Java")},
    in_images=False,
)
TIMEOUT = 60.0  # seconds; a test that never ends takes two or three
_JAVA_HELPERS = ("Node", "WeightedEdge")


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Return the tasks in one language, `python` or `java`. Raises `UserError` where QuixBugs is not in the folder."""
    root = checkout_folder(CORPUS, split, folder, "json_testcases")
    make = {"python": _python_task, "java": _java_task}[split]
    return [make(root, name) for name in sorted(_tests(split)) if _is_there(root, split, name)]


def _is_there(root: Path, split: str, name: str) -> bool:
    """Say whether a clone, which may hold a part only, has this program."""
    path = f"python_programs/{name}.py" if split == "python" else f"java_programs/{name.upper()}.java"
    return (root / path).is_file()


def _python_task(root: Path, name: str) -> Task:
    program, test = f"python_programs/{name}.py", f"python_testcases/test_{name}.py"
    paths = [program, test, "python_testcases/load_testdata.py", "python_testcases/node.py"]
    paths.append(f"json_testcases/{name}.json")
    files = _read(root, [path for path in paths if (root / path).is_file()]) | {"runtests.py": _ours("runtests.py")}
    fixed = _code(_read(root, [f"correct_{program}"])[f"correct_{program}"]) + _documentation(files[program])
    return _task("python", name, files, program, fixed, f"python3 -I -S -B runtests.py {test}", test)


def _java_task(root: Path, name: str) -> Task:
    upper = name.upper()
    program, test = f"java_programs/{upper}.java", f"java_testcases/junit/{upper}_TEST.java"
    helpers = [f"java_programs/{helper}.java" for helper in _JAVA_HELPERS]
    paths = [program, test, "java_testcases/junit/QuixFixOracleHelper.java", *helpers]
    files = _read(root, [path for path in paths if (root / path).is_file()])
    files |= {file: _ours(file) for file in ("runtests.sh", "RunTests.java")}
    right = _read(root, [f"correct_{program}"])[f"correct_{program}"]
    fixed = right.replace("package correct_java_programs;", "package java_programs;")
    return _task("java", name, files, program, fixed, f"bash runtests.sh {upper}", test)


def _task(language: str, name: str, files: dict[str, str], program: str, fixed: str, command: str, test: str) -> Task:
    known = _tests(language)[name]
    failing, passing = ([f"{test}::{case}" for case in known[kind]] for kind in ("fail", "pass"))
    oracle = TestsOracle(
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(passing),
        protected=tuple(sorted(files.keys() - {program})),
        command=command,
        gold_patch=make_patch({program: files[program]}, {program: fixed}),
        timeout_seconds=TIMEOUT,
        runner="lines",
    )
    statement = (
        f"The program {program} has a fault: these of its tests fail.\n"
        + "\n".join(failing[:3])
        + f"\nRepair the program. `{command}` runs its tests, which are right."
    )
    about = {"repo": "jkoppel/QuixBugs", "program": name, "language": language}
    return Task(f"quixbugs-{language}-{name}", statement, Workspace(files), oracle, "quixbugs", language, about)


def _read(root: Path, paths: list[str]) -> dict[str, str]:
    return {path: (root / path).read_text(encoding="utf-8").replace("\r\n", "\n") for path in paths}


def _code(source: str) -> str:
    """Return the source without its documentation, which stands in a string after it."""
    return source.partition('\n"""')[0].rstrip("\n") + "\n"


def _documentation(source: str) -> str:
    code, quotes, text = source.partition('\n"""')
    return "\n" * (len(code) - len(code.rstrip("\n"))) + quotes + text if quotes else ""


@cache
def _tests(language: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(_ours("tests.json"))[language]
    return found


def _ours(name: str) -> str:
    return (resources.files(__package__) / "quixbugs_files" / name).read_text(encoding="utf-8")
