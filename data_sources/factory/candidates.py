"""`Candidate`: a changed package that may be a task, before anything has run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import orjson

from slime_swe.data_sources.factory.packages import Package
from slime_swe.patches import make_patch

Source = Literal["faults", "releases", "written"]


@dataclass(frozen=True)
class Span:
    """Lines of a file, 1-based, both ends in it."""

    path: str
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        return self.path == other.path and self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Candidate:
    """package: right. changes: path → text of the broken state, None for a file that it lacks.

    kind: of the change: a modifier's name, or whatever made it. spans: where in the right code the change is; the tests
    that run these lines are its tests.
    """

    package: Package
    source: Source
    kind: str
    changes: Mapping[str, str | None] = field(repr=False)
    spans: Sequence[Span]
    about: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """The same for the same change of the same package."""
        parts = [self.package.label, self.package.fingerprint, self.source, self.kind, sorted(self.changes.items())]
        return hashlib.sha256(orjson.dumps(parts)).hexdigest()

    @property
    def id(self) -> str:
        return f"{self.package.label}-{self.kind.removeprefix('func_pm_').replace('_', '-')}-{self.digest[:8]}"

    def broken_files(self) -> dict[str, str]:
        files = {**self.package.files, **self.changes}
        return {path: text for path, text in files.items() if text is not None}

    def gold_patch(self) -> str:
        """From the broken state to the package."""
        broken = {path: text for path, text in self.changes.items() if text is not None}
        right = {path: self.package.files[path] for path in self.changes if path in self.package.files}
        return make_patch(broken, right)
