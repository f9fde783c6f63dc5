"""The instances: a repository with faults, a test patch, an eval script, and patches of every kind for it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slime_swe.patches import make_patch
from tests.real_packages.packages import Package, definitions, download, packages, source_files

IMAGE_PREFIX = "slime-swe-real"
PYTEST_FOLDER = "/opt/pytest"
# Without a compiled or cached file of its own, and whatever the release's own configuration asks for.
TEST_COMMAND = "python3 -B -m pytest -c /dev/null --rootdir=. --no-header -rA --tb=short -p no:cacheprovider"
COMMIT = """\
git init --quiet --initial-branch=main
git add --all --force
git -c user.name=release -c user.email=release@example.org commit --quiet --message=release
"""
Edit = tuple[str, str]  # right, wrong


@dataclass(frozen=True)
class Instance:
    """One instance. sources: of the release. See `instances.toml` for the others."""

    package: Package
    number: int
    sources: dict[str, bytes]
    file: str
    tests: str
    hidden: tuple[str, ...]
    statement: str
    faults: tuple[Edit, ...]
    damage: Edit

    @property
    def id(self) -> str:
        return f"{self.package.name}__{self.package.name}-{self.number}"

    @cached_property
    def image(self) -> str:
        """Another name where anything in it is another."""
        content = [(path, hashlib.sha256(text).hexdigest()) for path, text in sorted(self.repository.items())]
        digest = hashlib.sha256(repr((content, version("pytest"))).encode()).hexdigest()[:12]
        return f"{IMAGE_PREFIX}:{self.id}-{digest}"

    @cached_property
    def repository(self) -> dict[str, bytes]:
        """What the image holds: faulty code, and tests without the hidden ones."""
        wrong = _edited(self._right, self.faults)
        return {**self.sources, self.file: wrong.encode(), self.tests: self._shown_tests.encode()}

    @cached_property
    def patches(self) -> dict[str, str]:
        """Kind → patch. What each is worth is the oracle's to say; only of the first two it is known beforehand."""
        wrong = _edited(self._right, self.faults)
        return {
            "gold": self._patch(self._right),
            "empty": "",
            "wrong": self._patch(f"{wrong}\n# nothing is repaired here\n"),
            "partial": self._patch(_edited(self._right, self.faults[1:])),
            "unappliable": self._patch(self._right).replace(self.file, f"absent/{self.file}"),
            "breaks tests": self._patch(_edited(self._right, [self.damage])),
            "breaks syntax": self._patch(f"{self._right}\ndef unfinished(:\n"),
            "edits the tests": self._patch(self._right, "def test_nothing():\n    pass\n"),
        }

    def record(self, fail_to_pass: list[str], pass_to_pass: list[str]) -> dict[str, Any]:
        """As a row of SWE-bench's data set has it."""
        return {
            "instance_id": self.id,
            "repo": f"{self.package.name}/{self.package.name}",
            "base_commit": "HEAD",
            "problem_statement": self.statement,
            "patch": self.patches["gold"],
            "test_patch": self.test_patch,
            "version": self.package.version,
            "image": self.image,
            "log_parser": "parse_log_pytest",
            "eval_type": "pass_and_fail",
            "eval_script": self.eval_script,
            "FAIL_TO_PASS": fail_to_pass,
            "PASS_TO_PASS": pass_to_pass,
        }

    @cached_property
    def test_patch(self) -> str:
        return make_patch({self.tests: self._shown_tests}, {self.tests: self.sources[self.tests]})

    @property
    def eval_script(self) -> str:
        """In the form of SWE-bench's: restore the tests, bring the hidden ones, run between the markers, restore."""
        return f"""#!/bin/bash
set -uxo pipefail
cd /testbed
export PYTHONPATH={self.package.path}:{PYTEST_FOLDER}
git config --global --add safe.directory /testbed
git status
git checkout HEAD {self.tests}
git apply -v - <<'EOF_OF_TEST_PATCH'
{self.test_patch}EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
{TEST_COMMAND} {self.tests}
: '>>>>> End Test Output'
git checkout HEAD {self.tests}
"""

    @property
    def prepare(self) -> str:
        """Shell that makes of the files the image's repository."""
        return COMMIT

    @property
    def _right(self) -> str:
        return self.sources[self.file].decode()

    @cached_property
    def _shown_tests(self) -> str:
        return without_functions(self.sources[self.tests].decode(), self.hidden)

    def _patch(self, code: str, tests: str | None = None) -> str:
        before = {self.file: self.repository[self.file], self.tests: self.repository[self.tests]}
        after = {self.file: code.encode(), self.tests: before[self.tests] if tests is None else tests.encode()}
        return make_patch(before, after)


def instances(downloads: Path) -> list[Instance]:
    """All of them. Raises `DownloadError`."""
    known = packages()
    sources = {name: source_files(download(package, downloads)) for name, package in known.items()}
    return [
        _instance(known[fields["package"]], number, sources[fields["package"]], fields)
        for number, fields in enumerate(definitions()["instances"], 1)
    ]


def without_functions(source: str, names: tuple[str, ...]) -> str:
    """The module without its functions and methods of these names, decorators and all."""
    gone: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            gone.update(range(start, (node.end_lineno or start) + 1))
    assert gone, f"none of {names} is there"
    return "".join(line for number, line in enumerate(source.splitlines(keepends=True), 1) if number not in gone)


def _instance(package: Package, number: int, sources: dict[str, bytes], fields: dict[str, Any]) -> Instance:
    faults = tuple((right, wrong) for right, wrong in fields["faults"])
    damage = (fields["damage"][0], fields["damage"][1])
    rest = {name: fields[name] for name in ("file", "tests", "statement")}
    return Instance(package, number, sources, hidden=tuple(fields["hidden"]), faults=faults, damage=damage, **rest)


def _edited(text: str, edits: Iterable[Edit]) -> str:
    for right, wrong in edits:
        assert text.count(right) == 1, f"{right!r} occurs {text.count(right)} times"
        text = text.replace(right, wrong)
    return text
