"""How the tests of a package are run by pytest, without options of the project's own: these may name plug-ins that a
sandbox does not have."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def found_from(root: str) -> tuple[str, ...]:
    """pytest's options where the code lies below a folder such as `src`."""
    return ("-o", f"pythonpath={root}") if root else ()


def functions_of(tests: Iterable[str]) -> list[str]:
    """Each once, for all its cases."""
    return list(dict.fromkeys(test.partition("[")[0] for test in tests))


def command_of(tests: Iterable[str], root: str = "") -> str:
    """What runs these tests: their functions, all cases of each."""
    options = ["-rA", "-p", "no:cacheprovider", "--rootdir=.", "-o", "addopts=", *found_from(root)]
    return shlex.join(["python3", "-m", "pytest", *options, *functions_of(tests)])
