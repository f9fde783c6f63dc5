"""Attributes of SLiME's `args` -> the words of its command line, by the manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launch.slime.manifest import Flag, FlagError, Manifest, load_manifest


def words(attributes: Mapping[str, Any], manifest: Manifest | None = None) -> tuple[str, ...]:
    """A command line that sets every attribute as given. None leaves out a flag that has no default.

    Raises `FlagError` where SLiME has no flag for an attribute, or none that gives it this value.
    """
    known = manifest or load_manifest()
    said = [word for dest, value in attributes.items() for word in _words_for(dest, value, known)]
    known.check(said)
    return tuple(said)


def _words_for(dest: str, value: Any, manifest: Manifest) -> list[str]:
    flags = manifest.of_dest(dest)
    if not flags:
        manifest.require("--" + dest.replace("_", "-"))
        raise FlagError(f"SLiME has no flag that sets args.{dest}")
    for flag in flags:
        if flag.switch and flag.const == value:
            return [flag.name]
    if _unsaid(flags, value):
        return []
    takers = [flag for flag in flags if not flag.switch]
    if not takers or value is None:
        raise FlagError(f"no flag of SLiME sets args.{dest} to {value!r}: {', '.join(flag.name for flag in flags)}")
    if takers[0].action == "BooleanOptionalAction":
        return [_either(flags, value)]
    return [takers[0].name, *_texts(value)]


def _unsaid(flags: list[Flag], value: Any) -> bool:
    """Whether leaving the flags out sets the value. Of a switch no default is as good as False."""
    default = flags[0].default
    if all(flag.switch for flag in flags):
        return bool(value) == bool(default)
    return value is None and default is None


def _either(flags: list[Flag], value: bool) -> str:
    names = [flag.name for flag in flags]
    return next(name for name in names if name.startswith("--no-") != value)


def _texts(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for inner in value for text in _texts(inner)]
    return [json.dumps(value) if isinstance(value, dict) else str(value)]
