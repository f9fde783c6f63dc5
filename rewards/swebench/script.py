"""An eval script as text, with other test files than its own.

Code under test can read the script. Where the script brings its tests in a patch, the others are brought in that patch,
and nothing says that they are others; where it takes them from the repository, they are copied over those.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from data_sources.patches import paths_of
from data_sources.swebench import START
from rollout.patch import make_patch

_HERE_DOCUMENT = re.compile(r"<<\s*(['\"])(?P<end>\w+)\1[^\n]*\n(?P<body>.*?)^(?P=end)$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)

Files = Mapping[str, bytes]


def before_the_tests(script: str) -> str:
    """The script up to the line that marks where the tests' output starts; all of it where none does."""
    before, marked, _ = script.partition(START)
    return before[: before.rfind("\n") + 1] if marked else script


def brings_tests(script: str) -> bool:
    """Whether it has one patch, in a here-document before the tests, in which no file has two names."""
    patch = _patch_in(script)
    return patch is not None and all(len(paths_of(section)) == 1 for section in _sections(patch["body"]))


def bringing(script: str, shown: Files, tests: Files) -> str:
    """The script, its patch making these test files of those that are shown. It must be one that brings tests."""
    patch = _patch_in(script)
    assert patch is not None, script
    others = [section for section in _sections(patch["body"]) if tests.keys().isdisjoint(paths_of(section))]
    made = make_patch({path: shown[path] for path in tests if path in shown}, tests)
    return script[: patch.start("body")] + "".join(others) + made + script[patch.end("body") :]


def copying(script: str, source: str, folder: str) -> str:
    """The script with all that is in `source` copied to `folder` before the tests."""
    before = before_the_tests(script)
    return f"{before}cp -R {shlex.quote(source)}/. {shlex.quote(folder)}/\n{script.removeprefix(before)}"


def _patch_in(script: str) -> re.Match[str] | None:
    found = [match for match in _HERE_DOCUMENT.finditer(before_the_tests(script)) if _sections(match["body"])]
    return found[0] if len(found) == 1 else None


def _sections(patch: str) -> list[str]:
    """One of each file."""
    return [section for section in _SECTION.split(patch) if section.startswith("diff --git ")]
