"""One fenced shell command a turn, as mini-SWE-agent has it: for models that were not trained to call tools.

The block is a call of `bash`. One that holds nothing but the name of a tool that needs no arguments calls that:
`submit` ends the episode.
"""

from __future__ import annotations

from slime_swe.rollout.chat.fences import Fence, fences
from slime_swe.rollout.chat.tool_formats import (
    MAX_TURN,
    MalformedCall,
    ParsedTurn,
    ToolCall,
    ToolFormat,
    Tools,
    too_long,
)

SHELLS = frozenset({"bash", "sh", "shell"})  # languages of blocks
INSTRUCTIONS = """\
Reply with your thoughts and then exactly one block with a shell command:
```bash
ls
```
You are shown what it prints, and reply again. Each command runs in a shell of its own in the repository: `cd` and \
variables do not last. A command that holds three backticks goes into a block with four. `run_tests` alone in a block \
runs the tests. `submit` alone in a block ends the task."""


def parse_bash_block(text: str, tools: Tools = ()) -> ParsedTurn:
    """Return the turn's one call, or one malformed call if its blocks with a command are several, or one that may be
    cut off. Blocks of other languages may stand before it, but not behind it: a command with three backticks ends at
    them, and what should be its rest is then such a block.
    """
    if len(text) > MAX_TURN:
        return too_long("") if "```" in text else ParsedTurn(text, [])
    found = [*fences(text)]
    blocks = [fence for fence in found if fence.language in SHELLS]
    if not blocks:
        return ParsedTurn(text, [])
    before = text[: blocks[0].start]
    command = text[blocks[0].content : blocks[0].content_end].strip()
    wrong = _wrong(found, blocks, command)
    if wrong:
        return ParsedTurn(before, [MalformedCall("bash", command, f"{wrong}, so nothing was run. {INSTRUCTIONS}")])
    if command in _without_arguments(tools):
        return ParsedTurn(before, [ToolCall(command, {})])
    return ParsedTurn(before, [ToolCall("bash", {"command": command})])


def _wrong(found: list[Fence], blocks: list[Fence], command: str) -> str:
    """Return why the turn has no call; empty where it has one."""
    if len(blocks) > 1:
        return f"the reply has {len(blocks)} blocks with a shell command"
    if not all(fence.closed for fence in found):
        return "a block of the reply is not closed"
    if found[-1] is not blocks[0]:
        return "another block follows the one with the command"
    return "" if command else "the block is empty"


def _without_arguments(tools: Tools) -> set[str]:
    """Return the names of the tools that need no arguments."""
    functions = [tool["function"] for tool in tools]
    return {str(one["name"]) for one in functions if not (one.get("parameters") or {}).get("required")}


BASH_BLOCK = ToolFormat(parse_bash_block, None, template="qwen3", instructions=INSTRUCTIONS)
