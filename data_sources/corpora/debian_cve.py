"""Functions before and after the fixes of vulnerabilities that Debian's source packages carry as patches.

The folder holds what `apt-get source --download-only PACKAGE` leaves, or unpacked packages; and, where they are to name
the weaknesses, NVD's or CVE's JSON (`data_sources/vulnerability/weaknesses.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from slime_swe.data_sources.corpora.corpus import Corpus, NotFetched, Split
from slime_swe.data_sources.task import Task
from slime_swe.data_sources.vulnerability.c_functions import functions_of, without_comments
from slime_swe.data_sources.vulnerability.debian import Fix, fixes_in
from slime_swe.data_sources.vulnerability.pairs import Pair, tasks_of
from slime_swe.data_sources.vulnerability.weaknesses import weaknesses_in

CORPUS = Corpus(
    name="debian_cve",
    title="Fixes in Debian's source packages",
    licence="each package's own",
    home="https://www.debian.org",
    counted="nowhere: it is as large as the packages that the folder holds",
    needs="tree-sitter to cut the functions",
    splits={"one": Split(None, "C"), "all": Split(None, "C")},
    brought_by="apt-get source --download-only PACKAGE",
    in_images=False,
)


def load(split: str, folder: Path | None = None) -> list[Task]:
    """`one`: of the patches that change one function, which must be the faulty one. `all`: every changed function.

    Raises `UserError`; `NotFetched` where the folder is not there.
    """
    CORPUS.split(split)
    root = CORPUS.folder(folder)
    if not root.is_dir():
        raise NotFetched(CORPUS, split, folder, "there is no such folder")
    known = weaknesses_in(root)
    pairs = []
    for _, fixes in groupby(fixes_in(root), key=lambda fix: (fix.package, fix.patch)):
        found = [pair for fix in fixes for pair in _pairs(fix, known)]
        pairs += found if split == "all" or len(found) == 1 else []
    return tasks_of({pair.name: pair for pair in pairs}.values(), CORPUS.name, split)


def _pairs(fix: Fix, known: dict[str, tuple[str, ...]]) -> Iterator[Pair]:
    """Of the functions of a C file that the fix changes by more than comments and white space."""
    if not fix.path.endswith((".c", ".h")):
        return
    before, after = functions_of(fix.before), functions_of(fix.after)
    cwes = tuple(sorted({*fix.cwes, *(cwe for cve in fix.cves for cwe in known.get(cve, ()))}))
    for name, text in before.items():
        fixed = after.get(name, text)
        if text == fixed or without_comments(text) == without_comments(fixed) or not _is_utf8(text + fixed):
            continue
        metadata = {"repo": fix.package, "cves": [*fix.cves], "file": fix.path, "function": name}
        dated = {"created_at": fix.date} if fix.date else {}
        yield Pair(f"{fix.package}-{'-'.join(fix.cves)}-{name}", text, fixed, cwes, metadata=metadata | dated)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
