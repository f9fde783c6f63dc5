"""Replies with tool calls, made at random: proper ones, and ones with every fault that a policy makes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from slime_swe.rollout.chat.tool_formats import ToolCall, tool_format

_TYPES: dict[str, Any] = {
    "path": {"type": "string"},
    "text": {"type": "string"},
    "line": {"type": "integer"},
    "ratio": {"type": "number"},
    "all": {"type": "boolean"},
    "deep": {"type": "object"},
    "items": {"type": "array"},
}
SCHEMAS = {key: schema["type"] for key, schema in _TYPES.items()}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "view", "parameters": {"type": "object", "properties": _TYPES}}},
    {"type": "function", "function": {"name": "submit", "parameters": {"type": "object", "properties": {}}}},
]
_WORDS = [
    *(
        "a.py",
        "def f(x):\n    return x\n",
        "",
        "\n",
        " ",
        "\n\nx\n",
        "漢字 🙂",
        "é\u2028",
        '"',
        "\\",
        "\\n",
        "'",
        "{",
        "}",
    ),
    *('{"a": 1}', '{"a":  [1,2]}', "[1]", "3", "1e5", "true", "null", "None", '"quoted"', "<b>", "a < b", "&lt;", "<"),
]
_TEXTS = ["", "", "", "\n", "I look.\n", "So. ", "漢字", "1 < 2 ", "{x}", "\n\n"]
TAGS: dict[str, Sequence[str]] = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool_call>\n", "\n</tool_call>"],
    "qwen3_coder": [
        *("<tool_call>", "</tool_call>", "<function=view>", "</function>", "<parameter=path>", "</parameter>"),
    ],
    "glm47": ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "minimax_m2": [
        *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="view">', "</invoke>"),
        *('<parameter name="path">', "</parameter>"),
    ],
}
TAGS["glm45"] = TAGS["glm47"]
_TOKENS = {  # one token each in the models' vocabularies
    "hermes": ["<tool_call>", "</tool_call>"],
    "qwen3_coder": ["<tool_call>", "</tool_call>"],
    "glm45": TAGS["glm47"],
    "glm47": TAGS["glm47"],
    "minimax_m2": ["<minimax:tool_call>", "</minimax:tool_call>"],
}
_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "string": lambda rng: "".join(rng.choices(_WORDS, k=rng.randint(1, 3))),
    "integer": lambda rng: rng.choice([0, -3, 17, 10**18]),
    "number": lambda rng: rng.choice([0.5, -2.25, 3, 1e20]),
    "boolean": lambda rng: rng.random() < 0.5,
    "object": lambda rng: rng.choice([{}, {"a": [1, {"b": None}]}, {"k": "v\n"}, {"é": True}]),
    "array": lambda rng: rng.choice([[], [1, 2], ["a", {"b": "c"}], [[]]]),
}


def reply(rng: random.Random, format: str) -> str:
    """Two in five have proper calls alone."""
    text = rng.choice(_TEXTS)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        text += _calls(rng, format) + rng.choice(_TEXTS)
    if rng.random() < 0.4:
        return text
    for _ in range(rng.choice([1, 1, 2])):
        text = rng.choice([_without_a_tag, _with_a_tag, _with_a_word, _cut, _cut, _doubled])(rng, format, text)
    return text


def chunks(rng: random.Random, format: str, text: str) -> list[str]:
    """The text in pieces as a server streams them: about a token long, or longer. A tag that is a token stays whole."""
    longest, pieces = rng.choice([1, 4, 12, 60]), []
    for part in re.split(f"({'|'.join(_TOKENS[format])})", text):
        start = 0
        while part and start < len(part):
            size = len(part) if part in _TOKENS[format] else rng.randint(1, longest)
            pieces.append(part[start : start + size])
            start += size
    return pieces


def _calls(rng: random.Random, format: str) -> str:
    calls = [_call(rng, format) for _ in range(rng.choice([1, 1, 1, 2]))]
    return "".join(tool_format(format).render(calls))  # type: ignore[misc]


def _call(rng: random.Random, format: str) -> ToolCall:
    kind = rng.random()
    if kind < 0.1:
        return ToolCall("submit", {})
    if kind < 0.13:
        return ToolCall("nothing_such", {"path": "a"})
    keys = rng.sample(list(_TYPES), k=rng.randint(0, 4))
    arguments = {key: _VALUES[_TYPES[key]["type"]](rng) for key in keys}
    if rng.random() < 0.05:
        arguments["path"] = rng.choice(TAGS[format])
    if rng.random() < 0.05:
        arguments["unheard_of"] = rng.choice(_WORDS)
    if rng.random() < 0.05:
        arguments["line"] = rng.choice(["x", "", "1.5", "null"])
    return ToolCall("view", arguments)


def _places(format: str, text: str) -> list[tuple[int, int]]:
    return [(at, at + len(tag)) for tag in TAGS[format] for at in range(len(text)) if text.startswith(tag, at)]


def _without_a_tag(rng: random.Random, format: str, text: str) -> str:
    places = _places(format, text)
    if not places:
        return text
    start, end = rng.choice(places)
    return text[:start] + text[end:]


def _with_a_tag(rng: random.Random, format: str, text: str) -> str:
    return _insert(rng, text, rng.choice(TAGS[format]))


def _with_a_word(rng: random.Random, format: str, text: str) -> str:
    return _insert(rng, text, rng.choice(_WORDS))


def _insert(rng: random.Random, text: str, piece: str) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + piece + text[at:]


def _cut(rng: random.Random, format: str, text: str) -> str:
    return text[: rng.randint(0, len(text))]


def _doubled(rng: random.Random, format: str, text: str) -> str:
    start = rng.randint(0, len(text))
    end = rng.randint(start, min(len(text), start + 60))
    return text[:end] + text[start:]
