"""Bring a corpus onto this machine, from the Hugging Face Hub or by Git, where task sets are then read offline.

What is written is the corpus's own records, unchanged, to the place where its loader looks: `corpora/NAME/SPLIT.jsonl`,
or the clone `corpora/NAME`. It appears there when it is whole. A download that was interrupted goes on: `datasets`
keeps the files that it has in its own cache.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from slime_swe.data_sources.corpora.corpus import Corpus, Split, local_file
from slime_swe.errors import InfrastructureError, UserError

Shown = Callable[[Iterable[Any], int], Iterable[Any]]  # records and their number -> the same records


def _unseen(records: Iterable[Any], total: int) -> Iterable[Any]:
    return records


def fetch(corpus: Corpus, split: str, folder: Path, *, source: str = "", shown: Shown = _unseen) -> Path:
    """The file or clone of one split, brought unless it is there.

    source: in place of the Hub, a folder that holds a copy of the data set. shown: passes the records through, and may
    show how far they are. Raises `UserError` where it can't be had, `InfrastructureError` where Git fails.
    """
    part = corpus.split(split)
    if corpus.brought_by:
        raise UserError(f"{corpus.title} is fetched by `{corpus.brought_by}`, in the folder {folder}")
    if not part.dataset:
        return _clone(corpus, folder)
    there = local_file(folder, split)
    if there is not None:
        return there
    records = _records(f"{corpus.name}:{split}", part, source)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.jsonl"
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{split}-", suffix=".part", delete=False) as file:
        unfinished = Path(file.name)
        try:
            for record in shown(records, len(records)):
                file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            unfinished.chmod(0o644)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return path


def _records(name: str, part: Split, source: str) -> Any:
    """A `datasets.Dataset`."""
    if find_spec("datasets") is None:
        raise UserError(f"{name} is fetched by the package `datasets`: pip install 'slime-swe[corpora]'")
    import datasets

    given = str(Path(source).expanduser()) if source else part.dataset
    try:
        return datasets.load_dataset(given, part.configuration or None, split=part.dataset_split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(f"{error}".split())[:300]
        raise UserError(
            f"{name} could not be had from {given}: {reason}. Without a network: on a machine that is online,\n"
            f"  hf download --repo-type dataset {part.dataset} --local-dir DIR\n"
            f"and here, with that folder: slime-swe tasks fetch {name} --from DIR"
        ) from error


def _clone(corpus: Corpus, folder: Path) -> Path:
    """The repository at the commit that the loader was written for."""
    if folder.is_dir() and any(folder.iterdir()):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as unfinished:
        place = Path(unfinished, "clone")
        for command in (("clone", "--quiet", corpus.home, str(place)), ("-C", str(place), "checkout", "--quiet",
                                                                         corpus.commit)):  # fmt: skip
            done = subprocess.run(["git", *command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode:
                said = done.stderr.decode(errors="replace").strip()
                raise InfrastructureError(f"`git {' '.join(command)}` failed: {said}")
        if folder.is_dir():
            folder.rmdir()
        place.rename(folder)
    return folder
