"""Search/replace blocks: read, written, made of patches, applied."""

from __future__ import annotations

import random

import pytest

from slime_swe.patches import (
    Move,
    PatchError,
    Replace,
    apply_edits,
    apply_patch,
    apply_reply,
    edits_of,
    make_patch,
    paths_in_reply,
    read_blocks,
    write_blocks,
)
from slime_swe.patches.unified import NO_NEWLINE
from tests.slime_swe.random_edits import before_and_after, renaming_patch

BLOCK = "### a.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n"
FILES = {"a.py": "x = 1\ny = 1\n", "b.py": "z\n"}


def changed(reply: str, files=FILES) -> dict[str, str]:
    """The files that a reply changes, with their text; None for one that is gone."""
    after = {path: content.decode() for path, content in apply_reply(files, reply).items()}
    return {path: after.get(path) for path in {*files, *after} if after.get(path) != files.get(path)}


SHARES = [0, *(pytest.param(n, marks=pytest.mark.extended("random edits")) for n in range(1, 10))]


@pytest.mark.parametrize("share", SHARES)
def test_what_is_written_is_read_and_does_what_the_diff_does(share):
    dice = random.Random(share)
    for _ in range(800):
        before, after = before_and_after(dice)
        patch = make_patch(before, after)
        edits = edits_of(before, patch)
        answer = read_blocks(f"I think so.\n\n{write_blocks(edits)}\nThat is all.\n")
        assert answer.faults == () and list(answer.edits) == edits
        assert make_patch(before, apply_edits(before, answer.edits)) == patch


@pytest.mark.parametrize("share", SHARES)
def test_renames_are_kept_as_renames(share):
    dice = random.Random(share)
    for _ in range(300):
        before, _ = before_and_after(dice)
        patch = renaming_patch(dice, before)
        edits = edits_of(before, patch)
        assert isinstance(edits[0], Move)
        assert read_blocks(write_blocks(edits)).edits == tuple(edits)
        assert apply_edits(before, edits) == apply_patch(before, patch)


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (BLOCK, {"a.py": "x = 2\ny = 1\n"}),
        (f"Well:\n```python\n{BLOCK}```\nDone.", {"a.py": "x = 2\ny = 1\n"}),
        (f"```python\n{BLOCK}```\n```\n{BLOCK.replace('x', 'y')}```", {"a.py": "x = 2\ny = 2\n"}),
        (BLOCK + BLOCK.replace("x", "y").partition("\n")[2], {"a.py": "x = 2\ny = 2\n"}),
        (BLOCK.replace("### a.py", "a.py\n```python"), {"a.py": "x = 2\ny = 1\n"}),
        (BLOCK.replace("### a.py", "**`a.py`**:"), {"a.py": "x = 2\ny = 1\n"}),
        (BLOCK.replace("### a.py", "### `a.py`:"), {"a.py": "x = 2\ny = 1\n"}),
        (BLOCK.replace("\n", "\r\n"), {"a.py": "x = 2\ny = 1\n"}),
        (BLOCK.replace("x = 1\n=", "= 1\ny\n=").replace("x = 2", "= 2\nx"), {"a.py": "x = 2\nx = 1\n"}),
        (BLOCK.replace("x = 2\n", ""), {"a.py": "y = 1\n"}),
        ("### n.py\n<<<<<<< SEARCH\n=======\nnew\n>>>>>>> REPLACE", {"n.py": "new\n"}),
        ("### n.py\n<<<<<<< SEARCH\n\n=======\nnew\n>>>>>>> REPLACE", {"n.py": "new\n"}),
        (f"### n.py\n<<<<<<< SEARCH\n=======\nnew\n{NO_NEWLINE}\n>>>>>>> REPLACE", {"n.py": "new"}),
        ("### b.py -> c/d.py\n", {"b.py": None, "c/d.py": "z\n"}),
        ("### b.py -> /dev/null", {"b.py": None}),
        (
            "### a.py\n<<<<<<<< SEARCH\nx = 1\n========\n=======\n>>>>>>>> REPLACE\n",
            {"a.py": "=======\ny = 1\n"},
        ),
        (make_patch(FILES, {**FILES, "a.py": "x = 3\ny = 1\n"}), {"a.py": "x = 3\ny = 1\n"}),
        (
            "```diff\n--- a/a.py\n+++ b/a.py\n@@ -40,2 +77,2 @@\n x = 1\n-y = 1\n+y = 5\n```\n",
            {"a.py": "x = 1\ny = 5\n"},
        ),
    ],
)
def test_a_reply_is_read_as_models_write_it(reply, result):
    assert changed(reply) == result
    assert set(paths_in_reply(reply)) >= set(result)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", "holds no search/replace block"),
        ("I can't repair this.", "holds no search/replace block"),
        (BLOCK.replace("=======\n", ""), "line 2 of the reply: a block without its marker of 7 ="),
        (BLOCK.replace(">>>>>>> REPLACE\n", ""), "a block without its marker of 7 > REPLACE"),
        (BLOCK.replace("=======\n", "=======\n=======\n"), "a block without its marker of 7 > REPLACE"),
        (BLOCK.replace("<<<<<<< SEARCH\n", ""), "line 5 of the reply: the end of a block that did not begin"),
        (BLOCK.partition("\n")[2], "a block that names no file"),
        (BLOCK.replace("a.py", "../a.py"), "'../a.py' is not a path inside the repository"),
        (BLOCK.replace("x = 2", "x = 1"), "a block that changes nothing"),
        (BLOCK.replace("a.py", "c.py"), "c.py is not there"),
        (BLOCK.replace("x = 1", "x = 7"), "a.py does not have what is searched for: 'x = 7'"),
        (BLOCK.replace("x = 1", "= 1"), "a.py has what is searched for several times"),
        (BLOCK.replace("x = 1\n", ""), "an empty search is for a new file"),
        ("### b.py -> a.py", "a.py exists already"),
        ("### c.py -> d.py", "c.py is not there"),
        ("### a.py/b\n<<<<<<< SEARCH\n=======\nnew\n>>>>>>> REPLACE", "both a file and a folder"),
        (BLOCK + "\ud800", "no text"),
        (BLOCK * 1001, "more than 1000"),
        ("--- a/a.py\n+++ b/a.py\n@@ -1,9 +1 @@\n x\n", "line 4 of the patch"),
        (f"{BLOCK}{BLOCK.replace('=======', '')}", "line 8 of the reply"),
    ],
)
def test_a_malformed_reply_is_refused_and_says_why(reply, said):
    with pytest.raises(PatchError, match=said.replace("(", r"\(")):
        apply_reply(FILES, reply)


def test_the_files_own_line_ends_are_kept():
    assert changed(BLOCK, {"a.py": "x = 1\r\ny = 1\r\n"}) == {"a.py": "x = 2\r\ny = 1\r\n"}
    assert changed(BLOCK, {"a.py": "y = 1\nx = 1"}) == {"a.py": "y = 1\nx = 2"}


def test_a_place_that_occurs_twice_gets_as_much_context_as_it_needs():
    before = {"a.py": "a\nx\nb\n" * 3 + "c\nx\nb\n"}
    after = {"a.py": "a\nx\nb\n" * 3 + "c\ny\nb\n"}
    (edit,) = edits_of(before, make_patch(before, after))
    assert isinstance(edit, Replace) and "c\nx\nb\n" in edit.search
    assert apply_edits(before, [edit]) == {"a.py": after["a.py"].encode()}


def test_what_edits_can_not_say_is_refused():
    with pytest.raises(PatchError, match="can't say text whose last line"):
        write_blocks([Replace("a", "", f"{NO_NEWLINE}\n")])
    with pytest.raises(PatchError, match="a mode alone"):
        edits_of({"a": "x\n"}, "diff --git a/a b/a\nold mode 100644\nnew mode 100755\n")
    with pytest.raises(PatchError, match="no text"):
        edits_of({"a": b"\0"}, make_patch({"a": b"\0"}, {"a": b"\0\1"}))
    swap = [Move("a", "b"), Move("b", "a")]
    with pytest.raises(PatchError, match="b exists already"):
        apply_edits({"a": "1", "b": "2"}, swap)
