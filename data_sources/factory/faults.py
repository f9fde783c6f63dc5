"""Faults: the procedural modifiers of SWE-smith, and its combinations of several faults in one file or folder.

Modifiers, what they can change and how often are `swesmith`'s (Yang et al., "SWE-smith", 2025); here they get a seed
for each place, so that the same package gives the same faults.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Any

from slime_swe import syntax
from slime_swe.data_sources.factory.packages import Candidate, Package, Span

ATTEMPTS = 3  # seeds of each modifier at each place; equal results count once


@dataclass(frozen=True)
class Place:
    """An entity of a file, and a modifier that can change it."""

    path: str
    entity: Any
    modifier: Any
    attempt: int

    @property
    def span(self) -> Span:
        return Span(self.path, _first_line(self.entity), self.entity.line_end)

    def changed(self, source: str) -> str | None:
        """Return the file, changed; None where the modifier finds nothing, or fails, or where that is no Python."""
        text = _changed(self.modifier, self.entity, source, self._seed())
        return None if text is None or (self.path.endswith(".py") and not _compiles(text)) else text

    def _seed(self) -> int:
        text = f"{self.path} {self.entity.line_start} {self.modifier.name} {self.attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def faults(package: Package) -> Iterator[Candidate]:
    """Make faults as they are asked for, since a large package has thousands. Modifiers take turns, so that any first
    part has many kinds. The same faults come in the same order each time."""
    by_kind: dict[str, list[Place]] = {}
    for path in package.code:
        for place in places(path, package.files[path]):
            by_kind.setdefault(place.modifier.name, []).append(place)
    for kind, found in by_kind.items():
        random.Random(f"{package.label} {kind}").shuffle(found)
    seen: set[tuple[str, str]] = set(package.files.items())
    return _in_turn(_made(package, by_kind[kind], seen) for kind in sorted(by_kind))


def _made(package: Package, found: Iterable[Place], seen: set[tuple[str, str]]) -> Iterator[Candidate]:
    for place in found:
        text = place.changed(package.files[place.path])
        if text is not None and (place.path, text) not in seen:
            seen.add((place.path, text))
            yield Candidate(package, "faults", place.modifier.name, {place.path: text}, (place.span,))


def places(path: str, source: str) -> Iterator[Place]:
    """Yield the places of a file of any language that SWE-smith has modifiers for."""
    from swesmith.bug_gen.adapters import get_entities_from_file  # it loads a grammar for each language
    from swesmith.bug_gen.procedural import MAP_EXT_TO_MODIFIERS

    suffix = PurePosixPath(path).suffix
    modifiers = MAP_EXT_TO_MODIFIERS.get(suffix, ())
    for entity in _entities(get_entities_from_file, suffix, source) if modifiers else ():
        for modifier in modifiers:
            if modifier.can_change(entity):
                yield from (Place(path, entity, modifier, attempt) for attempt in range(ATTEMPTS))


def combined(found: Sequence[Candidate]) -> list[Candidate]:
    """Put two faults together, of one file (`combine_file`) or folder (`combine_module`), each used once per kind."""
    combinable: list[Candidate] = []
    used: set[tuple[str, str]] = set()
    for one, other in combinations(found, 2):
        here, there = one.spans[0], other.spans[0]
        same_file = here.path == there.path
        kind = "combine_file" if same_file else "combine_module"
        if (not same_file and PurePosixPath(here.path).parent != PurePosixPath(there.path).parent) or here.meets(there):
            continue
        if (one.digest, kind) in used or (other.digest, kind) in used:
            continue
        changes = _merged(one, other) if same_file else {**one.changes, **other.changes}
        if changes is None:
            continue
        used |= {(one.digest, kind), (other.digest, kind)}
        about = {"kinds": f"{one.kind}, {other.kind}"}
        combinable.append(Candidate(one.package, "faults", kind, changes, (here, there), about))
    return combinable


def _merged(one: Candidate, other: Candidate) -> dict[str, str | None] | None:
    """Merge both changes of one file: the second's, with the first's lines put where they were."""
    first, second = sorted((one, other), key=lambda candidate: candidate.spans[0].first)
    path = first.spans[0].path
    original = first.package.files[path].splitlines(keepends=True)
    upper, lower = (str(candidate.changes[path]).splitlines(keepends=True) for candidate in (first, second))
    end = first.spans[0].last + len(upper) - len(original)
    text = "".join(upper[:end] + lower[first.spans[0].last :])
    return {path: text} if _compiles(text) else None


def _entities(readers: Any, suffix: str, source: str) -> list[Any]:
    """Read the functions and classes of a source; one that can't be read has none."""
    entities: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"module{suffix}")
        file.write_text(source, encoding="utf-8")
        try:
            readers[suffix](entities, str(file))
        except (SyntaxError, ValueError, IndexError, AssertionError, RecursionError):
            return []
    return entities


def _changed(modifier: Any, entity: Any, source: str, seed: int) -> str | None:
    """Return the file with the entity changed; None where the modifier finds nothing, or fails at it."""
    try:
        found = type(modifier)(likelihood=modifier.likelihood, seed=seed).modify(entity)
    except Exception:  # of a library's transformer on code that it does not expect
        return None
    if found is None or not found.rewrite.strip():
        return None
    lines = source.splitlines(keepends=True)
    indent = " " * (entity.indent_level * entity.indent_size)
    changed = [f"{indent}{line}" if line.strip() else line for line in found.rewrite.splitlines(keepends=True)]
    changed[-1] = changed[-1].rstrip("\n") + "\n"
    return "".join([*lines[: entity.line_start - 1], *changed, *lines[entity.line_end :]])


def _first_line(entity: Any) -> int:
    """Return the first line with the decorators: code objects begin there."""
    return min([int(entity.line_start), *(int(node.lineno) for node in getattr(entity.node, "decorator_list", ()))])


def _compiles(text: str) -> bool:
    try:
        syntax.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _in_turn(kinds: Iterable[Iterator[Candidate]]) -> Iterator[Candidate]:
    waiting = list(kinds)
    while waiting:
        for one in list(waiting):
            if (candidate := next(one, None)) is None:
                waiting.remove(one)
            else:
                yield candidate
