"""What an agent is asked: which tests fail and how, never what was changed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from slime_swe.patches import changed_lines

SHOWN_TESTS = 3
SHOWN_CHARACTERS = 1200  # of one failure
_TELLING = 8  # characters of a line of the fix that would give it away
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_OPENINGS = {
    "faults": "{count} of the tests of {name} {fail}.",
    "releases": "{count} of the tests of {name} {fail}: they expect what the code does not do yet.",
    "written": "{count} of the tests of {name} {fail} since its last change.",
}
_REQUEST = """\
Find out why, and change the code so that they pass and no other test fails. Do not change the tests. Run them by

    {command}
"""


def statement(
    source: str, name: str, failures: Mapping[str, str], command: str, gold_patch: str, files: Collection[str]
) -> str:
    """failures: test → the end of its output. files: the texts that the agent sees.

    An output is shown only as far as it holds no line that the fix adds and the files lack.
    """
    secret = _secrets(gold_patch, files)
    opening = _OPENINGS[source].format(count=len(failures), name=name, fail="fails" if len(failures) == 1 else "fail")
    parts = [opening]
    for test in list(failures)[:SHOWN_TESTS]:
        text = _ADDRESS.sub("0x…", failures[test])[-SHOWN_CHARACTERS:].strip("\n")
        shown = text and not any(line in text for line in secret)
        parts.append(f"`{test}`\n\n{_indented(text)}" if shown else f"`{test}`")
    if len(failures) > SHOWN_TESTS:
        parts.append(f"and {len(failures) - SHOWN_TESTS} more.")
    return "\n\n".join([*parts, _REQUEST.format(command=command)])


def _secrets(gold_patch: str, files: Collection[str]) -> list[str]:
    added = {line[1:].strip() for _, line in changed_lines(gold_patch) if line.startswith("+")}
    return [line for line in added if len(line) >= _TELLING and not any(line in text for text in files)]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())
