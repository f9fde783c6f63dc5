from __future__ import annotations

import pytest

from slime_swe.rollout.tools import (
    MAX_FILE,
    MAX_LOG,
    TOOLS,
    Bash,
    RunTests,
    StrReplace,
    Submit,
    View,
    render_file,
    render_log,
    replace,
)
from slime_swe.sandbox.pool import SandboxPool
from tests.data_sources.tasks import BROKEN, FIXED, make_task


@pytest.fixture
def task():
    return make_task()


@pytest.fixture
async def sandbox(task):
    async with SandboxPool("local", concurrency=1) as pool, pool.open(task.workspace.files) as opened:
        yield opened


def test_each_tool_describes_itself_as_an_openai_function():
    assert [tool.spec.name for tool in TOOLS] == ["bash", "view", "str_replace", "run_tests", "submit"]
    for tool in TOOLS:
        function = tool.spec.schema()["function"]
        assert function["description"] and function["parameters"]["type"] == "object"
        assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"path": "a"}, None),
        ({}, "view: argument 'path' is missing"),
        ({"path": None}, "view: argument 'path' must be a string, got NoneType"),
        ({"path": ["a"]}, "view: argument 'path' must be a string, got list"),
        ({"path": "a\ud800"}, "view: argument 'path' must be text, got half of a surrogate pair"),
        ({"path": "a", "line": "1"}, "view: unknown argument 'line'; allowed: path"),
    ],
)
def test_arguments_are_checked(arguments, wrong):
    assert View.spec.check(arguments) == wrong


async def test_bash(sandbox, task):
    async def say(command: str) -> str:
        return (await Bash()(sandbox, task, {"command": command})).text

    assert await say("echo one; echo two >&2") == "one\ntwo"
    assert await say("true") == "[no output]"
    assert await say("echo no; exit 3") == "no\n[exit code 3]"
    assert await say("cd / && X=1; pwd") == "/"
    assert await say("echo ${X:-unset} $(ls)") == "unset calc.py runtests.py test_calc.py"


async def test_view(sandbox, task):
    async def show(path: str):
        return await View()(sandbox, task, {"path": path})

    assert (await show("calc.py")).text == BROKEN.rstrip("\n")
    missing = await show("nope.py")
    assert (missing.text, missing.ok) == ("No such file: nope.py", False)
    await sandbox.exec("mkdir -p 'a b/c' && touch 'a b/d'")
    assert (await show("a b")).text == "c/\nd"
    assert (await show(".")).text.split("\n") == ["a b/", "calc.py", "runtests.py", "test_calc.py"]


def test_a_long_or_binary_file_is_shown_as_far_as_it_can_be():
    text = render_file(b"x" * (MAX_FILE + 5))
    assert text.endswith("\n[cut: 5 more characters]") and len(text) < MAX_FILE + 50
    assert render_file(b"\xff\xfea") == "\ufffd\ufffda"


async def test_str_replace(sandbox, task):
    async def edit(path: str, old: str, new: str):
        return await StrReplace()(sandbox, task, {"path": path, "old_str": old, "new_str": new})

    done = await edit("calc.py", "a - b", "a + b")
    assert (done.text, done.ok) == ("Edited calc.py", True)
    assert await sandbox.read_file("calc.py") == FIXED.encode()
    for path, old, new, message in [
        ("calc.py", "a - b", "x", "old_str not found in calc.py"),
        ("calc.py", "", "x", "old_str not found in calc.py"),
        ("calc.py", "def", "x", "old_str occurs 2 times in calc.py: make it longer"),
        ("calc.py", "a + b", "a + b", "old_str and new_str are the same"),
        ("nope.py", "a", "b", "No such file: nope.py"),
        (".", "a", "b", "No such file: ."),
    ]:
        failed = await edit(path, old, new)
        assert (failed.text, failed.ok) == (message, False)
    await sandbox.write_file("data.bin", b"\xff\xfe")
    assert (await edit("data.bin", "a", "b")).text == "data.bin is not text"
    assert await sandbox.read_file("calc.py") == FIXED.encode()


async def test_without_old_str_the_whole_file_is_written(sandbox, task):
    for path, text, kept in [("calc.py", FIXED, FIXED), ("new/b.py", "x = 1", "x = 1\n"), ("calc.py", "", "\n")]:
        arguments = {"path": path, "new_str": text}
        assert StrReplace.spec.check(arguments) is None
        done = await StrReplace()(sandbox, task, arguments)
        assert (done.text, done.ok) == (f"Edited {path}", True)
        assert await sandbox.read_file(path) == kept.encode()
    with pytest.raises(OSError):
        await StrReplace()(sandbox, task, {"path": ".", "new_str": "x"})


def test_replacing_keeps_everything_else():
    assert replace("a\r\nb\n\n", "f", "b", "") == ("a\r\n\n\n", "Edited f")
    assert replace("aaa", "f", "aa", "b")[0] == "ba"


async def test_run_tests(sandbox, task):
    first = await RunTests()(sandbox, task, {})
    assert first.text == "FAILED test_calc.py::test_add - AssertionError: \n[exit code 1]"
    await sandbox.write_file("calc.py", FIXED.encode())
    assert (await RunTests()(sandbox, task, {})).text in ("", "[no output]")


def test_a_long_log_shows_its_end_without_what_passed():
    log = "PASSED a\n" + "FAILED b\n" * 2000 + "2000 failed"
    text = render_log(log)
    assert text.startswith("[cut]\n") and text.endswith("2000 failed") and "PASSED" not in text
    assert len(text) == MAX_LOG + len("[cut]\n")


async def test_submit(sandbox, task):
    result = await Submit()(sandbox, task, {})
    assert (result.text, result.ok, result.submitted) == ("Submitted", True, True)
