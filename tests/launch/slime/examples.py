"""The examples of `docs/slime_flags.md`: each a heading, and a command below it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "slime_flags.md"


@dataclass(frozen=True)
class Example:
    """words: the recipe's name, and overrides."""

    title: str
    words: tuple[str, ...]


def examples() -> list[Example]:
    """Every section with a `slime-swe plan` or `train` command; of several only the first."""
    sections = re.findall(r"^### ([^\n]+)$(.*?)(?=^##|\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found = [(title, re.search(r"slime-swe train recipe=(.*?[^\\])\n", body, re.DOTALL)) for title, body in sections]
    return [Example(title, tuple(shlex.split(command[1].replace("\\\n", " ")))) for title, command in found if command]
