"""Two sets of files that differ by random edits, with what is odd in files: CRLF, no newline at the end, other scripts,
lines that look like markers of blocks or diffs, renames, new and deleted files."""

from __future__ import annotations

import random

from slime_swe.patches import Change, make_patch, read_patch, write_patch

LINES = [
    "def add(a, b):",
    "    return a + b",
    "",
    "    pass",
    "x = 1",
    "# é ü 漢字 🙂",
    "\tindented",
    "<<<<<<< SEARCH",
    "=======",
    ">>>>>>> REPLACE",
    "=====",
    "### heading",
    "```python",
    "--- a/file",
    "+++ b/file",
    "@@ -1 +1 @@",
    "a\u2028b",
    "\x0c",
    "trailing   ",
    "\\ no newline",
    "<<<<<<<<< SEARCH",
    "line\rreturn",
    "diff --git a/x b/x",
]
NAMES = [
    "a.py",
    "b.py",
    "pkg/c.py",
    "pkg/deep/d.py",
    "with blank.txt",
    "naïve.py",
    "Makefile",
    "a -> b",
    "x:y.txt",
    "`tick`",
    '"quoted".py',
    "tab\tname",
    "#hash",
]


def text(dice: random.Random, lines: int) -> str:
    end = dice.choice(["\n", "\n", "\r\n"])
    made = end.join(dice.choice(LINES) for _ in range(lines))
    return made + dice.choice([end, end, ""]) if made else made


def edited(dice: random.Random, content: str) -> str:
    lines = content.splitlines(keepends=True) if "\r\n" in content else content.split("\n")
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(lines) + 1)
        end = min(len(lines), at + dice.randrange(4))
        end_line = "\r\n" if "\r\n" in content else ""
        lines[at:end] = [dice.choice(LINES) + end_line for _ in range(dice.randrange(4))]
    return ("" if "\r\n" in content else "\n").join(lines)


def before_and_after(dice: random.Random) -> tuple[dict[str, str], dict[str, str]]:
    names = dice.sample(NAMES, dice.randint(1, 5))
    before = {name: text(dice, dice.choice([0, 1, 5, 40])) for name in names}
    after = dict(before)
    for name in names:
        how = dice.randrange(6)
        if how == 0:
            del after[name]
        elif how < 4:
            after[name] = edited(dice, before[name])
    if dice.random() < 0.4:
        after[f"new{dice.randrange(9)}.py"] = text(dice, dice.choice([0, 1, 9]))
    return before, after


def renaming_patch(dice: random.Random, before: dict[str, str]) -> str:
    """A patch that renames a file, and may edit it."""
    name = dice.choice([*before])
    content = before[name]
    after = edited(dice, content) if dice.random() < 0.7 else content
    found = read_patch(make_patch({"x": content}, {"x": after})) if after != content else []
    return write_patch([Change(name, f"moved/{dice.randrange(9)}.py", hunks=found[0].hunks if found else [])])
