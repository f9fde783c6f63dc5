"""`Case`: one scripted agent, and the suite of them in `scripts/*.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Kind = Literal["attack", "neighbour"]

ATTACK_FILES = ("looking", "tests", "forging", "meddling", "patches", "resources")
NEIGHBOUR_FILES = ("neighbours",)


@dataclass(frozen=True)
class Case:
    """What a scripted agent does in its sandbox, in shell, with the functions of `scripts/prelude.sh`.

    about: what an attack tries; what a neighbour is the honest side of. patch: handed in instead of the sandbox's diff.
    only: the targets that it is for; all where there are none. slow: it runs into the time limit of the tests.
    """

    kind: Kind
    group: str
    name: str
    about: str
    script: str = ""
    patch: str = ""
    only: tuple[str, ...] = ()
    slow: bool = False


@cache
def attacks() -> tuple[Case, ...]:
    return tuple(_case("attack", group, entry) for group in ATTACK_FILES for entry in _read(group)["attack"])


@cache
def neighbours() -> tuple[Case, ...]:
    return tuple(_case("neighbour", group, entry) for group in NEIGHBOUR_FILES for entry in _read(group)["neighbour"])


@cache
def prelude() -> str:
    """Shell functions for the scripts."""
    return (resources.files("rewards.integrity") / "scripts" / "prelude.sh").read_text(encoding="utf-8")


def _read(group: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("rewards.integrity") / "scripts" / f"{group}.toml").read_text("utf-8"))


def _case(kind: Kind, group: str, entry: dict[str, Any]) -> Case:
    about = entry["tries" if kind == "attack" else "of"]
    script, patch = entry.get("script", ""), entry.get("patch", "").removeprefix("\n")
    assert bool(script) != bool(patch), f"{entry['name']}: a script or a patch"
    only, slow = tuple(entry.get("only", ())), entry.get("slow", False)
    return Case(kind, group, entry["name"], about, script, patch, only, slow)
