"""Aider's polyglot benchmark: 225 of Exercism's harder exercises in six languages, each with hidden tests.

An exercise is a stub, which the policy fills, instructions, an example solution (in `.meta`; the gold patch) and tests.
As in Aider's benchmark, the policy sees the stub and the instructions alone, and tests that Exercism skips at first are
run too; all of them must pass within 180 seconds. In Python each test counts by its name, in the other languages the
exit code of their command. What differs is in docs/humaneval_polyglot.md. Upstream: Aider-AI/polyglot-benchmark.
"""

from __future__ import annotations

import ast
import logging
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from glob import glob
from importlib import resources
from pathlib import Path, PurePosixPath

import msgspec

from slime_swe import syntax
from slime_swe.data_sources.corpora.corpus import Corpus, Split, checkout_folder
from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.data_sources.test_log import by_exit_code
from slime_swe.errors import UserError
from slime_swe.patches import make_patch

CORPUS = Corpus(
    name="polyglot",
    title="Aider's polyglot benchmark",
    licence="MIT",
    home="https://github.com/Aider-AI/polyglot-benchmark",
    commit="7e0611e77b54e2dea774cdc0aa00cf9f7ed6144f",
    counted="its folders",
    needs="nothing for Python; else the toolchain (docs/humaneval_polyglot.md)",
    splits={
        "all": Split(225, "those whose toolchain this machine has"),
        "cpp": Split(26, "C++"),
        "go": Split(39, "Go"),
        "java": Split(47, "Java"),
        "javascript": Split(49, "JavaScript"),
        "python": Split(34, "Python"),
        "rust": Split(30, "Rust"),
    },
    in_images=False,
)
TIMEOUT = 180.0  # seconds, as in Aider's benchmark
_log = logging.getLogger(__name__)
_JARS = "/usr/share/java"


@dataclass(frozen=True)
class Language:
    """The way in which the exercises of one language are run. needs: programs on PATH, or files. command: with `{name}`
    for the exercise's, and `{tests}` for its test files. ours: files of `polyglot_files` that it needs. never_shown:
    names of further files that belong to the tests."""

    needs: tuple[str, ...]
    command: str
    ours: tuple[str, ...] = ()
    never_shown: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The needs that this machine lacks."""
        return tuple(need for need in self.needs if not is_here(need))


# The needs of an exercise beyond its language's toolchain, and whether they are here.
#
# Nothing is downloaded: libraries are where Debian's packages put them, which a local sandbox sees.
CRATES = Path("/usr/share/cargo/registry")
_PATH = "/usr/local/bin:/usr/bin:/bin"  # a local sandbox's; it sees no home, where rustup puts cargo


def is_here(need: str) -> bool:
    """Say whether a need is on this machine: a program, or a file where it has a `/`."""
    return Path(need).exists() if "/" in need else shutil.which(need, path=_PATH) is not None


# --jitless: with a JIT compiler, node reserves more addresses than a process of a local sandbox may have.
LANGUAGES: Mapping[str, Language] = {
    "cpp": Language(
        ("cmake", "make", "g++"),
        'd=$(mktemp -d)/{name} && cp -r . "$d" && cmake -DEXERCISM_RUN_ALL_TESTS=1 -S "$d" -B "$d/build" && '
        'make -C "$d/build"',
        never_shown=("test/*",),
    ),
    "go": Language(
        ("go",),
        "GOCACHE=$(mktemp -d) GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local go test -timeout 60s ./...",
        never_shown=("*_test.go",),
    ),
    "java": Language(
        ("javac", f"{_JARS}/junit-platform-console-standalone.jar", f"{_JARS}/assertj-core.jar"), "bash runtests.sh",
        ("runtests.sh",),
    ),
    "javascript": Language(("node",), "node --jitless runtests.mjs {tests}", ("runtests.mjs",)),
    "python": Language(("python3",), "python3 -I -S -B runtests.py {tests}", ("runtests.py",)),
    "rust": Language(
        ("cargo",),
        "CARGO_TARGET_DIR=$(mktemp -d) cargo --offline --config 'source.crates-io.replace-with=\"debian\"' "
        f"--config 'source.debian.directory=\"{CRATES}\"' test -- --include-ignored",
    ),
}  # fmt: skip


class _Files(msgspec.Struct):
    solution: list[str]
    test: list[str]
    example: list[str]


class _Config(msgspec.Struct):
    files: _Files


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Return the exercises in one language; of `all`, those in languages whose toolchain is here. Warnings name
    languages and exercises that are left out, and why. Raises `UserError` where the benchmark is not in the folder."""
    root = checkout_folder(CORPUS, split, folder, "python")
    languages = [split] if split != "all" else [name for name in LANGUAGES if not _left_out(name)]
    return [task for language in languages for task in _exercises(root / language / "exercises" / "practice", language)]


def _exercises(folder: Path, language: str) -> Iterator[Task]:
    left = []
    for path in sorted(folder.glob("*")):
        reason = why_left_out(path, language)
        if reason:
            left.append(f"{path.name} ({reason})")
        else:
            yield _task(path, language)
    if left:
        _log.warning("polyglot: left out in %s: %s", language, ", ".join(left))


_BOOST = "/usr/lib/*/libboost_date_time.*"
_MEMORY = "its example needs more memory than a local sandbox has"
_STUB_PASSES = "its stub passes, since it is to be rewritten"
# Exercises that prove nothing wherever they run, or not in a local sandbox.
_UNSOUND: Mapping[str, Mapping[str, str]] = {
    "go": {
        "alphametics": _MEMORY,
        "counter": "it has no tests",
        "ledger": _STUB_PASSES,
        "markdown": _STUB_PASSES,
    },
    "java": {
        "bank-account": "its example fails its tests",
        "connect": "its example has files that its list of solutions lacks",
        "ledger": _STUB_PASSES,
        "mazy-mice": "it needs a newer AssertJ than Debian 12's",
        "tree-building": _STUB_PASSES,
    },
    "javascript": {"ledger": _STUB_PASSES, "parallel-letter-frequency": _MEMORY},
}


def why_left_out(exercise: Path, language: str) -> str:
    """Say why an exercise can't prove itself here; empty where it can."""
    if reason := _UNSOUND.get(language, {}).get(exercise.name):
        return reason
    match language:
        case "cpp" if "find_package(Boost" in _text(exercise / "CMakeLists.txt") and not glob(_BOOST):
            return "it needs Boost (Debian: libboost-date-time-dev)"
        case "go":
            return _missing_packages(exercise)
        case "java" if named := re.findall(r"^\s*implementation\W+([^\"']+)", _text(exercise / "build.gradle"), re.M):
            return f"it needs {' and '.join(named)}"
        case "rust":
            return _missing_crates(exercise)
    return ""


def _missing_packages(exercise: Path) -> str:
    go = shutil.which("go", path=_PATH)
    imports = re.search(r"^import \((.*?)^\)", _text(exercise / ".meta" / "example.go"), re.M | re.S)
    if go is None or imports is None:
        return ""
    library = Path(go).resolve().parents[1] / "src"
    absent = [name for name in re.findall(r'^\s*"(.+)"', imports[1], re.M) if not (library / name).exists()]
    return f"its example needs a newer Go, with {' and '.join(absent)}" if absent else ""


def _missing_crates(exercise: Path) -> str:
    named = _crates(exercise / "Cargo.toml")
    if absent := [crate for crate in named if not any(CRATES.glob(f"{crate}-[0-9]*"))]:
        return f"it needs crates (Debian: {' '.join(f'librust-{crate}-dev' for crate in absent)})"
    example = _text(exercise / ".meta" / "example.rs")
    used = [crate for crate in _crates(exercise / ".meta" / "Cargo-example.toml") if crate.replace("-", "_") in example]
    extra = [crate for crate in used if crate not in named]
    return f"its example needs crates that its Cargo.toml does not name: {' '.join(extra)}" if extra else ""


def _crates(manifest: Path) -> list[str]:
    return list(tomllib.loads(_text(manifest)).get("dependencies", {}))


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


def _left_out(name: str) -> bool:
    missing = LANGUAGES[name].missing
    if missing:
        _log.warning("polyglot: %s is left out, as this machine lacks %s", name, ", ".join(missing))
    return bool(missing)


def _task(root: Path, name: str) -> Task:
    try:
        config = msgspec.json.decode((root / ".meta" / "config.json").read_bytes(), type=_Config).files
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"polyglot: {root} is no exercise of Exercism ({error})") from error
    language = LANGUAGES[name]
    every = _texts(root)
    hidden = {path: _enabled(text) for path, text in every.items() if _is_hidden(path, config, language)}
    hidden |= {path: _ours(path) for path in language.ours}
    shown = {path: text for path, text in every.items() if path not in hidden}
    solution = [path for path in config.solution if path in shown and PurePosixPath(path).name not in _BUILD_FILES]
    exercise = f"polyglot-{name}-{root.name}"
    failing, passing = _tests(exercise, name, config, hidden)
    command = language.command.format(name=root.name, tests=" ".join(config.test))
    oracle = TestsOracle(
        fail_to_pass=failing,
        pass_to_pass=passing,
        protected=tuple(sorted(shown.keys() - set(solution))),
        command=command if name == "python" else by_exit_code([(failing[0], command)]),
        gold_patch=make_patch(shown, {**shown, **_solved(root, config, solution)}),
        timeout_seconds=TIMEOUT,
        runner="lines",
        hidden=hidden,
    )
    about = {"repo": "Aider-AI/polyglot-benchmark", "exercise": root.name, "language": name}
    return Task(exercise, _statement(root, solution), Workspace(shown), oracle, "polyglot", name, about)


_BUILD_FILES = frozenset({"CMakeLists.txt", "Cargo.toml"})  # which Exercism counts among the solution
_SKIPPED = frozenset({"gradle", "gradlew", "gradlew.bat", "LICENSE", "build", "target", "node_modules"})


def _texts(root: Path) -> dict[str, str]:
    """Read the exercise's files but for its descriptions, its example, and what only its own build needs."""
    found = {}
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        dotted = any(part.startswith(".") for part in place.parts)
        if path.is_file() and not dotted and _SKIPPED.isdisjoint(place.parts):
            found[place.as_posix()] = path.read_text("utf-8").replace("\r\n", "\n")
    return found


def _is_hidden(path: str, config: _Files, language: Language) -> bool:
    return path in config.test or any(PurePosixPath(path).match(pattern) for pattern in language.never_shown)


def _enabled(text: str) -> str:
    """Return a test file in which nothing is skipped that Aider runs."""
    return re.sub(r"\bxtest\(", "test(", re.sub(r"@Disabled\([^)]*\)\s*\n", "", text))


def _tests(
    exercise: str, language: str, config: _Files, hidden: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tests that fail with the stub, and those that pass."""
    if language != "python":
        # Where Go's tests have a file of cases, what they expect is there, which a control withholds.
        return (f"{'cases_test.go' if 'cases_test.go' in hidden else config.test[0]}::all",), ()
    names = [name for path in config.test for name in _python_tests(path, hidden[path])]
    passing = set(_passing().get(exercise, ()))
    return tuple(n for n in names if n not in passing), tuple(n for n in names if n in passing)


def _python_tests(path: str, text: str) -> list[str]:
    classes = [node for node in syntax.parse(text).body if isinstance(node, ast.ClassDef)]
    return [
        f"{path}::{one.name}::{test.name}"
        for one in classes
        for test in one.body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test")
    ]


def _solved(root: Path, config: _Files, solution: list[str]) -> dict[str, str]:
    """Put the example's files where the solution's lie: by name, else by suffix."""
    found = {}
    for example in config.example:
        path = PurePosixPath(example)
        named = next((one for one in solution if PurePosixPath(one).name == path.name), None)
        alike = next((one for one in solution if PurePosixPath(one).suffix == path.suffix), None)
        beside = str(PurePosixPath(solution[0]).with_name(path.name))
        place = named or (beside if "reference" in path.parts else alike) or beside
        found[place] = (root / example).read_text("utf-8").replace("\r\n", "\n")
    return found


def _statement(root: Path, solution: list[str]) -> str:
    names = ("introduction.md", "instructions.md", "instructions.append.md")
    texts = [(root / ".docs" / name).read_text("utf-8") for name in names if (root / ".docs" / name).is_file()]
    return (
        f"{''.join(texts).strip()}\n\nWrite this in {', '.join(solution)}. Keep the names of functions and classes, "
        "which hidden tests use, and use the standard library alone.\n"
    )


@cache
def _passing() -> Mapping[str, list[str]]:
    """Read the tests that pass with the stub, by exercise."""
    return msgspec.json.decode(_ours("passing.json"), type=dict[str, list[str]])


@cache
def _ours(name: str) -> str:
    return (resources.files(__package__) / "polyglot_files" / name).read_text("utf-8")
