"""Which weights sampled which tokens of a sequence: spans of `(version, number of tokens)`, one after another.

A weight update may come in the middle of a turn. The version is None where it is not known, or nothing was sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

VersionSpan = tuple[str | None, int]


def joined(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """The same spans, with neighbours of one version as one, and none that is empty."""
    whole: list[VersionSpan] = []
    for version, count in spans:
        if count and whole and whole[-1][0] == version:
            whole[-1] = version, whole[-1][1] + count
        elif count:
            whole.append((version, count))
    return tuple(whole)


def part_of(spans: Sequence[VersionSpan], start: int, end: int) -> tuple[VersionSpan, ...]:
    """The spans of the tokens from `start` up to `end`."""
    part: list[VersionSpan] = []
    at = 0
    for version, count in spans:
        part.append((version, max(0, min(at + count, end) - max(at, start))))
        at += count
    return joined(part)


def without(spans: Sequence[VersionSpan], places: Collection[int]) -> Sequence[VersionSpan]:
    """The spans, with None at these places."""
    if not places:
        return spans
    versions = [version for version, count in spans for _ in range(count)]
    return joined((None if at in places else version, 1) for at, version in enumerate(versions))
