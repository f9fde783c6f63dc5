"""Repositories of awkward shapes, each with one fault, and fifty kinds of patch for it."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any

from slime_swe.patches import make_patch
from tests.real_packages.instances import COMMIT, IMAGE_PREFIX, PYTEST_FOLDER, TEST_COMMAND

CODE = '"""Sums."""\n\n\ndef add(a, b):\n    """Both together."""\n    return a + b\n\n\ndef one():\n    return 1\n'
RIGHT, WRONG = "return a + b", "return a - b"
SHOWN = "def test_one():\n    assert one() == 1\n"
HIDDEN = "\n\ndef test_add():\n    assert add(1, 2) == 3\n"


@dataclass(frozen=True)
class Shape:
    """One repository. code: the file with the fault. tests: the file that the test patch appends `hidden` to. names: of
    the test that fails without the right solution, and of the one that passes always. setup: shell, before the commit.
    history: shell, after it."""

    name: str
    code: str
    tests: str
    shown: str = f"from calc import add, one\n\n\n{SHOWN}"
    hidden: str = HIDDEN
    names: tuple[str, str] = ("{tests}::test_add", "{tests}::test_one")
    text: str = CODE
    others: Mapping[str, str] = field(default_factory=dict)
    path: str = "."
    command: str = f"{TEST_COMMAND} {{tests}}"
    parser: str = "parse_log_pytest"
    setup: str = ""
    history: str = ""
    run: str = ""  # the tests' file as it is run; empty where it is `tests`

    @property
    def id(self) -> str:
        return f"shape__{self.name.replace(' ', '-')}-1"

    @cached_property
    def image(self) -> str:
        content = repr((self, version("pytest")))
        return f"{IMAGE_PREFIX}:{self.id}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @cached_property
    def repository(self) -> dict[str, bytes]:
        files = {"README": "About.\n\nMore.\n", **self.others, self.code: self.wrong, self.tests: self.shown}
        return {path: text.encode() for path, text in files.items()}

    @property
    def prepare(self) -> str:
        return f"{self.setup}\n{COMMIT}\n{self.history}\n"

    @property
    def wrong(self) -> str:
        return self.text.replace(RIGHT, WRONG)

    @cached_property
    def test_patch(self) -> str:
        return make_patch({self.tests: self.shown}, {self.tests: self.shown + self.hidden})

    def record(self) -> dict[str, Any]:
        """As a row of SWE-bench's data set has it."""
        failing, passing = (name.format(tests=self.run or self.tests) for name in self.names)
        return {
            "instance_id": self.id, "repo": f"shape/{self.name}", "base_commit": "HEAD", "version": "1",
            "problem_statement": "add subtracts", "patch": self.patch(self.text), "test_patch": self.test_patch,
            "image": self.image, "log_parser": self.parser, "eval_type": "pass_and_fail",
            "eval_script": self.eval_script, "FAIL_TO_PASS": [failing], "PASS_TO_PASS": [passing],
        }  # fmt: skip

    @property
    def eval_script(self) -> str:
        tests = shlex.quote(self.tests)
        return f"""#!/bin/bash
set -uxo pipefail
cd /testbed
export PYTHONPATH={shlex.quote(self.path)}:{PYTEST_FOLDER}
git config --global --add safe.directory /testbed
git checkout HEAD {tests}
git apply -v - <<'EOF_OF_TEST_PATCH'
{self.test_patch}EOF_OF_TEST_PATCH
: '>>>>> Start Test Output'
{self.command.format(tests=shlex.quote(self.run or self.tests))}
: '>>>>> End Test Output'
git checkout HEAD {tests}
"""

    def patch(self, code: str | None, **others: str | None) -> str:
        """Of the code, and of files by their name with `__` for a dot; None deletes."""
        changed = {self.code: code, **{name.replace("__", "."): text for name, text in others.items()}}
        before = {path: self.repository[path] for path in changed if path in self.repository}
        return make_patch(before, {path: text for path, text in changed.items() if text is not None})

    @cached_property
    def patches(self) -> dict[str, str]:
        """Kind → patch."""
        return {**self._by_content(), **self._by_form()}

    def _by_content(self) -> dict[str, str]:
        right, end = self.text, self.text[-2:] if self.text.endswith("\r\n") else "\n"
        start = {
            "raises": "raise RuntimeError('no')", "exits": "import os; os._exit(0)",
            "prints": "import sys; print('x' * 1_000_000, file=sys.stderr)",
            "prints bytes": "import sys; sys.stdout.buffer.write(bytes(range(256)))", "syntax": "def f(:",
            "a daemon": "import os, time; os.fork() or (os.setsid(), time.sleep(9), os._exit(0))",
            "stops": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "recurses": "(f := lambda: f())()",
            "colours": "print('\\x1b[31mFAILED\\x1b[0m')", "a thread": "import threading; threading.Thread().start()",
        }  # fmt: skip
        made = {
            "gold": right,
            "wrong": f"{self.wrong}# nothing{end}",
            "half right": right.replace(RIGHT, "return 3"),
            "breaks the other": right.replace("return 1", "return 2"),
            "other way": right.replace(RIGHT, "return sum([a, b])"),
            "empties": "",
            "deletes": None,
            "no newline at the end": right.rstrip(),
            "other line ends": right.replace("\r\n", "\n") if "\r" in right else right.replace("\n", "\r\n"),
            "blanks": right.replace(RIGHT, f"{RIGHT}   "),
            "unicode": right.replace(RIGHT, f"ä = a + b{end}    return ä"),
            "large": right + f"# {'x' * 90}{end}" * 5_000,
            "a long line": f"{right}# {'x' * 500_000}{end}",
            **{name: f"{text}{end}{right}" for name, text in start.items()},
        }
        new = {"notes__txt": "a\n", "deep/er/x__txt": "b\n", "größe ü__txt": "c\n", "-dash": "d\n", 'q"uote': "e\n"}
        return {
            "empty": "",
            **{kind: self.patch(code) for kind, code in made.items()},
            "new files": self.patch(right, **new),
            "an empty file": self.patch(right, empty=""),
            "only another file": make_patch({}, {"notes.txt": "a\n"}),
            "deletes a file": self.patch(right, README=None),
            "edits the tests": self.patch(right) + make_patch({self.tests: self.shown}, {self.tests: "x = 1\n"}),
            "deletes the tests": self.patch(right) + make_patch({self.tests: self.shown}, {}),
            "ignores files": self.patch(right, **{"__gitignore": "*.tmp\n"}),
        }

    def _by_form(self) -> dict[str, str]:
        gold = self.patch(self.text)
        bare = gold.partition("\n")[2]  # without git's line
        return {
            "unappliable": gold.replace(WRONG, "return b - a"),
            "reversed": make_patch({self.code: self.text}, {self.code: self.wrong}),
            "twice": gold + gold,
            "without git's line": bare,
            "without its last newline": gold.removesuffix("\n"),
            "cut": gold[: len(gold) // 2],
            "in prose": f"Here is 1d and\n3d plots are broken\nthe patch:\n\n{gold}\nThat was it.\n",
            "in a fence": f"```diff\n{gold}```\n",
            "moved": gold.replace("@@ -3,7 +3,7 @@", "@@ -13,7 +11,7 @@"),
            "wrong counts": gold.replace("@@ -3,7 +3,7 @@", "@@ -3,9 +3,8 @@"),
            "other context": gold.replace('    """Both together."""', '    """Both."""'),
            "with an index": gold.replace("\n--- ", "\nindex 1234567..89abcde 100644\n--- ", 1),
            "a mode": gold.replace("\n--- ", "\nold mode 100644\nnew mode 100755\n--- ", 1),
            "dated": bare.replace("\n@@", "\t2024-01-01 10:00:00 +0000\n@@", 1),
            "a link": f"{gold}diff --git a/ln b/ln\nnew file mode 120000\n--- /dev/null\n+++ b/ln\n@@ -0,0 +1 @@\n"
            "+README\n\\ No newline at end of file\n",
            "renames": f"{gold}diff --git a/README b/READ\nsimilarity index 100%\nrename from README\nrename to READ\n",
            "copies": f"{gold}diff --git a/README b/READ\nsimilarity index 100%\ncopy from README\ncopy to READ\n",
            "binary": f"{gold}diff --git a/b b/b\nnew file mode 100644\nindex {'0' * 40}.."
            "f76dd238ade08917e6712764a16a22005a50573d\nGIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n",
            "binary without content": f"{gold}diff --git a/b b/b\nnew file mode 100644\n"
            "Binary files /dev/null and b/b differ\n",
            "by GNU patch": self._indented(gold),
            "by GNU patch, with .gitignore": self._indented(
                gold + "--- a/.gitignore\n+++ b/.gitignore\n@@ -0,0 +1 @@\n+*.tmp\n"
            ),
        }  # fmt: skip

    def _indented(self, patch: str) -> str:
        return "".join(f"  {line}\n" for line in patch.removesuffix("\n").split("\n"))


_UNITTEST = "import unittest\nfrom calc import add, one\n\n\nclass Sums(unittest.TestCase):\n    def test_one(self):\n"
_DOCTEST = "Sums\n\n>>> from calc import add, one\n>>> one()\n1\n"
_ROOT = "tests/test_calc.py"
_IN_GIT = "import subprocess\nfrom calc import add, one\n\n\ndef git(*words):\n"
_IN_GIT += (
    "    return subprocess.run(['git', '-c', 'safe.directory=*', *words], capture_output=True, text=True).stdout\n\n\n"
)
_COMMITS = "".join(
    f"git -c user.name=a -c user.email=a@b commit --quiet --allow-empty --message={n}\ngit tag v{n}\n" for n in range(5)
)

SHAPES = (
    Shape("plain", "calc.py", _ROOT, others={"tests/__init__.py": ""}),
    Shape("no package of tests", "calc.py", _ROOT),
    Shape("tests beside the code", "calc.py", "test_calc.py"),
    Shape("odd names", "my code ü/calc.py", "größe/test_ü.py", path="my code ü"),
    Shape("quotes", "it's/calc.py", 'a"b"/test_calc.py', path="it's"),
    Shape(  # of whose tests' names the harness reads the first word
        "blanks in names", "calc.py", "my tests/test größe ü.py", names=("my", "other/test_other.py::test_other"),
        others={"other/test_other.py": "def test_other():\n    pass\n"},
        command=f"{TEST_COMMAND} {{tests}} other/test_other.py",
    ),
    Shape(
        "src layout", "src/sums/calc.py", _ROOT, f"from sums.calc import add, one\n\n\n{SHOWN}",
        others={"src/sums/__init__.py": ""}, path="src",
    ),
    Shape("namespace", "src/a/b/calc.py", _ROOT, f"from a.b.calc import add, one\n\n\n{SHOWN}", path="src"),
    Shape(
        "carriage returns", "calc.py", _ROOT, f"from calc import add, one\n\n\n{SHOWN}".replace("\n", "\r\n"),
        HIDDEN.replace("\n", "\r\n"), text=CODE.replace("\n", "\r\n"),
    ),
    Shape(
        "doctest", "calc.py", "docs/usage.txt", _DOCTEST, ">>> add(1, 2)\n3\n",
        ("{tests}::usage.txt", "docs/other.txt::other.txt"), others={"docs/other.txt": ">>> 1\n1\n"},
        command=f"{TEST_COMMAND} --doctest-glob='*.txt' docs",
    ),
    Shape(
        "unittest", "calc.py", "tests/test_calc.py", f"{_UNITTEST}        self.assertEqual(one(), 1)\n",
        "\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n",
        ("test_add (tests.test_calc.Sums.test_add)", "test_one (tests.test_calc.Sums.test_one)"),
        others={"tests/__init__.py": ""}, parser="parse_log_django",
        command="python3 -B -m unittest -v tests.test_calc",
    ),
    Shape("linked tests", "calc.py", "suite/test_calc.py", setup="ln -s suite tests", run="tests/test_calc.py"),
    Shape(
        "left of submodules", "calc.py", _ROOT,
        others={".gitmodules": '[submodule "v"]\n\tpath = v\n\turl = ../v\n', "v/x.txt": "x\n"},
        history="echo 'gitdir: ../.git/modules/v' >v/.git",
    ),
    Shape(
        "tags", "calc.py", _ROOT,
        f"{_IN_GIT}def test_one():\n    assert git('describe', '--tags').strip() == 'v4'\n"
        "    assert git('log', '--format=%s').split() == ['4', '3', '2', '1', '0', 'release']\n", history=_COMMITS,
    ),
    Shape(
        "settings of git", "calc.py", _ROOT,
        f"{_IN_GIT}def test_one():\n    assert git('config', 'swe.name') == 'x\\n'\n"
        "    assert 'excluded' not in git('status', '--porcelain', '--ignored=no')\n",
        history="git config swe.name x; echo excluded >>.git/info/exclude; echo >excluded",
    ),
    Shape(
        "many files", "calc.py", _ROOT,
        "import pathlib\nfrom calc import add, one\n\n\ndef test_one():\n"
        "    assert len(list(pathlib.Path('data').iterdir())) == 1500\n",
        others={f"data/{number}.txt": f"{number}\n" for number in range(1500)},
    ),
    Shape("not committed", "calc.py", _ROOT, history="echo more >>README; echo new >new.txt; git add new.txt"),
)  # fmt: skip
