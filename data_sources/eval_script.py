"""Eval scripts for corpora that leave them to their harness, as swebench 5 writes them into its data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from data_sources.patches import added_paths, paths_of
from data_sources.swebench import END, START

FOLDER = "/testbed"
_CONDA = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
_END_OF_PATCH = "EOF_slime_swe_test_patch"


def with_test_patch(commit: str, patch: str, test_command: str, before: Sequence[str] = ()) -> str:
    """Bash for a SWE-bench image: the test files as at `commit`, with the test patch; the tests; the files put back."""
    added = added_paths(patch)
    kept = [path for path in paths_of(patch) if path not in added]
    reset = [f"git checkout {commit} -- {shlex.join(kept)}"] if kept else []
    reset += [f"rm -rf -- {shlex.join(added)}"] if added else []
    apply = f"git apply -v - <<'{_END_OF_PATCH}'\n{patch.removesuffix(chr(10))}\n{_END_OF_PATCH}"
    lines = ["#!/bin/bash", "set -uxo pipefail", *_CONDA, f"cd {FOLDER}"]
    lines += [f"git config --global --add safe.directory {FOLDER}", *before, *reset, apply]
    return "\n".join([*lines, f": '{START}'", test_command, f": '{END}'", *reset]) + "\n"
