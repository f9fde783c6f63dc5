"""Patches with faults, made at random from git's own: what a policy may write by mistake or on purpose."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

FILES: Mapping[str, bytes] = {
    "a.py": b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n",
    "pkg/mod.py": b"".join(b"line %d\n" % number for number in range(30)),
    "sub dir/x y.txt": b"1\r\n2\r\n3\r\n",
    "tests/ü.py": b"a\nb\nend without newline",
    'q"uote': b"--- a\n+++ b\n@@ -1 +1 @@\n x\n",
    "bin": bytes(range(256)) * 3,
    "empty": b"",
    "x": b"a\na\na\n",
    "conftest.py": b"a\n",
}
LINES = [
    "diff --git a/a.py b/a.py", "diff --git a/x b/x", "diff --git x x", "diff --git a/x b/y", 'diff --git "a/x" "b/x"',
    "diff --git a/x b/x b/x b/x", 'diff --git a/x "b/x"', "--- a/a.py", "+++ b/a.py", "--- /dev/null", "+++ /dev/null",
    "--- a/x", "+++ b/x", "+++ b/y", "--- x", "+++ x", "--- a/x\t2024-01-01 00:00:00 +0000", "+++ b/x 2024",
    "+++ b/x\t1970-01-01 00:00:00 +0000", "--- a/x\t1969-12-31 19:00:00 -0500", '--- "a/\\170"', '+++ "b/\\170"',
    '+++ "b/x', '+++ "b/\\q"', '--- "a/\\777"', "--- a//x", "+++ b//x", "--- a/./x", "+++ b/./x", "--- a/x/",
    "--- a/../x", "diff --git a/.git/x b/.git/x", "+++ b/.git/config", "+++ b/" + "y/" * 99, "+++ b/" + "y" * 300,
    "@@ -1 +1 @@", "@@ -0,0 +1 @@", "@@ -1,3 +1,3 @@", "@@ -1,0 +2 @@", "@@ -2 +1,0 @@", "@@ -1,2 +1,2 @@ def f()",
    "@@ -1 +1 @@x", "@@ -1, +1 @@", "@@ -1 +1", "@@ -a +1 @@", "@@ -01 +01 @@", "@@@ -1,1 -1,1 +1,1 @@@",
    f"@@ -{'9' * 5000} +1 @@", "-a", "+b", " a", "", "+", "\\ No newline at end of file", "\\ short", "\\",
    "rename from x", "rename to y", "rename old x", "rename new y", "copy from x", "copy to y",
    "similarity index 90%", "dissimilarity index 90%",
    "new file mode 100644", "new file mode 100755", "new file mode 120000", "new mode 160000", "new mode 100755",
    "old mode 100644", "deleted file mode 100644", "index 1234567..89abcde 100644", "index 0000000..0000000",
    "index 1..2 120000", "GIT binary patch", "literal 0", "literal 1", "delta 5", "HcmV?d00001", "zcmZ",
    "Binary files a/x and b/x differ", "Subproject commit 1234567890123456789012345678901234567890",
    "Index: x", "Index: conftest.py", "*** a/conftest.py", "--- conftest.py", "+++ conftest.py 2024-01-01 in words",
    "***************", "*** 1 ****", "--- 1 ----", "! a", "! b", "Only in a: b", "-- ", "1d", "1,2c", ".", "3d plots",
    "Prereq: a", "  --- a/conftest.py", "X+++ b/conftest.py", "\t--- a/x",
]  # fmt: skip
CHARACTERS = [
    "\0", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\udcff", "\ud800", '"', "\\", "/", " ", "\t", "9", "0", "-", "+",
    "@", "\n", "\r\n", "a/", "b/", "..", "٣",
]  # fmt: skip
_NUMBERS = ["0", "1", "2", "3", "10", "99999", "99999999999999999999"]
_DIFFS = [
    ["--binary"], ["--binary", "--full-index"], ["--binary", "-M"], ["--binary", "-C", "-M", "--find-copies-harder"],
    ["--no-prefix"], ["-U0"], ["-U1"],
]  # fmt: skip


class Repository:
    """A repository that holds `FILES`, committed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.restore()
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")

    def git(self, *words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=self.folder, check=True, capture_output=True).stdout

    def restore(self) -> None:
        for path in self.folder.iterdir():
            if path.name == ".git":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name, content in FILES.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_bytes(content)

    def files(self) -> dict[str, bytes]:
        """What is there now; links as what they lead to."""
        found = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*")}
        return {
            name: bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
            for name, path in found.items()
            if not name.startswith(".git/") and (path.is_symlink() or path.is_file())
        }

    def patches(self, rng: random.Random, count: int) -> list[str]:
        """Git's own patches, of every form that it knows."""
        return [patch for _ in range(count) if (patch := self._patch(rng))]

    def _patch(self, rng: random.Random) -> str:
        self.restore()
        for name in rng.sample(sorted(FILES), rng.randint(1, 3)):
            self._change(rng, self.folder / name)
        self.git("add", "-A", "-N")
        patch = self.git("diff", *rng.choice(_DIFFS), "HEAD").decode("utf-8", "surrogateescape")
        self.git("reset", "-q")
        return patch

    def _change(self, rng: random.Random, file: Path) -> None:
        other = self.folder / rng.choice(["new 1", "new/2", 'té"x', "m3"])
        other.parent.mkdir(exist_ok=True)
        match rng.choice(["edit", "edit", "edit", "delete", "move", "copy", "new", "mode", "binary"]):
            case "edit":
                lines = file.read_bytes().split(b"\n")
                at = rng.randrange(len(lines))
                added = rng.choice([b"new", b"--- old", b"+++ x", b"", b"@@ -1 +1 @@", b"\\ no", b"1d"])
                lines[at : at + rng.randint(0, 2)] = [added] * rng.randint(0, 2)
                file.write_bytes(b"\n".join(lines))
            case "delete":
                file.unlink()
            case "move":
                file.rename(other)
            case "copy":
                shutil.copy(file, other)
            case "new":
                other.write_bytes(rng.choice([b"", b"x\n", b"y\nz"]))
            case "mode":
                file.chmod(0o755)
            case "binary":
                file.write_bytes(b"\0\1" + rng.randbytes(rng.randint(0, 60)))


def mutated(patches: list[str], rng: random.Random) -> Iterator[str]:
    """One after the other, without end."""
    while True:
        text = rng.choice(patches)
        for _ in range(rng.randint(1, 3)):
            text = _mutated(text, patches, rng)
        yield text


def _mutated(text: str, patches: list[str], rng: random.Random) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    line, other = lines[at], rng.randrange(len(lines))
    match rng.choice(["drop", "add", "replace", "repeat", "swap", "letter", "letter", "number", "cut", "splice"]):
        case "drop":
            del lines[at]
        case "add":
            lines.insert(at, rng.choice(LINES))
        case "replace":
            lines[at] = rng.choice(LINES)
        case "repeat":
            lines.insert(at, lines[other])
        case "swap":
            lines[at], lines[other] = lines[other], lines[at]
        case "letter":
            place = rng.randint(0, len(line))
            lines[at] = line[:place] + rng.choice(CHARACTERS) + line[place + rng.randint(0, 1) :]
        case "number":
            if found := list(re.finditer(r"\d+", line)):
                match = rng.choice(found)
                near = str(int(match[0][:9]) + rng.choice([-1, 1]))
                lines[at] = line[: match.start()] + rng.choice([*_NUMBERS, near, near]) + line[match.end() :]
        case "cut":
            lines = lines[:at]
        case "splice":
            lines = [*lines[:at], *rng.choice(patches).split("\n")]
    return "\n".join(lines)
