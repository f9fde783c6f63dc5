"""Read the name of a task set: `SOURCE:SPLIT`, or a file of tasks, and after a `?` what is taken of it.

swebench:verified?repo=django/django&before=2022-01-01
quixbugs:python?folder=/data/QuixBugs
path/to/tasks.jsonl?ids=path/to/ids.txt
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl

from data_sources.arguments import unknown

FILE_KINDS = (".jsonl", ".json", ".parquet")
OPTIONS = ("folder", "id", "ids", "repo", "before", "after", "part", "by", "seed", "limit", "expect")
_PATHS = ("folder", "ids")


class RegistryError(ValueError):
    """No such task set; the message says what there is."""


@dataclass(frozen=True)
class Spec:
    """The parts of a task set's name. `file` is empty where a source is named, else `source` and `split` are."""

    text: str
    file: str = ""
    source: str = ""
    split: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The name that these parts are read from."""
        options = "&".join(f"{name}={_quoted(value)}" for name, value in self.options.items())
        return (self.file or f"{self.source}:{self.split}") + (f"?{options}" if options else "")


def parse(text: str) -> Spec:
    """Raises `RegistryError` for a name that is not of this form, or has an option that there is not."""
    name, _, query = text.partition("?")
    options = _options(text, query)
    if name.endswith(FILE_KINDS):
        return Spec(text, file=name, options=options)
    source, colon, split = name.partition(":")
    if not colon or not split:
        raise RegistryError(
            f"task set {text!r} names no split: write {source or 'source'}:split, or a path to a .jsonl"
        )
    return Spec(text, source=source, split=split, options=options)


def absolute(spec: Spec) -> Spec:
    """The same task set by absolute paths."""
    options = {name: _absolute(value) if name in _PATHS else value for name, value in spec.options.items()}
    return replace(spec, file=_absolute(spec.file) if spec.file else "", options=options)


def _options(text: str, query: str) -> dict[str, str]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=True)
    except ValueError as error:
        raise RegistryError(f"task set {text!r}: after the ? come options as name=value, joined by &") from error
    for name, value in pairs:
        if name not in OPTIONS:
            raise RegistryError(unknown(f"option of task set {text!r}", name, OPTIONS))
        if not value:
            raise RegistryError(f"task set {text!r}: the option {name} has no value")
    if len(dict(pairs)) < len(pairs):
        raise RegistryError(f"task set {text!r} gives an option twice; several ids or repos are joined by commas")
    return dict(pairs)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _quoted(value: str) -> str:
    return value.replace("%", "%25").replace("&", "%26")
