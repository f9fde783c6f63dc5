"""PrimeVul: vulnerable C and C++ functions beside their fixed versions (Ding et al., arXiv 2403.18624).

Only the paired files are read. In these the two versions of a function are neighbouring records: `target` 1 before the
fix, 0 after it. Upstream: DLVulDet/PrimeVul.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slime_swe.data_sources.corpora.corpus import Corpus, NotFetched, Split, file_records, local_file, read_record
from slime_swe.data_sources.task import Task
from slime_swe.data_sources.vulnerability import CWE, Pair, tasks_of
from slime_swe.errors import UserError

CORPUS = Corpus(
    name="primevul",
    title="PrimeVul",
    licence="MIT",
    home="https://github.com/DLVulDet/PrimeVul",
    counted="the paper's pairs, of which too long and too large changes are left out",
    needs="nothing",
    splits={
        "train": Split(None, "C, C++", "colin/PrimeVul", "train", "paired"),
        "valid": Split(None, "C, C++", "colin/PrimeVul", "validation", "paired"),
        "test": Split(None, "C, C++", "colin/PrimeVul", "test", "paired"),
    },
    in_images=False,
)


@dataclass(frozen=True)
class _Record:
    idx: int | str
    func: str
    target: Literal[0, 1]
    project: str = ""
    commit_id: str = ""
    cwe: list[str] | str | None = None
    cve: str | None = None


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Return the tasks of the pairs of `FOLDER/SPLIT.jsonl`, or of PrimeVul's own `primevul_SPLIT_paired.jsonl` there.

    Raises `UserError` where records do not come in pairs; `NotFetched` where there is no such file.
    """
    CORPUS.split(split)
    root = CORPUS.folder(folder)
    path = local_file(root, split) or local_file(root, f"primevul_{split}_paired")
    if path is None:
        raise NotFetched(CORPUS, split, folder, f"it holds no {split}.jsonl and no primevul_{split}_paired.jsonl")
    records = file_records(path, lambda record: read_record(_Record, record, key="idx"))
    return tasks_of(_pairs(records, path), CORPUS.name, split)


def _pairs(records: Sequence[_Record], path: Path) -> Iterator[Pair]:
    if len(records) % 2:
        raise UserError(f"{path} has {len(records)} records, and pairs are two each: give a file of PrimeVul's pairs")
    for number, two in enumerate(zip(records[::2], records[1::2], strict=True)):
        if {record.target for record in two} != {0, 1}:
            raise UserError(f"{path}: the records {2 * number + 1} and {2 * number + 2} are no pair of targets 1 and 0")
        after, before = sorted(two, key=lambda record: record.target)
        metadata = {"repo": before.project or "unknown", "commit": before.commit_id, "cves": [before.cve or ""]}
        yield Pair(str(before.idx), before.func, after.func, _weaknesses(before), metadata=metadata)


def _weaknesses(record: _Record) -> tuple[str, ...]:
    given = [record.cwe] if isinstance(record.cwe, str) else record.cwe or []
    return tuple(sorted({cwe for cwe in given if CWE.fullmatch(cwe)}))
