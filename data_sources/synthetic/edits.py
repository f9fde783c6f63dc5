"""A change of a text as one `str_replace`: the shortest run of whole lines, without the first line's indentation."""

from __future__ import annotations


def as_replacement(before: str, after: str) -> tuple[str, str] | None:
    """`(old, new)` such that replacing `old`, which occurs once in `before`, gives `after`; else None."""
    old, new = _changed_lines(before.splitlines(), after.splitlines())
    indentation = len(old[0]) - len(old[0].lstrip())
    if old[0][:indentation] == new[0][:indentation]:
        old[0], new[0] = old[0][indentation:], new[0][indentation:]
    old_text, new_text = "\n".join(old), "\n".join(new)
    if before.count(old_text) != 1 or before.replace(old_text, new_text) != after:
        return None
    return old_text, new_text


def _changed_lines(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """The lines that differ; where lines were only added or removed, with the line that follows or else precedes."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    if start in (len(before) - end, len(after) - end):
        start, end = (start, end - 1) if end else (start - 1, end)
    return before[start : len(before) - end], after[start : len(after) - end]
