"""One fenced shell command a turn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_swe.rollout.chat.bash_block import INSTRUCTIONS
from slime_swe.rollout.chat.tool_formats import MAX_TURN, MalformedCall, ToolCall, parse
from slime_swe.rollout.tools import TOOLS

SCHEMAS = [tool.spec.schema() for tool in TOOLS]


def read(text: str):
    return parse(text, "bash_block", SCHEMAS)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("I look.\n\n```bash\nls -la\n```", ToolCall("bash", {"command": "ls -la"})),
        ("```sh\ncd a\nls | head\n```\nThis lists it.", ToolCall("bash", {"command": "cd a\nls | head"})),
        ("```python\nx = 1\n```\nSo:\n```Bash\nls\n```\n", ToolCall("bash", {"command": "ls"})),
        (
            "````bash\ncat > a.md <<'E'\n```\nx\n```\nE\n````",
            ToolCall("bash", {"command": "cat > a.md <<'E'\n```\nx\n```\nE"}),
        ),
        ("```bash\nsubmit\n```", ToolCall("submit", {})),
        ("```bash\n  run_tests\n```", ToolCall("run_tests", {})),
        ("```bash\nview\n```", ToolCall("bash", {"command": "view"})),
        ("```bash\nsubmit && ls\n```", ToolCall("bash", {"command": "submit && ls"})),
    ],
)
def test_a_block_is_a_command_or_the_name_of_a_tool_that_needs_no_arguments(text, call):
    assert read(text).written == [call]


@pytest.mark.parametrize("text", ["ls", "`ls`", "```\nls\n```", "```python\nx\n```", "", '{"name": "bash"}', "```"])
def test_without_a_block_there_is_no_call(text):
    assert (read(text).written, read(text).text_before) == ([], text)


@pytest.mark.parametrize(
    ("text", "command", "error"),
    [
        ("```bash\nls\n```\n```sh\nls\n```", "ls", "the reply has 2 blocks"),
        ("So.\n```bash\nls", "ls", "not closed"),
        ("```python\nx = 1\n\n```bash\nls", "ls", "not closed"),
        ("```bash\n\n```", "", "the block is empty"),
        ("```bash\ncat > a.md <<'E'\n```\nx\n```\nE\n```", "cat > a.md <<'E'", "another block follows"),
        ("```bash\nls\n```\nIt prints:\n```\na.py\n```", "ls", "another block follows"),
    ],
)
def test_more_than_one_block_or_a_broken_one_is_answered_with_the_form(text, command, error):
    turn = read(text)
    (call,) = turn.written
    assert isinstance(call, MalformedCall) and (call.name, call.arguments) == ("bash", command)
    assert error in call.error and call.error.endswith(INSTRUCTIONS)
    assert turn.calls == []


def test_a_turn_with_a_block_may_not_be_longer_than_others():
    assert f"{MAX_TURN} characters" in read("```bash\n" + "x" * MAX_TURN + "\n```").error


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="`\r")), st.text())
def test_any_command_without_backticks_is_read_as_it_is_written(command, before):
    """Up to the blanks around it; whatever is said before, but for fences."""
    turn = read(before.replace("`", "") + f"\n```bash\n{command}\n```")
    if not command.strip():
        assert turn.calls == []
    elif command.strip() not in ("submit", "run_tests"):
        assert turn.written == [ToolCall("bash", {"command": command.strip()})]
