"""An image as R2E-Gym makes them: the commit before the fix, its environment, and the tests that grade.

The repository's history goes on to the fix and its tests, as a clone's does.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from slime_swe.sandbox.image import host as host_image

SECRET = "the words that only the grading tests hold"
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
COMPILED = ("_pytest", "pytest", "pluggy", "iniconfig", "packaging")  # folders of theirs that each run imports
FAULTY = '''"""Words."""


def count(text):
    return len(text.split(" "))


def join(words, between):
    return between.join(words)
'''
FIXED = FAULTY.replace('split(" ")', "split()")
OLD_TEST = "from toy.words import count\n\n\ndef test_two():\n    assert count('a b') == 2\n"
NEW_TEST = f"""import pytest

from toy.words import count, join


class TestCount:
    def test_two(self):
        assert count("a b") == 2, "{SECRET}"

    def test_spaces(self):
        assert count("a  b ") == 2


@pytest.mark.parametrize("between", ["-", " and "])
def test_join(between):
    assert join(["a", "b"], between) == f"a{{between}}b"


def test_no_word():
    assert count("") == 0


def test_that_fails_even_when_fixed():
    assert count(None) == 0


@pytest.mark.skip(reason="not on this machine")
def test_skipped():
    raise AssertionError
"""
UNITTEST = f"""import unittest

from toy.words import count


class TestCount(unittest.TestCase):
    def test_two(self):
        self.assertEqual(count("a b"), 2, "{SECRET}")

    def test_spaces(self):
        self.assertEqual(count("a  b "), 2)
"""
RUNNER = """import sys
import unittest

sys.path.insert(0, ".")


class Result(unittest.TestResult):
    lines = []

    def note(self, status, test):
        self.lines.append(f"{status} {type(test).__module__}::{type(test).__name__}::{test._testMethodName}")

    def addSuccess(self, test):
        self.note("PASSED", test)

    def addFailure(self, test, error):
        self.note("FAILED", test)

    def addError(self, test, error):
        self.note("ERROR", test)


unittest.defaultTestLoader.discover(".", pattern="test_*.py").run(Result())
print("\\n==================== short test summary info ====================")
print("\\n".join(Result.lines))
"""
BY_PYTEST = (
    "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' .venv/bin/python -W ignore -m pytest -rA r2e_tests"
)
BY_UNITTEST = ".venv/bin/python -W ignore r2e_tests/toy_unittest_runner.py"
# What `/r2e_tests` holds and `run_tests.sh` says, by the project whose way of testing it is.
KINDS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "pyramid": ({"__init__.py": "", "test_1.py": NEW_TEST}, BY_PYTEST),
    "tornado": ({"__init__.py": "", "test_1.py": UNITTEST, "toy_unittest_runner.py": RUNNER}, BY_UNITTEST),
}
_IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main")


def write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *_IDENTITY, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_history(folder: Path, kind: str) -> None:
    """A commit with the fault, and the one that fixes it, which is checked out."""
    tests, _ = KINDS[kind]
    write(folder, {"toy/__init__.py": "", "toy/words.py": FAULTY, "tests/test_words.py": OLD_TEST, "notes.md": "1\n"})
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "words")
    write(folder, {"toy/words.py": FIXED, "tests/test_words.py": tests["test_1.py"], "notes.md": "2\n"})
    git(folder, "commit", "-qam", "count any space")


def make_testbed(root: Path, kind: str) -> None:
    """What R2E-Gym's Dockerfiles add to a system, below `root`."""
    tests, command = KINDS[kind]
    testbed = root / "testbed"
    testbed.mkdir(parents=True, exist_ok=True)
    make_history(testbed, kind)
    git(testbed, "checkout", "-q", "HEAD^")
    write(testbed, {"run_tests.sh": command, "install.sh": "uv venv\n"})
    write(root / "r2e_tests", tests)
    make_environment(testbed / ".venv")


def make_environment(folder: Path) -> None:
    """A virtual environment of the system's Python, with the pytest that runs this, which is pure Python."""
    version = "import sys; print('python%d.%d' % sys.version_info[:2])"
    name = subprocess.run(["/usr/bin/python3", "-c", version], check=True, capture_output=True, text=True).stdout
    write(folder, {".gitignore": "*\n", "pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n"})
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    copy_pytest(folder / "lib" / name.strip() / "site-packages")


def copy_pytest(place: Path) -> None:
    """The pytest that runs this and what it needs, compiled once for all runs in sandboxes, whose changes are lost."""
    for package in PYTEST:
        for file in importlib.metadata.distribution(package).files or ():
            if file.parts[0] != ".." and file.suffix != ".pyc":
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), place / file)
    folders = [str(place / name) for name in COMPILED]
    subprocess.run(["/usr/bin/python3", "-m", "compileall", "-q", *folders], check=True)


def make_folder(root: Path, kind: str, host_base: Callable[[Path], Path]) -> str:
    """The image unpacked, as overlay sandboxes take it; its name."""
    make_testbed(host_base(root), kind)
    return f"dir:{root}"


def build(context: Path, kind: str) -> str:
    """The image in Docker, made unless it is there; its name."""
    base = f"slime-swe/host:{host_image.digest()}"
    made_of = [base, kind, Path(__file__).read_text(), *map(importlib.metadata.version, PYTEST)]
    name = f"slime-swe-r2egym:{kind}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]}"
    if _exists(name):
        return name
    if not _exists(base):
        host_image.import_tag(base)
    make_testbed(context, kind)
    write(context, {"Dockerfile": f"FROM {base}\nCOPY . /\nWORKDIR /testbed\n", ".dockerignore": "Dockerfile\n"})
    command = ["docker", "build", "--quiet", "--network", "none", "--tag", name, str(context)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return name


def _exists(name: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode == 0
