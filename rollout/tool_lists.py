"""Lists of tools that prompts have offered: one file for each of a run's lists, as thousands of episodes share one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from slime_swe.errors import UserError
from slime_swe.files import replace_file

FOLDER = "tools"  # in a run's folder
_DIGITS = 16


def keep_tools(run: Path, tools: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Keep a list of function schemas, unless the run has it already, and return its name; None for none."""
    if not tools:
        return None
    content = orjson.dumps(tools)
    name = sha256(content).hexdigest()[:_DIGITS]
    file = run / FOLDER / f"{name}.json"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        replace_file(file, content)
    return name


def read_tools(run: Path, name: str | None) -> list[dict[str, Any]]:
    """The list of that name; an empty one for None. Raises `UserError` where the run has none of that name."""
    if name is None:
        return []
    file = run / FOLDER / f"{name}.json"
    if not file.exists():
        raise UserError(f"{file} is missing, in which the run keeps the tools of some episodes: restore it")
    tools: list[dict[str, Any]] = orjson.loads(file.read_bytes())
    return tools
