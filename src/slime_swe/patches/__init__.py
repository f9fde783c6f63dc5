"""Patches in git's form: read, written, made from two sets of files, applied, reversed. Git itself is not needed.

    read_patch(text) -> [Change]      write_patch(changes) -> text      reverse_patch(text) -> text
    make_patch(before, after) -> text      apply_patch(files, text) -> files

Malformed text, and text that does not fit the files, is a `PatchError` and never another exception. Nothing here takes
time that grows faster than its input.
"""

from slime_swe.patches.apply import apply_patch
from slime_swe.patches.diff import MAX_PATCH_BYTES, OVERSIZED, bounded_patch, make_patch
from slime_swe.patches.model import Change, Hunk, PatchError, write_patch
from slime_swe.patches.paths import (
    added_paths,
    binary_paths,
    changed_lines,
    header_paths,
    paths_of,
    require_few_folders,
)
from slime_swe.patches.read import read_patch, reverse_patch

__all__ = [
    "MAX_PATCH_BYTES",
    "OVERSIZED",
    "Change",
    "Hunk",
    "PatchError",
    "added_paths",
    "apply_patch",
    "binary_paths",
    "bounded_patch",
    "changed_lines",
    "header_paths",
    "make_patch",
    "paths_of",
    "read_patch",
    "require_few_folders",
    "reverse_patch",
    "write_patch",
]
