"""The table "Beside SLiME's own example" of docs/recipes.md, and what it must say of a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.upstream import SLIME

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
NOT_GIVEN, SWITCH = "–", "yes"


@dataclass(frozen=True)
class Row:
    """names: of flags (`--x`), environment variables (`X`) or a recipe's field (`x.y`)."""

    names: tuple[str, ...]
    theirs: str
    ours: str


def rows() -> list[Row]:
    section = PAGE.read_text(encoding="utf-8").partition("## Beside SLiME's own example\n")[2].partition("\n## ")[0]
    table = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in re.findall(r"^\|.*\|$", section, re.M)]
    return [Row(tuple(re.findall("`([^`]+)`", names)), theirs, ours) for names, theirs, ours, *_ in table[2:]]


def cell(names: Sequence[str], words: Sequence[str], environment: Mapping[str, str]) -> str:
    """What a command line and its environment say of these names. Two names of one flag are one."""
    given = {SLIME.manifest.flags[name].dest: values for name, values in split(words)}
    return ", ".join(
        _said(given.get(SLIME.manifest.flags[name].dest)) if name.startswith("--") else environment.get(name, NOT_GIVEN)
        for name in names
    )


def _said(values: Sequence[str] | None) -> str:
    if values is None:
        return NOT_GIVEN
    numbers = (f"{float(word):.10g}" if re.fullmatch(r"-?[\d.]+(e-?\d+)?", word) else word for word in values)
    return " ".join(numbers) or SWITCH
