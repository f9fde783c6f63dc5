"""Patches in git's form: read, written, made from two sets of files, applied, reversed. Git itself is not needed.

    read_patch(text) -> [Change]      write_patch(changes) -> text      reverse_patch(text) -> text
    make_patch(before, after) -> text      apply_patch(files, text) -> files

and what a model writes in a reply, by text and not by line numbers:

    edits_of(files, patch) -> edits        apply_edits(files, edits) -> files
    write_blocks(edits) -> text            read_blocks(text) -> edits and faults      apply_reply(files, text) -> files

Malformed text, and text that does not fit the files, is a `PatchError` and never another exception. Nothing here takes
time that grows faster than its input.
"""

from slime_swe.patches.apply import MAX_PATCH_BYTES, OVERSIZED, apply_patch, bounded_patch, make_patch
from slime_swe.patches.edits import (
    Answer,
    Edit,
    Move,
    Replace,
    apply_edits,
    apply_reply,
    edits_of,
    paths_in_reply,
    read_blocks,
    write_blocks,
)
from slime_swe.patches.unified import (
    Change,
    Hunk,
    PatchError,
    added_paths,
    binary_paths,
    changed_lines,
    header_paths,
    paths_of,
    read_patch,
    require_few_folders,
    reverse_patch,
    write_patch,
)

__all__ = [
    "MAX_PATCH_BYTES",
    "OVERSIZED",
    "Answer",
    "Change",
    "Edit",
    "Hunk",
    "Move",
    "PatchError",
    "Replace",
    "added_paths",
    "apply_edits",
    "apply_patch",
    "apply_reply",
    "binary_paths",
    "bounded_patch",
    "changed_lines",
    "edits_of",
    "header_paths",
    "make_patch",
    "paths_in_reply",
    "paths_of",
    "read_blocks",
    "read_patch",
    "require_few_folders",
    "reverse_patch",
    "write_blocks",
    "write_patch",
]
