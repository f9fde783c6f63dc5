"""Replies that call nothing, made at random: prose, listings, settings and examples as policies quote them, with the
names of real tools in them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

TOOL_NAMES = ["bash", "view", "str_replace", "run_tests", "submit"]
_NAMES = [*TOOL_NAMES, "my-app", "alice", "get_weather", "eslint", "calc", "pytest", "José", "a/b"]
_OTHER_TOOLS = ["get_weather", "search", "read_file", "execute_python", "Bash", "bash_tool", "view_file", ""]
_PROSE = [
    "The function subtracts where it should add.",
    "I would call `bash` with `ls` to look around, then use `view`.",
    'A call has the form {"name": "bash", "arguments": {"command": "ls"}}, with the arguments as an object.',
    'Use `{"name": "submit", "arguments": {}}` when done.',
    "# Getting started\n\nInstall it, then run the tests:",
    "Let's submit.\n\n1. view calc.py\n2. str_replace it\n3. run_tests",
    "| name | arguments |\n| --- | --- |\n| bash | command |\n| view | path |",
    "[the docs](https://example.org/a) say `name` and `arguments` are required.",
    "- [ ] bash\n- [x] view",
    "name: bash\narguments:\n  command: ls",
    "bash(command='ls')",
    "<details>\n<summary>tools</summary>\nview, bash\n</details>",
    "The fix is below. Please run it and tell me what it prints.",
    "漢字 🙂\u2028 and `code`",
    "```",
    "",
]


def _function(rng: random.Random) -> dict[str, Any]:
    return {"name": rng.choice(_NAMES), "description": "Runs it.", "parameters": {"type": "object", "properties": {}}}


def _package(rng: random.Random) -> Any:
    return {"name": rng.choice(_NAMES), "version": "1.0.0", "scripts": {"test": "jest"}, "dependencies": {"a": "^1"}}


def _people(rng: random.Random) -> Any:
    return [{"name": rng.choice(_NAMES), "age": rng.randint(1, 90)} for _ in range(rng.randint(1, 3))]


def _message(rng: random.Random) -> Any:
    call = {"name": rng.choice(TOOL_NAMES), "arguments": '{"command": "ls"}'}
    return {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": call}]}


def _another_call(rng: random.Random) -> Any:
    return {"name": rng.choice(_OTHER_TOOLS), "arguments": {"location": "Paris"}}


def _more_than_a_call(rng: random.Random) -> Any:
    more = {rng.choice(["id", "type", "description", "result"]): "function"}
    return {"name": rng.choice(TOOL_NAMES), "arguments": {"command": "ls"}, **more}


_DATA: list[Callable[[random.Random], Any]] = [
    _package,
    _people,
    _message,
    _another_call,
    _more_than_a_call,
    _function,
    lambda rng: {"type": "function", "function": _function(rng)},
    lambda rng: [{"name": name} for name in rng.sample(TOOL_NAMES, 3)],
    lambda rng: {"tools": [_function(rng) for _ in range(2)]},
    lambda rng: {"arguments": {"command": "ls"}},
    lambda rng: {"call": {"name": "bash", "arguments": {"command": "ls"}}},
    lambda rng: {"name": rng.choice(TOOL_NAMES), "parameters": {"command": "ls"}},
    lambda rng: {"name": {"first": "bash"}, "arguments": {"a": 1}},
    lambda rng: {"compilerOptions": {"strict": True, "paths": {"@/*": ["src/*"]}}},
    lambda rng: [_another_call(rng), {"name": "bash", "arguments": {"command": "ls"}}],
    lambda rng: {"FAILED": ["test_calc.py::test_add"], "name": "run_tests"},
    lambda rng: rng.choice([3, "bash", None, [], {}, [[1, 2], [3]]]),
]
_LISTINGS = [
    ("python", 'CALL = {"name": "bash", "arguments": {"command": "ls"}}\nrun(CALL)'),
    ("python", '{"name": "bash", "arguments": {"command": "ls"}}'),
    ("python", "def add(a, b):\n    return a - b"),
    ("js", 'const call = {\n  "name": "view",\n  "arguments": { "path": "a.py" }\n};'),
    ("ts", "interface Call {\n  name: string;\n  arguments: object;\n}"),
    ("yaml", "name: bash\narguments: {command: ls}"),
    ("toml", '[project]\nname = "view"'),
    ("diff", "-    return a - b\n+    return a + b"),
    ("xml", '<tools>\n  <tool name="bash"/>\n</tools>'),
    ("html", "<tools>\n<b>bash</b>\n</tools>"),
    ("console", "$ ls\na.py\n{}"),
    ("text", "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nKeyError: 'name'"),
    ("json5", '{"name": "bash", "arguments": {"command": "ls"},}'),
    ("jsonl", '{"name": "bash", "arguments": {"command": "ls"}}'),
    ("sql", "SELECT name, arguments FROM calls"),
    ("json", '// a call\n{"name": "bash", "arguments": {"command": "ls"}}'),
    ("json", '{\n  "name": <function-name>,\n  "arguments": <args-json-object>\n}'),
    ("json", '{"name": "bash", ...}'),
    ("", "calc.py\ntest_calc.py"),
    ("", '{"name": "my-app"'),
    ("go", 'type Call struct {\n\tName string `json:"name"`\n}'),
    ("rust", 'let call = json!({"name": "view", "arguments": {"path": "a"}});'),
]


def _of_data(rng: random.Random) -> str:
    written = json.dumps(rng.choice(_DATA)(rng), indent=rng.choice([None, None, 2, 4]), ensure_ascii=rng.random() < 0.5)
    kind = rng.random()
    if kind < 0.5:
        return f"```{rng.choice(['json', '', 'JSON', 'jsonc'])}\n{written}\n```"
    if kind < 0.8:
        return written
    tag = rng.choice(["tools", "function_call"])
    return f"<{tag}>\n{written}\n</{tag}>" if kind < 0.9 else f"The answer is {written}."


def _of_listing(rng: random.Random) -> str:
    language, text = rng.choice(_LISTINGS)
    return f"```{language}\n{text}\n```"


def _in_the_middle(rng: random.Random) -> str:
    """What would be a call if the reply ended with it."""
    return '{"name": "bash", "arguments": {"command": "ls"}}\n\nThat is what the log says.'


def parts(rng: random.Random) -> list[str]:
    kinds = [lambda rng: rng.choice(_PROSE[:-2]), lambda rng: rng.choice(_PROSE), _of_data, _of_data, _of_listing]
    return [rng.choice([*kinds, _in_the_middle])(rng) for _ in range(rng.randint(1, 5))]


def reply(rng: random.Random) -> str:
    return rng.choice(["\n\n", "\n\n", "\n"]).join(parts(rng)) + rng.choice(["", "\n"])
