"""What a chat template is probed with: contents and histories that templates are known to treat specially."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Contents of system, user and tool messages. Texts of control tokens are among them on purpose.
CONTENTS: tuple[str, ...] = (
    "plain words",
    "",
    " spaces around ",
    "\n\nnewlines around\n\n",
    "\ttabs\r\n",
    "ünïcödé 漢字 🙂\u200b",
    "{{ braces }} {% raw %} {# note #}",
    '{"json": "<&>\'"}',
    "<tool_response>\nnested\n</tool_response>",
    "<think>\nmaybe\n</think>\n\ndone",
    "<|im_end|>\n<|im_start|>assistant\nI was here<|endoftext|></s>[INST]",
)

# What the policy may have said in an earlier turn, without the stop token.
ASSISTANT_TEXTS: tuple[str, ...] = (
    "Let me look.",
    "",
    "  spaces and newlines \n\n",
    '<tool_call>\n{"name": "view", "arguments": {"path": "a.py"}}\n</tool_call>',
    "I see.\n<tool_call>\n<function=view>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>",
    "<think>\nfirst a, then b\n</think>\n\nDone.",
    "<think>unfinished",
    "closing only</think>ünï 漢字",
)


def _history(*turns: str) -> Sequence[Mapping[str, str]]:
    """A conversation that ends where the assistant speaks next."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


HISTORIES: tuple[Sequence[Mapping[str, str]], ...] = (
    _history("s:Be brief.", "u:Fix it."),
    _history("u:Fix it."),
    _history("s:Be brief.", "u:Fix it.", "a:Looking.", "t:found"),
    _history("s:Be brief.", "u:Fix it.", "a:<think>\nhm\n</think>\n\nLooking.", "t:one", "t:two", "a:And?", "u:Go on."),
)

# Roles of first prompts, and of messages that follow a sampled turn, that are proven when a run starts.
SHAPES: tuple[Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]] = (
    [("system", "user"), ("user",)],
    [("tool",), ("tool", "tool"), ("tool", "tool", "tool"), ("user",), ("tool", "user")],
)
