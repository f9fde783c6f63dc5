"""BugsInPy: bugs of Python projects, each with the commits before and after its fix and the tests that show it.

There are no images: `metadata["image"]` says what one must hold. A test passes where its command exits with 0;
BugsInPy has no list of tests that must go on passing, so `pass_to_pass` is empty. The bugs of pandas name their commits
by seven digits, which `slime_swe.data_sources.repositories` completes.
Upstream: soarsmu/BugsInPy, framework/bin.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from slime_swe.data_sources.corpora.corpus import Corpus, Split, checkout_folder
from slime_swe.data_sources.task import Image, Task, TestsOracle, Workspace
from slime_swe.data_sources.test_log import by_exit_code
from slime_swe.errors import UserError

CORPUS = Corpus(
    name="bugsinpy",
    title="BugsInPy",
    licence="none stated in the repository",
    home="https://github.com/soarsmu/BugsInPy",
    commit="11c5f1eea954a42132cfd06bf257766a7963e0fd",
    counted="bug.info files at this commit",
    needs="an image of your own for each task, and swebench to grade",
    splits={"all": Split(501, "Python")},
)
TIMEOUT = 1800.0  # seconds
_SETTING = re.compile(r'^\s*(\w+)\s*=\s*"(.*)"\s*$', re.MULTILINE)
_PYTEST = re.compile(r"^(?:python3? -m )?(?:pytest|py\.test|tox)\s+(.+)$")
_UNITTEST = re.compile(r"^python3? -m unittest (?:-q )?(.+)$")


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Return every bug's task, by project and number. Raises `UserError`."""
    root = checkout_folder(CORPUS, split, folder, "projects") / "projects"
    bugs = [bug for bug in root.glob("*/bugs/*") if (bug / "bug.info").is_file()]
    return [_task(bug, split) for bug in sorted(bugs, key=lambda bug: (bug.parts[-3].lower(), int(bug.name)))]


def _task(bug: Path, split: str) -> Task:
    project, number = bug.parts[-3], bug.name
    name = f"bugsinpy-{project}-{number}"
    about = _settings(bug.parent.parent / "project.info", name, "github_url")
    info = _settings(bug / "bug.info", name, "python_version", "buggy_commit_id", "fixed_commit_id", "test_file")
    commands = _commands(bug / "run_test.sh", name)
    tests = [test for test, _ in commands]
    files = [file for file in info["test_file"].split(";") if file]
    oracle = TestsOracle(
        fail_to_pass=tuple(tests),
        pass_to_pass=(),
        protected=tuple(dict.fromkeys(files)),
        command=by_exit_code(commands),
        gold_patch=(bug / "bug_patch.txt").read_text(encoding="utf-8"),
        timeout_seconds=TIMEOUT,
        runner="lines",
    )
    repo = re.sub(r"^https?://github\.com/|/$|\.git$", "", about["github_url"])
    statement = f"These tests of {project} fail because of a fault in the code:\n" + "\n".join(tests[:5])
    metadata = {
        "repo": repo,
        "base_commit": info["buggy_commit_id"],
        "python": info["python_version"],
        "image": _image_needs(about, info, files),
    }
    image = Image(f"slime-swe/bugsinpy:{project.lower()}-{number}", setup=_python_path(info.get("pythonpath", "")))
    return Task(name, statement, Workspace({}, image), oracle, "bugsinpy", split, metadata)


def _python_path(setting: str) -> str:
    """Write a bug's PYTHONPATH as shell: folders below the project's, written in BugsInPy with the project's name."""
    folders = [f"/testbed/{folder.partition('/')[2]}".rstrip("/") for folder in setting.split(";") if folder]
    return f"export PYTHONPATH={shlex.quote(':'.join(folders))}" if folders else ""


def _image_needs(about: Mapping[str, str], info: Mapping[str, str], files: list[str]) -> str:
    return (
        f"{about['github_url']} at {info['buggy_commit_id']} in /testbed, {', '.join(files)} as at "
        f"{info['fixed_commit_id']}, and Python {info['python_version']} on PATH with requirements.txt and setup.sh of "
        "the bug's folder applied"
    )


def _settings(path: Path, name: str, *wanted: str) -> dict[str, str]:
    found = dict(_SETTING.findall(path.read_text(encoding="utf-8")))
    missing = [key for key in wanted if key not in found]
    if missing:
        raise UserError(f"task {name!r}: {path} does not set {', '.join(missing)}")
    return found


def _commands(path: Path, name: str) -> list[tuple[str, str]]:
    """Read (test id, command) for each line of a bug's run_test.sh. Raises `UserError` for one that runs no test."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    commands = [(_test_id(line), line) for line in lines]
    unknown = [line for test, line in commands if not test]
    if unknown or not commands:
        raise UserError(f"task {name!r}: {path} runs no test that is known here: {'; '.join(unknown) or 'it is empty'}")
    return list(dict(commands).items())


def _test_id(command: str) -> str:
    """Return `file::test` of a pytest command, `module::test` of a unittest one; empty for any other."""
    if match := _PYTEST.match(command):
        words = [word for word in shlex.split(match[1]) if not word.startswith("-")]
        return words[-1] if len(words) == 1 and "::" in words[-1] else f"{'_'.join(words)}::all" if words else ""
    if match := _UNITTEST.match(command):
        module, _, test = match[1].strip().rpartition(".")
        return f"{module}::{test}"
    return ""
