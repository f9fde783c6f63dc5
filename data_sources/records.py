"""Read the records of a data set: from local JSON Lines, JSON or Parquet, else from the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from data_sources.corpus import Corpus, CorpusError
from data_sources.reader import TaskError
from data_sources.spec import FILE_KINDS, RegistryError


def corpus_records(corpus: Corpus, split: str, folder: Path | None) -> list[Any]:
    """The records of `FOLDER/SPLIT.jsonl` (or .json, .parquet), else of the Hub's data set.

    Raises `CorpusError` where neither can be had, with the command that downloads it.
    """
    there = corpus.folder(folder)
    dataset = corpus.split(split)
    for kind in FILE_KINDS:
        if (there / f"{split}{kind}").is_file():
            return [record for _, record in file_records(there / f"{split}{kind}")]
    if find_spec("datasets") is None:
        raise CorpusError(_how_to_get(corpus, split, there, "the package `datasets` is not installed"))
    return _from_hub(corpus, split, there, dataset.dataset, dataset.dataset_split)


def file_records(path: Path, *, lines: bool = False) -> Iterator[tuple[str, Any]]:
    """Each record of a file, and where it is in words; `lines` reads a `.json` as JSON Lines, which some files are.

    Raises `RegistryError`, and `TaskError` for what is no JSON.
    """
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        content = path.read_bytes()
    except OSError as error:
        raise RegistryError(f"can't read the task file {path}: {error.strerror or error}") from error
    yield from _json(path, content) if path.suffix == ".json" and not lines else _json_lines(path, content)


def _json_lines(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _loads(line, where)


def _json(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    records = _loads(content, str(path))
    if not isinstance(records, list):
        raise TaskError(f"{path}: must be a list of tasks, got {type(records).__name__}")
    yield from ((f"{path}, record {number}", record) for number, record in enumerate(records, 1))


def _loads(content: bytes, where: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise TaskError(f"{where}: not a JSON object: {error}") from error


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    if find_spec("pyarrow") is None:
        raise RegistryError(f"{path} needs pyarrow: pip install 'slime-swe[corpora]', or convert the file to .jsonl")
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise TaskError(f"{path} is not a Parquet file: {error}") from error
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


def _from_hub(corpus: Corpus, split: str, folder: Path, dataset: str, dataset_split: str) -> list[Any]:
    import datasets

    try:
        return list(datasets.load_dataset(dataset, split=dataset_split))
    except OSError as error:  # no network, no such data set, or one that must be asked for
        why = f"the Hugging Face Hub did not give it ({error})"
        raise CorpusError(_how_to_get(corpus, split, folder, why)) from error


def _how_to_get(corpus: Corpus, split: str, folder: Path, why: str) -> str:
    part = corpus.split(split)
    return (
        f"{corpus.name}:{split} is not in {folder.resolve()}, and {why}. Either `pip install 'slime-swe[corpora]'` "
        f"where the Hub can be reached, or on a machine that is online:\n"
        f"  pip install datasets\n"
        f"  python -c \"from datasets import load_dataset as load; load('{part.dataset}', "
        f"split='{part.dataset_split}').to_json('{split}.jsonl')\"\n"
        f"and put the file at {folder.resolve() / f'{split}.jsonl'} ({split}.parquet is taken too). A folder elsewhere "
        f"is named in the task set: {corpus.name}:{split}?folder=DIR"
    )
