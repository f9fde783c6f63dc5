"""The matrix of versions that this project supports, from `supported.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Support:
    """required, tested: specifiers of PEP 440; empty allows any."""

    required: str
    tested: str

    def allows(self, version: str) -> bool:
        return _matches(version, self.required)

    def knows(self, version: str) -> bool:
        return _matches(version, self.tested)


def driver() -> Support:
    return Support(**_document()["driver"])


def packages() -> dict[str, Support]:
    """Name of a distribution -> what is supported of it."""
    return {name: Support(**entry) for name, entry in _document()["packages"].items()}


def commit(name: str) -> str:
    """Of a checkout, `slime` or `megatron`."""
    return str(_document()["sources"][name])


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(files("launch.doctor").joinpath("supported.toml").read_text(encoding="utf-8"))


def _matches(version: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
