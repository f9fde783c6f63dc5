"""Releases: the code of one release under the tests of the next. What people changed between them is the fix."""

from __future__ import annotations

from slime_swe.data_sources.factory.candidates import Candidate, Span
from slime_swe.data_sources.factory.packages import Package
from slime_swe.patches import make_patch, read_patch

KIND = "release"


def between(older: Package, newer: Package) -> Candidate | None:
    """The newer release with the older one's code; None where the code is the same, or lies elsewhere.

    Code that the newer release no longer has comes back with it, and what is new is missing. `conftest.py`, settings
    and data stay as in the newer one.
    """
    if older.root != newer.root:
        return None
    paths = sorted({*older.code, *newer.code})
    changes = {path: older.files.get(path) for path in paths if older.files.get(path) != newer.files.get(path)}
    changes = {path: text for path, text in changes.items() if path not in newer.protected}
    if not changes:
        return None
    spans = tuple(span for path, text in changes.items() for span in changed_spans(path, text, newer.files.get(path)))
    about = {"before": older.version}
    return Candidate(newer, "releases", KIND, changes, spans, about)


def changed_spans(path: str, broken: str | None, right: str | None) -> list[Span]:
    """Where the right file differs, each hunk with the context that it has; nothing where it is not there."""
    if right is None:
        return []
    if broken is None:
        return [Span(path, 1, right.count("\n") + 1)]
    patch = make_patch({path: broken}, {path: right})
    hunks = [hunk for change in read_patch(patch) for hunk in change.hunks]
    return [Span(path, hunk.new_start, hunk.new_start + len(hunk.lines)) for hunk in hunks]
