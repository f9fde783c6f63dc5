"""The log of tests that `TestsOracle` is graded by, read and written: `PASSED file::test` or `FAILED file::test - why`,
one line for each test, as `pytest -rA` prints them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

_PIECE = 1 << 18  # characters that are searched at once: no other thread runs meanwhile
_LINE_CHARACTERS = 1 << 16  # of a line; one that is longer names no test
_LINE = re.compile(rf"^(PASSED|FAILED|ERROR) (\S.{{,{_LINE_CHARACTERS}}})$", re.MULTILINE)
_DASHES = 8  # of a line, at which its name may end
# pytest reports `PASSED` too for a `unittest` test whose subtests fail. `[why] (n=1) SUBFAIL id` is by pytest-subtests.
# The line's length comes first: else a long one is read to its end for each `] SUBFAIL` that it holds.
_SUBTEST = re.compile(rf"^(?=.{{,{_LINE_CHARACTERS}}}$)(?:[\[(].*[\])] )?SUBFAIL(?:ED)?(.*)$", re.MULTILINE)
# ECMA-48: of a terminal's colours and cursor, of its title and links, and others. None goes on in another line.
_CONTROL = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]?")
_SUBTEST_END = re.compile(r"(?<=[\])]) ")  # what a subtest is of stands before its test's id: `[why] (n=1) file::test`


def without_controls(log: str) -> str:
    """Return the log as a terminal shows it: without colours and other control sequences, which a project's own
    settings may ask for (`addopts = --color=yes`)."""
    if "\x1b" not in log and "\x9b" not in log:
        return log
    pieces, start = [], 0
    while start < len(log):
        end = log.rfind("\n", start, start + _PIECE) + 1 or start + _PIECE
        pieces.append(_CONTROL.sub("", log[start:end]))
        start = end
    return "".join(pieces)


def parse_test_log(log: str) -> dict[str, bool]:
    """Map test ids to whether they passed. A test named twice passed only if it passed both times, and one with
    subtests only if none of them failed.

    File and test may hold blanks and dashes (`my tests/test_a.py::test_join[a - b]`). So a line is taken to name all of
    it, what comes before each ` - `, and the test's first word, since some programs print more behind it.
    """
    results: dict[str, bool] = {}
    log = without_controls(log)
    for match in _lines(_LINE, log):
        for test in set(_names(match[2])):
            results[test] = results.get(test, True) and match[1] == "PASSED"
    for match in _lines(_SUBTEST, log):
        parts = _SUBTEST_END.split(match[1], _DASHES)
        for start in range(len(parts)):
            results |= dict.fromkeys(_names(" ".join(parts[start:]).lstrip()), False)
    return results


def _names(text: str) -> Iterator[str]:
    file, separator, rest = text.partition("::")
    parts = rest.split(" - ", _DASHES)
    for count in range(1, len(parts) + 1 if separator else 0):
        name = " - ".join(parts[:count]).rstrip()
        yield f"{file}::{name}"
        yield from (f"{file}::{word}" for word in name.split(maxsplit=1)[:1])


def _lines(pattern: re.Pattern[str], log: str) -> Iterator[re.Match[str]]:
    """Yield matches that begin in a piece, piece after piece; `^` is the beginning of a line, never that of a piece."""
    for start in range(0, len(log), _PIECE):
        for match in pattern.finditer(log, start, start + _PIECE + 2 * _LINE_CHARACTERS):
            if match.start() >= start + _PIECE:
                break
            yield match


# JUnit's XML, as Maven's Surefire and Gradle write it: a line for each test case. POSIX awk: an image needs no Python
# for it. A case is closed by `/>` or `</testcase>`; what stands between says whether it failed or was skipped. What the
# code under test printed is in CDATA, where a `<testcase` is none.
_JUNIT_XML = r"""
function value(tag, name,   at, text) {
    at = index(tag, " " name "=\"")
    if (!at) return ""
    text = substr(tag, at + length(name) + 3)
    text = substr(text, 1, index(text, "\"") - 1)
    gsub(/&lt;/, "<", text); gsub(/&gt;/, ">", text); gsub(/&quot;/, "\"", text); gsub(/&apos;/, "'", text)
    gsub(/&amp;/, "\\&", text)
    gsub(/[ \t]+/, "_", text)
    return text
}
BEGIN { RS = "<" }
/^!\[CDATA\[/ { quoted = 1 }
quoted { if (index($0, "]]>")) quoted = 0; next }
/^testcase[ \t\n]/ { gsub(/\n/, " "); test = value($0, "classname") "::" value($0, "name"); status = "PASSED"
    if ($0 ~ /\/>[ \t\n]*$/) { print status " " test; test = "" } }
/^(failure|error|rerunFailure|rerunError)[ \t\n>\/]/ && test { status = "FAILED" }
/^skipped[ \t\n>\/]/ && test { status = "SKIPPED" }
/^\/testcase>/ && test { print status " " test; test = "" }
"""


def junit_reports(folders: Iterable[str]) -> str:
    """Write a command that prints the cases of all `TEST-*.xml` in folders of these names, anywhere below.

    On lines of their own: Maven ends with a colour code and no line break.
    """
    places = " -o ".join(f"-path {shlex.quote(f'*/{folder}/TEST-*.xml')}" for folder in folders)
    return f"echo; find . -type f \\( {places} \\) -exec awk {shlex.quote(_JUNIT_XML)} {{}} \\;"


def test_name(classname: str, name: str) -> str:
    """Name a test as `junit_reports` does."""
    return f"{'_'.join(classname.split())}::{'_'.join(name.split())}"


def by_exit_code(commands: Iterable[tuple[str, str]]) -> str:
    """Write shell that runs each (test id, command) in turn: a test has passed where its command exits with 0."""
    return "\n".join(
        f"if {command}; then echo {shlex.quote(f'PASSED {test}')}; else echo {shlex.quote(f'FAILED {test}')}; fi"
        for test, command in commands
    )
