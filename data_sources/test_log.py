"""Read a pytest-style log: one `PASSED id` or `FAILED id - why` line per test."""

from __future__ import annotations

import re

_LINE = re.compile(r"^(PASSED|FAILED|ERROR) (\S+::\S+)", re.MULTILINE)


def parse_test_log(log: str) -> dict[str, bool]:
    """Test id → whether it passed. A test named twice passed only if it passed both times."""
    results: dict[str, bool] = {}
    for status, test in _LINE.findall(log):
        results[test] = results.get(test, True) and status == "PASSED"
    return results
